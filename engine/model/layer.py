"""Decoder layers: what one is made of, its weights by their names in the checkpoint, and how several run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels import KernelSet
from ...kernels.operations import DecoderShape, LayerOperands, Packed
from .attention import LATENT_NORM_EPS, Attention, StepPlan
from .config import ModelConfig
from .mlp import DenseMlp, Experts
from .weights import WeightSource


class Layer(NamedTuple):
    attention_norm: Tensor  # [H] fp32
    attention: Attention
    mlp_norm: Tensor  # [H] fp32
    mlp: DenseMlp | Experts


class LayerStack:
    """Layers that run one after the other, and the norm behind the last; in one call where a backend offers that."""

    def __init__(
        self, config: ModelConfig, kernels: KernelSet, layers: list[Layer], final_norm: Tensor
    ) -> None:
        self._kernels = kernels
        self._eps = config.rms_eps
        self._layers = layers
        self._final_norm = final_norm
        self._packed = self._pack(config) if layers else None

    def _pack(self, config: ModelConfig) -> Packed | None:
        """The layers for a backend that runs them in one call; None where there is none, and they run one by one."""
        decoder = self._kernels.decoder
        if decoder is None:
            return None
        shape = DecoderShape(
            hidden=config.hidden,
            heads=config.heads,
            rank=config.kv_lora_rank,
            nope=config.nope_dim,
            rope=config.rope_dim,
            v=config.v_dim,
            eps=config.rms_eps,
            latent_eps=LATENT_NORM_EPS,
            softmax_scale=config.softmax_scale,
        )
        operands = [
            LayerOperands(
                layer.attention.operands(layer.attention_norm), layer.mlp_norm, layer.mlp.operands()
            )
            for layer in self._layers
        ]
        return decoder.pack(operands, self._final_norm, shape)

    def run(self, residual: Tensor, latents: list[Tensor], step: StepPlan, dtype: torch.dtype) -> Tensor:
        """Add all layers to `residual` [T, H] in place; give its final norm, [T, H] in `dtype`.

        `latents`: each layer's cache, [slots, width].
        """
        if self._kernels.decoder is not None and self._packed is not None:
            return self._kernels.decoder(residual, self._packed, latents, step)
        norms = [*(layer.attention_norm for layer in self._layers[1:]), self._final_norm]
        x = self._kernels.rms_norm(residual, self._layers[0].attention_norm, self._eps, dtype)
        for layer, next_norm, cache in zip(self._layers, norms, latents, strict=True):
            x = self._kernels.add_rms_norm(
                residual, layer.attention.forward(x, cache, step), layer.mlp_norm, self._eps
            )
            x = self._kernels.add_rms_norm(residual, layer.mlp.forward(x), next_norm, self._eps)
        return x


def load_layer(
    config: ModelConfig, kernels: KernelSet, source: WeightSource, number: int, experts: bool
) -> Layer:
    """Layer `number`, with experts or one dense MLP. Raises ValueError when the config does not say how to route."""
    prefix = f"model.layers.{number}"
    mlp: DenseMlp | Experts
    if not experts:
        mlp = DenseMlp(config, kernels, source, f"{prefix}.mlp")
    elif config.routing is None:
        raise ValueError(f"layer {number} has experts, but the config says nothing of their routing")
    else:
        mlp = Experts(config, config.routing, kernels, source, f"{prefix}.mlp")
    return Layer(
        attention_norm=load_norm(source, f"{prefix}.input_layernorm", config),
        attention=Attention(config, kernels, source, f"{prefix}.self_attn"),
        mlp_norm=load_norm(source, f"{prefix}.post_attention_layernorm", config),
        mlp=mlp,
    )


def load_norm(source: WeightSource, prefix: str, config: ModelConfig) -> Tensor:
    return source.get(f"{prefix}.weight", (config.hidden,), dtype=torch.float32)
