"""The feed-forward half of a layer: one dense gated MLP, or a gate and experts (DeepSeekMoE, arXiv:2401.06066)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...kernels import KernelSet
from ...kernels.operations import ExpertOperands, Packed
from .config import ModelConfig, Routing
from .weights import WeightSource


class DenseMlp:
    def __init__(self, config: ModelConfig, kernels: KernelSet, source: WeightSource, prefix: str) -> None:
        self._kernels = kernels
        gate_up, down = _gated(source, prefix, config.hidden, config.dense_intermediate)
        self._weights: Packed = kernels.gated_mlp.pack(gate_up, down)

    def forward(self, x: Tensor) -> Tensor:
        return self._kernels.gated_mlp(x, self._weights)

    def operands(self) -> Packed:
        return self._weights


class Experts:
    def __init__(
        self, config: ModelConfig, routing: Routing, kernels: KernelSet, source: WeightSource, prefix: str
    ) -> None:
        self._kernels = kernels
        self._routing = routing
        # The gate computes in fp32, whatever the model's dtype: close scores decide who runs.
        shape = (routing.experts, config.hidden)
        self._gate = source.get(f"{prefix}.gate.weight", shape, dtype=torch.float32)
        self._bias: Tensor | None = None
        if routing.bias:
            name = f"{prefix}.gate.e_score_correction_bias"
            self._bias = source.get(name, (routing.experts,), dtype=torch.float32)
        shared = None
        if config.shared_experts:
            width = config.shared_experts * config.expert_intermediate
            shared = _gated(source, f"{prefix}.shared_experts", config.hidden, width)
        self._experts: Packed = kernels.moe_experts.pack(
            _each_expert(config, routing, source, prefix), routing.experts, shared, routing.top_k
        )

    def forward(self, x: Tensor) -> Tensor:
        """x [T, H] of the step's tokens, all at once."""
        weights, indices = self.gate(x)
        return self.experts(x, weights, indices)

    def operands(self) -> ExpertOperands:
        return ExpertOperands(self._gate, self._bias, self._routing, self._experts)

    def gate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._kernels.moe_gate(x, self._gate, self._bias, self._routing)

    def experts(self, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
        return self._kernels.moe_experts(x, weights, indices, self._experts)


def _each_expert(
    config: ModelConfig, routing: Routing, source: WeightSource, prefix: str
) -> Iterator[tuple[Tensor, Tensor]]:
    for number in range(routing.experts):
        yield _gated(source, f"{prefix}.experts.{number}", config.hidden, config.expert_intermediate)


def _gated(source: WeightSource, prefix: str, hidden: int, width: int) -> tuple[Tensor, Tensor]:
    """gate_up [2, width, hidden] and down [hidden, width] of one gated MLP."""
    gate = source.get(f"{prefix}.gate_proj.weight", (width, hidden))
    up = source.get(f"{prefix}.up_proj.weight", (width, hidden))
    return torch.stack((gate, up)), source.get(f"{prefix}.down_proj.weight", (hidden, width))
