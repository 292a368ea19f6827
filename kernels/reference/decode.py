"""Absorbed attention of decode rows in torch: rows of near length padded together, two batched products a group.

A row's queries are further heads to it: they read its pages once, and the mask alone tells them apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import latents
from ..operations import Buffers
from .groups import cut

# What one more group costs, in values read from the cache: about 350 tokens of 576, measured on one core.
_GROUP_VALUES = 200_000
# The most values that a group of several rows gathers, 32 MiB in bf16: larger buffers are mapped afresh at each use.
_MOST_VALUES = 1 << 24


class Group(NamedTuple):
    rows: int
    queries: int  # most of a row; a shorter row repeats its last one, and the copies' results are dropped
    pages: Tensor  # [rows * P] int64
    hidden: (
        Tensor | None
    )  # [rows, queries, 1, P * page_size] bool: past the query's own place; None: nothing is


class DecodePlan(NamedTuple):
    page_size: int
    take: Tensor | None  # int64: the queries in the groups' order, copies included; None: as they came
    back: Tensor | None  # [Q] int64: where each query's result then stands
    groups: list[Group]


class TorchMlaDecode:
    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def plan(
        self,
        lengths: Sequence[int],
        counts: Sequence[int],
        block_tables: Tensor,
        page_size: int,
        width: int,
    ) -> DecodePlan:
        def cost(start: int, end: int) -> float:
            values = (end - start) * lengths[rows[start]] * width
            return math.inf if end - start > 1 and values > _MOST_VALUES else values + _GROUP_VALUES

        rows = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
        ranges = cut(len(rows), cost)
        if len(ranges) == 1:
            rows = list(range(len(rows)))  # one group takes the rows as they came
        tables = block_tables
        if rows != list(range(len(rows))):
            tables = block_tables.index_select(0, torch.tensor(rows, device=block_tables.device))
        starts = [0, *itertools.accumulate(counts)]
        take: list[int] = []
        back = [0] * starts[-1]
        groups: list[Group] = []
        for start, end in ranges:
            members = rows[start:end]
            queries = max(counts[row] for row in members)
            seen: list[int] = []
            for row in members:
                first, count = starts[row], counts[row]
                back[first : first + count] = range(len(take), len(take) + count)
                places = [min(query, count - 1) for query in range(queries)]
                take += [first + place for place in places]
                seen += [lengths[row] - count + 1 + place for place in places]
            most = -(-max(seen) // page_size)
            hidden = None
            if min(seen) < most * page_size:
                seen_of = torch.tensor(seen, device=tables.device).view(len(members), queries, 1, 1)
                hidden = torch.arange(most * page_size, device=tables.device) >= seen_of
            groups.append(Group(len(members), queries, tables[start:end, :most].flatten(), hidden))
        if take == list(range(starts[-1])):
            return DecodePlan(page_size, None, None, groups)
        device = block_tables.device
        return DecodePlan(
            page_size, torch.tensor(take, device=device), torch.tensor(back, device=device), groups
        )

    def __call__(self, q: Tensor, cache: Tensor, plan: DecodePlan, *, scale: float, rank: int) -> Tensor:
        take = self._buffers.take
        own, heads, width = q.shape
        paged = cache.view(-1, plan.page_size * cache.shape[1])
        if plan.take is not None:
            q = torch.index_select(q, 0, plan.take, out=take((len(plan.take), heads, width), q.dtype))
        unused = q.new_empty(())  # baddbmm's summand, which beta = 0 leaves out: this way the scale is free
        outs: list[Tensor] = []
        start = 0
        for rows, queries, pages, hidden in plan.groups:
            # Whole pages and the whole width, part of it in vain: a slice of a batch would be copied first, transposed
            # and element by element, which takes several times as long as the product.
            kv = torch.index_select(paged, 0, pages, out=take((len(pages), paged.shape[1]), cache.dtype))
            if latents.in_fp8(cache):
                self._buffers.bypass()
            kv = latents.values(kv.view(-1, cache.shape[1]), rank, width - rank, q.dtype).view(
                rows, -1, width
            )
            mine = q[start : start + rows * queries].reshape(rows, queries * heads, width)
            shape = (rows, queries * heads, kv.shape[1])
            scores = torch.baddbmm(
                unused, mine, kv.transpose(1, 2), beta=0, alpha=scale, out=take(shape, q.dtype)
            )
            if hidden is not None:
                scores.view(rows, queries, heads, -1).masked_fill_(hidden, -math.inf)
            shares = torch.softmax(scores, -1, out=take(shape, q.dtype))
            out = torch.bmm(shares, kv, out=take((rows, queries * heads, width), q.dtype))
            outs.append(out.view(rows * queries, heads, width))
            start += rows * queries
        out = outs[0] if len(outs) == 1 else torch.cat(outs, out=take(q.shape, q.dtype))
        if plan.back is not None:
            out = torch.index_select(out, 0, plan.back, out=take((own, heads, width), q.dtype))
        return out[..., :rank]
