"""Norms and rope: one program a token, fp32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch, power_of_two


@triton.jit
def rms_norm_kernel(x, weight, out, stride, eps, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < N
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value) / N + eps)
    value *= tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + row * N + column, value, mask=inside)


@triton.jit
def add_rms_norm_kernel(
    residual, update, weight, out, residual_stride, stride, eps, N: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < N
    value = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
    value += tl.load(update + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + row * residual_stride + column, value, mask=inside)
    value *= tl.rsqrt(tl.sum(value * value) / N + eps)
    value *= tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + row * N + column, value, mask=inside)


@triton.jit
def rope_kernel(
    x, turns, token_stride, head_stride, heads, PAIRS: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, BLOCK)
    inside = (head < heads) & (pair < PAIRS)[None, :]
    factor = turns + (token * PAIRS + pair) * 2
    cos = tl.load(factor, mask=pair < PAIRS, other=0.0)[None, :]
    sin = tl.load(factor + 1, mask=pair < PAIRS, other=0.0)[None, :]
    place = x + token * token_stride + head * head_stride + 2 * pair[None, :]
    even = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(place + 1, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, even * cos - odd * sin, mask=inside)
    tl.store(place + 1, odd * cos + even * sin, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    tokens, n = x.shape
    out = torch.empty(tokens, n, dtype=dtype, device=x.device)
    block = power_of_two(n)
    launch(
        rms_norm_kernel,
        (tokens,),
        {"x": x, "weight": weight, "out": out, "stride": x.stride(0), "eps": eps},
        {"N": n, "BLOCK": block},
        warps=_warps(block),
    )
    return out


def add_rms_norm(residual: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
    tokens, n = update.shape
    out = torch.empty_like(update, memory_format=torch.contiguous_format)
    block = power_of_two(n)
    launch(
        add_rms_norm_kernel,
        (tokens,),
        {
            "residual": residual,
            "update": update,
            "weight": weight,
            "out": out,
            "residual_stride": residual.stride(0),
            "stride": update.stride(0),
            "eps": eps,
        },
        {"N": n, "BLOCK": block},
        warps=_warps(block),
    )
    return out


def rope(x: Tensor, turns: Tensor) -> None:
    tokens, heads, width = x.shape
    per_program = min(power_of_two(heads), 16)
    launch(
        rope_kernel,
        (tokens, -(-heads // per_program)),
        {
            "x": x,
            "turns": torch.view_as_real(turns),
            "token_stride": x.stride(0),
            "head_stride": x.stride(1),
            "heads": heads,
        },
        {"PAIRS": width // 2, "BLOCK": power_of_two(width // 2), "HEADS": per_program},
    )


def _warps(block: int) -> int:
    """Eight values a thread, so that a row is in flight at once."""
    return min(8, max(1, block // 256))
