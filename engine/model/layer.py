"""One decoder layer: what it is made of, and its weights by their names in the checkpoint."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels import KernelSet
from .attention import Attention
from .config import ModelConfig
from .mlp import DenseMlp, Experts
from .weights import WeightSource


class Layer(NamedTuple):
    attention_norm: Tensor  # [H] fp32
    attention: Attention
    mlp_norm: Tensor  # [H] fp32
    mlp: DenseMlp | Experts


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
