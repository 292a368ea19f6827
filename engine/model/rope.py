"""Rotary position embedding of the rope part, with YaRN.

The model keeps the rope parts in pairs (0, 1), (2, 3), ...; a checkpoint that pairs the two halves instead has the rows
of its projections reordered as they are loaded, which costs nothing at run time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config import Rope


def inverse_frequencies(rope: Rope) -> Tensor:
    """[dim / 2] fp32: the angle of each pair at position 1.

    YaRN (arXiv:2309.00071, 3.2 and 3.4) interpolates the pairs that turn fewer than beta_slow times over the original
    context, keeps those that turn more than beta_fast times, and ramps between the two.
    """
    extrapolated = rope.theta ** (-torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim)
    if rope.kind == "default":
        return extrapolated

    def pair_that_turns(times: float) -> float:
        turns = rope.original_max_position / (times * 2 * math.pi)
        return rope.dim * math.log(turns) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_that_turns(rope.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(rope.beta_slow)), rope.dim - 1)
    # The models' own code widens an empty ramp by 0.001 to avoid the division by zero.
    width = (high - low) or 0.001
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return extrapolated / rope.factor * ramp + extrapolated * (1 - ramp)


def attention_factor(rope: Rope) -> float:
    """What YaRN multiplies the turned parts by: the factor of `mscale` over that of `mscale_all_dim`.

    An `mscale_all_dim` of 0 has the factor 1. Implementations read a lone `mscale` differently; hf_config.py says which
    meaning is served.
    """
    if rope.kind == "default":
        return 1.0
    return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


class Rotary:
    """The turns of the tokens of a step: one complex factor a pair."""

    def __init__(self, rope: Rope, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope).to(device)
        self._factor = torch.tensor(attention_factor(rope), dtype=torch.float32, device=device)

    def turns(self, positions: Tensor) -> Tensor:
        """positions [T]; gives [T, dim / 2] complex64."""
        angles = torch.outer(positions.float(), self._frequencies)
        return torch.polar(self._factor.expand_as(angles), angles)


def paired_rows(rope: Rope) -> Tensor | None:
    """The order that brings the rope rows of a projection into pairs; None when they are already."""
    if rope.interleaved:
        return None
    return torch.arange(rope.dim).view(2, -1).t().flatten()
