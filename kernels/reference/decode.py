"""Absorbed attention of decode rows in torch: rows of near length padded together, two batched products a group.

Each query is a row of its own here, also where several belong to one sequence: a row then reads its pages once a query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..operations import Buffers
from .groups import cut

# What one more group costs, in values read from the cache: about 350 tokens of 576, measured on one core.
_GROUP_VALUES = 200_000
# The most values that a group of several rows gathers, 32 MiB in bf16: larger buffers are mapped afresh at each use.
_MOST_VALUES = 1 << 24


class Group(NamedTuple):
    start: int  # queries of the plan's order
    end: int
    pages: Tensor  # [(end - start) * P] int64
    hidden: Tensor | None  # [end - start, 1, P * page_size] bool: past the row's own length; None: nothing is


class DecodePlan(NamedTuple):
    page_size: int
    order: Tensor | None  # [Q] int64: the queries from longest to shortest; None: as they came
    back: Tensor | None  # its inverse
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
        if max(counts) > 1:
            lengths, block_tables = _a_row_a_query(lengths, counts, block_tables)

        def cost(start: int, end: int) -> float:
            values = (end - start) * descending[start] * width
            return math.inf if end - start > 1 and values > _MOST_VALUES else values + _GROUP_VALUES

        rows = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
        descending = [lengths[row] for row in rows]
        ranges = cut(len(rows), cost)
        order = back = None
        tables = block_tables
        if len(ranges) > 1 and rows != list(range(len(rows))):
            order = torch.tensor(rows, device=block_tables.device)
            back = order.argsort()
            tables = block_tables.index_select(0, order)
        else:
            descending = list(lengths)  # one group takes the rows as they came
        groups: list[Group] = []
        for start, end in ranges:
            own = descending[start:end]
            most = -(-max(own) // page_size)
            hidden = None
            if min(own) < most * page_size:
                lengths_of = torch.tensor(own, device=tables.device).view(-1, 1, 1)
                hidden = torch.arange(most * page_size, device=tables.device) >= lengths_of
            groups.append(Group(start, end, tables[start:end, :most].flatten(), hidden))
        return DecodePlan(page_size, order, back, groups)

    def __call__(self, q: Tensor, cache: Tensor, plan: DecodePlan, *, scale: float, rank: int) -> Tensor:
        take = self._buffers.take
        heads, width = q.shape[1:]
        paged = cache.view(-1, plan.page_size * width)
        if plan.order is not None:
            q = torch.index_select(q, 0, plan.order, out=take(q.shape, q.dtype))
        unused = q.new_empty(())  # baddbmm's summand, which beta = 0 leaves out: this way the scale is free
        outs: list[Tensor] = []
        for start, end, pages, hidden in plan.groups:
            rows = end - start
            # Whole pages and the whole width, part of it in vain: a slice of a batch would be copied first, transposed
            # and element by element, which takes several times as long as the product.
            kv = torch.index_select(paged, 0, pages, out=take((len(pages), paged.shape[1]), cache.dtype))
            kv = kv.view(rows, -1, width)
            shape = (rows, heads, kv.shape[1])
            scores = torch.baddbmm(
                unused, q[start:end], kv.transpose(1, 2), beta=0, alpha=scale, out=take(shape, q.dtype)
            )
            if hidden is not None:
                scores.masked_fill_(hidden, -math.inf)
            shares = torch.softmax(scores, -1, out=take(shape, q.dtype))
            outs.append(torch.bmm(shares, kv, out=take((rows, heads, width), q.dtype)))
        out = outs[0] if len(outs) == 1 else torch.cat(outs, out=take(q.shape, q.dtype))
        if plan.back is not None:
            out = torch.index_select(out, 0, plan.back, out=take(q.shape, q.dtype))
        return out[..., :rank]


def _a_row_a_query(
    lengths: Sequence[int], counts: Sequence[int], block_tables: Tensor
) -> tuple[list[int], Tensor]:
    own = [
        length - count + 1 + query
        for length, count in zip(lengths, counts, strict=True)
        for query in range(count)
    ]
    repeats = torch.tensor(counts, device=block_tables.device)
    return own, block_tables.repeat_interleave(repeats, dim=0)
