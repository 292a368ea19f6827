"""Norms, rope and the cache write in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import latents


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(dtype)


def add_rms_norm(residual: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
    residual.add_(update)
    return F.rms_norm(residual, weight.shape, weight, eps).to(update.dtype)


def rope(x: Tensor, turns: Tensor) -> None:
    # A fresh fp32 copy: a complex view needs an even offset, which a slice of a wider row need not have.
    pairs = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format).unflatten(-1, (-1, 2))
    x.copy_(torch.view_as_real(torch.view_as_complex(pairs) * turns.unsqueeze(1)).flatten(-2))


def latent_write(
    kv: Tensor, cache: Tensor, slots: Tensor, *, weight: Tensor, eps: float, turns: Tensor
) -> None:
    rank = weight.shape[0]
    normed = F.rms_norm(kv[:, :rank].float(), weight.shape, weight, eps)
    rope(kv[:, rank:].unsqueeze(1), turns)
    if latents.in_fp8(cache):
        latents.write(cache, slots, normed, kv[:, rank:])
        return
    kv[:, :rank] = normed
    cache.index_copy_(0, slots, kv)
