"""What every backend's tests compare with: routing as the model's config describes it, and attention in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spec:
    scoring: str = "sigmoid"
    experts: int = 12
    top_k: int = 3
    groups: int = 4
    top_groups: int = 2
    method: str = "group_top2"
    normalise: bool = True
    scale: float = 2.5


def prompt_attention(
    q: Tensor,
    chunks: Sequence[tuple[int, int]],
    rows: Sequence[Tensor],
    key_up: Tensor,
    value_up: Tensor,
    scale: float,
) -> Tensor:
    """[T, h, v] float64: the last tokens of each row see what is before them; (length, count) is a row's chunk.

    q [T, h, nope + rope]; rows: latents [length, rank + rope] float64; key_up [h, nope, rank], value_up [h, v, rank].
    """
    heads, rank = key_up.shape[0], key_up.shape[2]
    want: list[Tensor] = []
    for (length, count), kv in zip(chunks, rows, strict=True):
        keys = torch.cat((kv[:, :rank] @ key_up.double().mT, kv[:, rank:].expand(heads, -1, -1)), dim=-1)
        mine = q[len(want) : len(want) + count].double()
        scores = torch.einsum("qhd,hkd->hqk", mine, keys) * scale
        later = torch.arange(length) > torch.arange(length - count, length).unsqueeze(1)
        values = kv[:, :rank] @ value_up.double().mT
        want += (scores.masked_fill(later, -math.inf).softmax(-1) @ values).transpose(0, 1)
    return torch.stack(want)
