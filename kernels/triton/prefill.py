"""Causal attention of prompt chunks of any lengths, packed one after the other, over keys and values made from latents.

The context of all rows is expanded a window at a time, so that the memory it takes has a bound whatever the prefix. A
program holds a tile of one row's queries and walks the keys that the window has for it, with the softmax kept running
(FlashAttention-2, Dao 2023, arXiv:2307.08691); where there are several windows, the result so far and its log-sum-exp
are carried from one to the next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import latents
from ..operations import Expand
from .latents import latent_read
from .launch import Arch, dot_dtype, launch, power_of_two

_FIELDS = 6
_ITEM: tl.constexpr = tl.constexpr(_FIELDS)


@triton.jit
def mla_prefill_kernel(
    q, key, rotated, value, items, out, lse,
    scale, q_token, q_head, key_head, key_token, rotated_token, value_head, value_token, heads,
    NOPE: tl.constexpr, ROPE: tl.constexpr, V: tl.constexpr,
    BLOCK_NOPE: tl.constexpr, BLOCK_ROPE: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CARRY: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """`scale` has log2(e) in it. CARRY: out and lse (of base 2) hold what earlier windows gave to an item."""
    item = items + tl.program_id(0) * _ITEM
    head = tl.program_id(1).to(tl.int64)
    first = tl.load(item).to(tl.int64)
    count = tl.load(item + 1)
    seen = tl.load(item + 2)  # keys that the tile's first query sees
    base = tl.load(item + 3)  # the key of place p in its row is the window's base + p
    begin = tl.load(item + 4)
    end = tl.load(item + 5)
    query = tl.arange(0, BLOCK_M)
    mine = query < count
    of_nope = tl.arange(0, BLOCK_NOPE)
    of_rope = tl.arange(0, BLOCK_ROPE)
    of_v = tl.arange(0, BLOCK_V)
    row = q + (first + query)[:, None] * q_token + head * q_head
    q_nope = tl.load(row + of_nope[None, :], mask=mine[:, None] & (of_nope < NOPE)[None, :], other=0.0).to(
        DOT
    )
    q_rope = tl.load(
        row + NOPE + of_rope[None, :], mask=mine[:, None] & (of_rope < ROPE)[None, :], other=0.0
    ).to(DOT)
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for start in range(begin, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        there = token < end
        place = (base + token).to(tl.int64)
        k_nope = tl.load(
            key + head * key_head + place[None, :] * key_token + of_nope[:, None],
            mask=there[None, :] & (of_nope < NOPE)[:, None], other=0.0,
        ).to(DOT)  # fmt: skip
        k_rope = tl.load(
            rotated + place[None, :] * rotated_token + of_rope[:, None],
            mask=there[None, :] & (of_rope < ROPE)[:, None], other=0.0,
        ).to(DOT)  # fmt: skip
        v = tl.load(
            value + head * value_head + place[:, None] * value_token + of_v[None, :],
            mask=there[:, None] & (of_v < V)[None, :], other=0.0,
        ).to(DOT)  # fmt: skip
        score = tl.dot(q_rope, k_rope, input_precision="ieee")
        score = tl.dot(q_nope, k_nope, score, input_precision="ieee") * scale
        score = tl.where(there[None, :] & (token[None, :] < (seen + query)[:, None]), score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, axis=1))
        # A window may hold nothing that a tile's first queries see: -inf - -inf is not a number.
        floor = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - floor[:, None])
        shrink = tl.exp2(highest - floor)
        total = total * shrink + tl.sum(weight, axis=1)
        acc = tl.dot(weight.to(DOT), v, acc * shrink[:, None], input_precision="ieee")
        highest = higher
    target = out + ((first + query)[:, None] * heads + head) * V + of_v[None, :]
    inside = mine[:, None] & (of_v < V)[None, :]
    if CARRY:
        place_of = lse + (first + query) * heads + head
        if begin > 0:
            # The first window has a key that every query sees, so what is carried is finite.
            carried = tl.load(place_of, mask=mine, other=0.0)
            higher = tl.maximum(highest, carried)
            old = tl.exp2(carried - higher)
            shrink = tl.exp2(highest - higher)
            acc = acc * shrink[:, None] + tl.load(target, mask=inside, other=0.0) * old[:, None]
            total = total * shrink + old
            highest = higher
        tl.store(place_of, highest + tl.log2(total), mask=mine)
    tl.store(target, acc / total[:, None], mask=inside)


class Tile(NamedTuple):
    queries: int  # BLOCK_M
    keys: int  # BLOCK_N
    warps: int
    stages: int


def tile_of(arch: Arch, dtype: torch.dtype) -> Tile:
    """The largest tile that spills nowhere with heads of 128 + 64 and 128 (`arc kernels aot`)."""
    if dtype == torch.float32:
        return Tile(16, 32, warps=8, stages=1)
    if arch.amd:
        return Tile(64, 64, warps=4, stages=1)
    return Tile(128, 64 if arch.asynchronous else 32, warps=8, stages=2)


class Window(NamedTuple):
    slots: Tensor  # [L] int64, of the cache: the window's tokens one row after the other
    items: Tensor  # [N, 6] int32, those with the most keys first


class PrefillPlan(NamedTuple):
    windows: list[Window]


# Keys times heads that are expanded at once: with 256 values a key, in bf16, 512 MiB.
_MOST_KEYS = 1 << 20
_LEAST_WINDOW = 64


class TritonMlaPrefill:
    def __init__(self, arch: Arch, dtype: torch.dtype) -> None:
        self._tile = tile_of(arch, dtype)

    def plan(
        self, lengths: Sequence[int], counts: Sequence[int], block_tables: Tensor, page_size: int, heads: int
    ) -> PrefillPlan:
        most = max(_LEAST_WINDOW, _MOST_KEYS // heads)
        starts = [0, *itertools.accumulate(counts)]
        windows = [
            _window(segments, lengths, counts, starts, block_tables, page_size, self._tile.queries)
            for segments in cut_windows(lengths, most)
        ]
        return PrefillPlan(windows)

    def __call__(
        self, q: Tensor, cache: Tensor, plan: PrefillPlan, *, scale: float, rank: int, expand: Expand
    ) -> Tensor:
        tokens, heads, width = q.shape
        carry = len(plan.windows) > 1
        q = q if q.stride(2) == 1 else q.contiguous()
        out: Tensor | None = None
        lse = torch.empty(tokens if carry else 0, heads, dtype=torch.float32, device=q.device)
        for window in plan.windows:
            kv = cache.index_select(0, window.slots)
            latent = latent_read(kv, rank, q.dtype) if latents.in_fp8(kv) else kv[:, :rank]
            key, value = (each if each.stride(2) == 1 else each.contiguous() for each in expand(latent))
            nope, size = key.shape[2], value.shape[2]
            rotated = latents.rope_part(kv, rank, width - nope, q.dtype)
            if out is None:
                dtype = torch.float32 if carry else q.dtype
                out = torch.empty(tokens, heads, size, dtype=dtype, device=q.device)
            launch(
                mla_prefill_kernel,
                (window.items.shape[0], heads),
                {
                    "q": q,
                    "key": key,
                    "rotated": rotated,
                    "value": value,
                    "items": window.items,
                    "out": out,
                    "lse": lse,
                    "scale": scale / math.log(2),
                    "q_token": q.stride(0),
                    "q_head": q.stride(1),
                    "key_head": key.stride(0),
                    "key_token": key.stride(1),
                    "rotated_token": rotated.stride(0),
                    "value_head": value.stride(0),
                    "value_token": value.stride(1),
                    "heads": heads,
                },
                {
                    "NOPE": nope,
                    "ROPE": width - nope,
                    "V": size,
                    "BLOCK_NOPE": power_of_two(nope, 16),
                    "BLOCK_ROPE": power_of_two(width - nope, 16),
                    "BLOCK_V": power_of_two(size, 16),
                    "BLOCK_M": self._tile.queries,
                    "BLOCK_N": self._tile.keys,
                    "CARRY": carry,
                    "DOT": dot_dtype(q.dtype),
                },
                warps=self._tile.warps,
                stages=self._tile.stages,
            )
        assert out is not None, "a plan has a row"
        return out.to(q.dtype)


Segment = tuple[int, int, int]  # row, begin, end


def cut_windows(lengths: Sequence[int], most: int) -> list[list[Segment]]:
    """All rows' tokens in order, cut into windows of at most `most` tokens; a row may go on in the next window."""
    windows: list[list[Segment]] = [[]]
    room = most
    for row, length in enumerate(lengths):
        begin = 0
        while begin < length:
            if room == 0:
                windows.append([])
                room = most
            end = min(length, begin + room)
            windows[-1].append((row, begin, end))
            room -= end - begin
            begin = end
    return windows


def _window(
    segments: list[Segment],
    lengths: Sequence[int],
    counts: Sequence[int],
    starts: Sequence[int],
    tables: Tensor,
    page_size: int,
    tile: int,
) -> Window:
    items: list[tuple[int, ...]] = []
    offset = 0
    for row, begin, end in segments:
        before = lengths[row] - counts[row]
        for query in range(0, counts[row], tile):
            count = min(tile, counts[row] - query)
            until = min(end, before + query + count)
            if until > begin:
                items.append((starts[row] + query, count, before + query + 1, offset - begin, begin, until))
        offset += end - begin
    items.sort(key=lambda item: item[4] - item[5])
    places = np.concatenate([np.arange(begin, end) for _, begin, end in segments])
    rows = np.repeat([row for row, _, _ in segments], [end - begin for _, begin, end in segments])
    device = tables.device
    place = torch.from_numpy(places).to(device)
    page = tables[torch.from_numpy(rows).to(device), place // page_size]
    return Window(
        slots=page * page_size + place % page_size,
        items=torch.from_numpy(np.array(items, dtype=np.int32).reshape(-1, _FIELDS)).to(device),
    )
