"""Absorbed attention of decode rows over paged latents, split along the cache, in two kernels.

The first walks one part of a row's cache for a tile of its (query, head) pairs, with the softmax kept running (Milakov
and Gimelshein 2018, arXiv:1805.02867); the latent is read once and is key and value. The second puts a row's parts
together by their log-sum-exp (flash decoding: Dao et al. 2023), and is not launched when no row has two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from .. import latents
from .floats import half_of_e4m3
from .launch import Arch, dot_dtype, launch, power_of_two
from .split import ITEM_FIELDS, ROW_FIELDS, most_items, programs_wanted, split

_ITEM: tl.constexpr = tl.constexpr(ITEM_FIELDS)
_ROW: tl.constexpr = tl.constexpr(ROW_FIELDS)
_LN2: tl.constexpr = tl.constexpr(math.log(2))
_LOG2E: tl.constexpr = tl.constexpr(1 / math.log(2))


@triton.jit
def mla_decode_kernel(
    q, cache, rotated, scales, tables, items, rows, out, lse, part_out, part_lse,
    scale, heads, table_stride, most_pairs,
    RANK: tl.constexpr, ROPE: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_ROPE: tl.constexpr,
    SLOT: tl.constexpr, ROTATED: tl.constexpr, SCALES: tl.constexpr, FP8: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """`scale` has log2(e) in it: powers of two are what the hardware has.

    SLOT: from one slot to the next. In fp8, `rotated` and `scales` are the cache's other parts, and ROTATED and SCALES
    are from one slot to the next in their elements.
    """
    WIDTH: tl.constexpr = RANK + ROPE
    item = items + tl.program_id(1) * _ITEM
    row = tl.load(item)
    begin = tl.load(item + 1)
    end = tl.load(item + 2)
    part = tl.load(item + 3)
    first = tl.load(rows + row * _ROW)
    count = tl.load(rows + row * _ROW + 1)
    length = tl.load(rows + row * _ROW + 2)
    pairs = count * heads
    pair = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    if (begin >= end) | (tl.program_id(0) * BLOCK_M >= pairs):
        return
    mine = pair < pairs
    sees = length - count + 1 + pair // heads  # the first tokens that a pair's query sees
    place = first.to(tl.int64) * heads + pair
    of_rank = tl.arange(0, BLOCK_RANK)
    of_rope = tl.arange(0, BLOCK_ROPE)
    in_rank = of_rank < RANK
    in_rope = of_rope < ROPE
    query = q + place[:, None] * WIDTH
    q_latent = tl.load(query + of_rank[None, :], mask=mine[:, None] & in_rank[None, :], other=0.0).to(DOT)
    q_rope = tl.load(query + RANK + of_rope[None, :], mask=mine[:, None] & in_rope[None, :], other=0.0).to(
        DOT
    )
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_RANK], tl.float32)
    table = tables + row.to(tl.int64) * table_stride
    for start in range(begin, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        there = token < end
        page = tl.load(table + token // PAGE, mask=there, other=0)
        slot = (page.to(tl.int64) * PAGE + token % PAGE)[:, None]
        # What lies past the row is never read, so nothing that another sequence left there can come in.
        inside = there[:, None] & in_rank[None, :]
        inside_rope = there[:, None] & in_rope[None, :]
        if FP8:
            bits = tl.load(cache + slot * SLOT + of_rank[None, :], mask=inside, other=0)
            latent = half_of_e4m3(bits).to(DOT)
            turned = tl.load(rotated + slot * ROTATED + of_rope[None, :], mask=inside_rope, other=0.0).to(DOT)
            own = tl.load(scales + slot * SCALES, mask=there[:, None], other=0.0) * 256.0
            own = tl.trans(
                own
            )  # a token's scale stays outside the products: on its scores, and on its weights
            score = tl.dot(q_latent, tl.trans(latent), input_precision="ieee") * own
            score = tl.dot(q_rope, tl.trans(turned), score, input_precision="ieee") * scale
        else:
            latent = tl.load(cache + slot * SLOT + of_rank[None, :], mask=inside, other=0.0).to(DOT)
            turned = tl.load(
                cache + slot * SLOT + RANK + of_rope[None, :], mask=inside_rope, other=0.0
            ).to(DOT)  # fmt: skip
            score = tl.dot(q_rope, tl.trans(turned), input_precision="ieee")
            score = tl.dot(q_latent, tl.trans(latent), score, input_precision="ieee") * scale
        score = tl.where(there[None, :] & (token[None, :] < sees[:, None]), score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, axis=1))
        # A query of several may see nothing of this part: its maximum stays -inf, and -inf - -inf is not a number.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weight, axis=1)
        if FP8:
            weight *= own
        acc = tl.dot(weight.to(DOT), latent, acc * shrink[:, None], input_precision="ieee")
        highest = higher
    share = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    sum_exp = (highest + tl.log2(total)) * _LN2
    if part < 0:
        tl.store(out + place[:, None] * RANK + of_rank[None, :], share, mask=mine[:, None] & in_rank[None, :])
        tl.store(lse + place, sum_exp, mask=mine)
    else:
        piece = part.to(tl.int64) * most_pairs + pair
        target = part_out + piece[:, None] * RANK + of_rank[None, :]
        tl.store(target, share, mask=mine[:, None] & in_rank[None, :])
        tl.store(part_lse + piece, sum_exp, mask=mine)


@triton.jit
def mla_combine_kernel(
    part_out, part_lse, rows, out, lse, heads, most_pairs,
    RANK: tl.constexpr, BLOCK_RANK: tl.constexpr,
):  # fmt: skip
    """One program a (row, pair): the parts' results weighted by their share of the whole sum."""
    row = rows + tl.program_id(1) * _ROW
    first = tl.load(row)
    count = tl.load(row + 1)
    first_part = tl.load(row + 3)
    parts = tl.load(row + 4)
    pair = tl.program_id(0)
    if (parts == 0) | (pair >= count * heads):
        return
    column = tl.arange(0, BLOCK_RANK)
    inside = column < RANK
    highest = float("-inf")
    total = 0.0
    acc = tl.zeros([BLOCK_RANK], tl.float32)
    piece = first_part.to(tl.int64) * most_pairs + pair
    for _ in range(parts):
        sum_exp = tl.load(part_lse + piece)
        value = tl.load(part_out + piece * RANK + column, mask=inside, other=0.0)
        # The first part has a token that every query sees, so the maximum is finite from there on.
        higher = tl.maximum(highest, sum_exp)
        shrink = tl.exp2((highest - higher) * _LOG2E)
        weight = tl.exp2((sum_exp - higher) * _LOG2E)
        acc = acc * shrink + value * weight
        total = total * shrink + weight
        highest = higher
        piece += most_pairs
    place = first.to(tl.int64) * heads + pair
    tl.store(out + place * RANK + column, acc / total, mask=inside)
    tl.store(lse + place, highest + tl.log(total))


class Tile(NamedTuple):
    pairs: int  # BLOCK_M
    tokens: int  # BLOCK_N
    warps: int
    stages: int


def tile_of(arch: Arch, dtype: torch.dtype, pairs: int, fp8: bool) -> Tile:
    """The largest tile that spills nowhere with rank 512 (`arc kernels aot`). Wide tiles read the cache fewer times."""
    if dtype == torch.float32:
        return Tile(16, 16, warps=4 if arch.amd else 8, stages=1)
    if arch.amd:
        return Tile(16, 32, warps=4, stages=1)
    if pairs > 32 and arch.name == "sm_90" and not fp8:
        return Tile(64, 32, warps=8, stages=2)
    if pairs > 16:
        return Tile(32, 32, warps=8, stages=2)
    return Tile(16, 32 if fp8 else 64, warps=8, stages=2)


class Cut(NamedTuple):
    """A split on the device."""

    items: Tensor  # [N * 4] int32
    rows: Tensor  # [R * 5] int32
    size: int  # N
    parts: int  # places for parts' results


@dataclass(slots=True)
class DecodePlan:
    """The rows of one step. How they are cut depends on the heads, so it is found at the first call and kept."""

    lengths: Sequence[int]
    counts: Sequence[int]
    tables: Tensor  # [R, P] int64
    page_size: int
    queries: int  # most of a row
    fixed: bool = False  # launches are always the same: as many rows and items as any step can need
    cuts: dict[int, Cut] = field(default_factory=dict)  # by programs wanted


class TritonMlaDecode:
    def __init__(self, arch: Arch) -> None:
        self._arch = arch

    def plan(
        self,
        lengths: Sequence[int],
        counts: Sequence[int],
        block_tables: Tensor,
        page_size: int,
        width: int,
    ) -> DecodePlan:
        return DecodePlan(lengths, counts, block_tables.contiguous(), page_size, max(counts))

    def __call__(self, q: Tensor, cache: Tensor, plan: DecodePlan, *, scale: float, rank: int) -> Tensor:
        return self.attend(q, cache, plan, scale=scale, rank=rank)[0]

    def attend(
        self, q: Tensor, cache: Tensor, plan: DecodePlan, *, scale: float, rank: int
    ) -> tuple[Tensor, Tensor]:
        """The operation's result, and the log-sum-exp of the scaled scores, [Q, h] fp32."""
        queries, heads, width = q.shape
        most_pairs = plan.queries * heads
        fp8 = latents.in_fp8(cache)
        tile = tile_of(self._arch, q.dtype, most_pairs, fp8)
        tiles = -(-most_pairs // tile.pairs)
        cut = self._cut(plan, programs_wanted(self._arch.processors, tiles), q.device)
        out = q.new_empty(queries, heads, rank)
        lse = torch.empty(queries, heads, dtype=torch.float32, device=q.device)
        part_out = torch.empty(cut.parts, most_pairs, rank, dtype=torch.float32, device=q.device)
        part_lse = torch.empty(cut.parts, most_pairs, dtype=torch.float32, device=q.device)
        block_rank = power_of_two(rank, 16)
        rotated = latents.rope_part(cache, rank, width - rank, q.dtype) if fp8 else cache
        scales = latents.scales(cache, rank) if fp8 else cache
        launch(
            mla_decode_kernel,
            (tiles, cut.size),
            {
                "q": q.contiguous(),
                "cache": cache,
                "rotated": rotated,
                "scales": scales,
                "tables": plan.tables,
                "items": cut.items,
                "rows": cut.rows,
                "out": out,
                "lse": lse,
                "part_out": part_out,
                "part_lse": part_lse,
                "scale": scale / math.log(2),
                "heads": heads,
                "table_stride": plan.tables.stride(0),
                "most_pairs": most_pairs,
            },
            {
                "RANK": rank,
                "ROPE": width - rank,
                "BLOCK_RANK": block_rank,
                "BLOCK_ROPE": power_of_two(width - rank, 16),
                "SLOT": cache.stride(0),
                "ROTATED": rotated.stride(0),
                "SCALES": scales.stride(0),
                "FP8": fp8,
                "PAGE": plan.page_size,
                "BLOCK_M": tile.pairs,
                "BLOCK_N": tile.tokens,
                "DOT": dot_dtype(q.dtype),
            },
            warps=tile.warps,
            stages=tile.stages,
        )
        if cut.parts:
            launch(
                mla_combine_kernel,
                (most_pairs, len(plan.tables)),
                {
                    "part_out": part_out,
                    "part_lse": part_lse,
                    "rows": cut.rows,
                    "out": out,
                    "lse": lse,
                    "heads": heads,
                    "most_pairs": most_pairs,
                },
                {"RANK": rank, "BLOCK_RANK": block_rank},
            )
        return out, lse

    def fixed_plan(
        self, rows: int, queries: int, pages: int, page_size: int, device: torch.device
    ) -> DecodePlan:
        tables = torch.zeros(rows, pages, dtype=torch.int64, device=device)
        return DecodePlan([1] * rows, [1] * rows, tables, page_size, queries, fixed=True)

    def refill(
        self, plan: DecodePlan, lengths: Sequence[int], counts: Sequence[int], block_tables: Tensor
    ) -> None:
        plan.lengths, plan.counts = lengths, counts
        plan.tables[: len(block_tables), : block_tables.shape[1]].copy_(block_tables)
        for wanted, cut in plan.cuts.items():
            numbers = _numbers(plan, wanted)[0]
            fresh = _to_device(numbers, cut.items.device)
            cut.items.copy_(fresh[: cut.items.numel()])
            cut.rows.copy_(fresh[cut.items.numel() :])

    @staticmethod
    def _cut(plan: DecodePlan, wanted: int, device: torch.device) -> Cut:
        known = plan.cuts.get(wanted)
        if known is None:
            numbers, count, parts = _numbers(plan, wanted)
            items, rows = _to_device(numbers, device).split(
                (count * ITEM_FIELDS, len(plan.tables) * ROW_FIELDS)
            )
            known = plan.cuts[wanted] = Cut(items, rows, count, parts)
        return known


def _numbers(plan: DecodePlan, wanted: int) -> tuple[NDArray[np.int32], int, int]:
    """A split's items and rows, one after the other for one copy to the device; how many items, and how many parts."""
    cut = split(plan.lengths, plan.counts, wanted)
    items, rows, parts = cut.items, cut.rows, cut.parts
    if plan.fixed:
        parts = most_items(len(plan.tables), wanted)
        # An item that begins at its end has nothing to do, nor has a row without parts.
        items = np.concatenate((items, np.zeros((parts - len(items), ITEM_FIELDS), dtype=np.int32)))
        rows = np.concatenate((rows, np.zeros((len(plan.tables) - len(rows), ROW_FIELDS), dtype=np.int32)))
    return np.concatenate((items.ravel(), rows.ravel())), len(items), parts


def _to_device(numbers: NDArray[np.int32], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(numbers)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
