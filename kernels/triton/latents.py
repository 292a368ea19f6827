"""Latents to their slots of the cache, and back where they lie there in fp8: one program a token, fp32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import latents
from .floats import e4m3_of, half_of_e4m3
from .launch import launch, power_of_two

_MOST: tl.constexpr = tl.constexpr(latents.MOST)
_TINY: tl.constexpr = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit
def latent_write_kernel(
    kv, cache, rotated, scales, slots, weight, turns, stride, cache_stride, rotated_stride, scales_stride, eps,
    RANK: tl.constexpr, PAIRS: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_PAIRS: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    column = tl.arange(0, BLOCK_RANK)
    inside = column < RANK
    value = tl.load(kv + token * stride + column, mask=inside, other=0.0).to(tl.float32)
    square = tl.sum(value * value) / RANK
    value *= tl.rsqrt(square + eps)
    value *= tl.load(weight + column, mask=inside, other=0.0)
    if FP8:
        scale = tl.maximum(tl.max(tl.abs(value)) / _MOST, _TINY)
        # The maximum leaves out what is not a number, and e4m3's own code for it is read as one: the scale says it.
        scale = tl.where(square < float("inf"), scale, float("nan"))
        tl.store(scales + slot * scales_stride, scale)
        tl.store(cache + slot * cache_stride + column, e4m3_of(tl.div_rn(value, scale)), mask=inside)
    else:
        tl.store(cache + slot * cache_stride + column, value, mask=inside)
    pair = tl.arange(0, BLOCK_PAIRS)
    inside_pair = pair < PAIRS
    factor = turns + (token * PAIRS + pair) * 2
    cos = tl.load(factor, mask=inside_pair, other=0.0)
    sin = tl.load(factor + 1, mask=inside_pair, other=0.0)
    source = kv + token * stride + RANK + 2 * pair
    even = tl.load(source, mask=inside_pair, other=0.0).to(tl.float32)
    odd = tl.load(source + 1, mask=inside_pair, other=0.0).to(tl.float32)
    place = rotated + slot * rotated_stride + 2 * pair
    tl.store(place, even * cos - odd * sin, mask=inside_pair)
    tl.store(place + 1, odd * cos + even * sin, mask=inside_pair)


@triton.jit
def latent_read_kernel(kv, scales, out, stride, scales_stride, RANK: tl.constexpr, BLOCK_RANK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_RANK)
    inside = column < RANK
    bits = tl.load(kv + token * stride + column, mask=inside, other=0)
    value = half_of_e4m3(bits).to(tl.float32) * (tl.load(scales + token * scales_stride) * 256.0)
    tl.store(out + token * RANK + column, value, mask=inside)


def latent_write(
    kv: Tensor, cache: Tensor, slots: Tensor, *, weight: Tensor, eps: float, turns: Tensor
) -> None:
    rank, pairs = weight.shape[0], turns.shape[1]
    fp8 = latents.in_fp8(cache)
    rotated = latents.rope_part(cache, rank, 2 * pairs, kv.dtype)
    scales = latents.scales(cache, rank) if fp8 else cache
    launch(
        latent_write_kernel,
        (kv.shape[0],),
        {
            "kv": kv,
            "cache": cache,
            "rotated": rotated,
            "scales": scales,
            "slots": slots,
            "weight": weight,
            "turns": torch.view_as_real(turns),
            "stride": kv.stride(0),
            "cache_stride": cache.stride(0),
            "rotated_stride": rotated.stride(0),
            "scales_stride": scales.stride(0),
            "eps": eps,
        },
        {
            "RANK": rank,
            "PAIRS": pairs,
            "BLOCK_RANK": power_of_two(rank),
            "BLOCK_PAIRS": power_of_two(pairs),
            "FP8": fp8,
        },
    )


def latent_read(slots: Tensor, rank: int, dtype: torch.dtype) -> Tensor:
    """The latent parts [S, rank] of slots [S, bytes] in fp8."""
    out = torch.empty(len(slots), rank, dtype=dtype, device=slots.device)
    scales = latents.scales(slots, rank)
    launch(
        latent_read_kernel,
        (len(slots),),
        {
            "kv": slots,
            "scales": scales,
            "out": out,
            "stride": slots.stride(0),
            "scales_stride": scales.stride(0),
        },
        {"RANK": rank, "BLOCK_RANK": power_of_two(rank)},
    )
    return out
