"""Expanded attention of prompt chunks in torch: causal blocks of batched products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import latents
from ..operations import Buffers, Expand
from .groups import cut
from .placed import contiguous, empty

_LEAST_BLOCK = 16
_BLOCK = 128  # query tokens a block: enough for products at full rate, and little above the diagonal in vain
_MOST_SCORES = 1 << 24  # values of one block's scores, which bounds the block on long contexts
# In products of one query with one key: what expanding a latent costs (rank * (nope + v) / (nope + rope + v) is 384 to
# 410 for the published shapes), and what one more group costs.
_EXPAND_PAIRS = 400
_GROUP_PAIRS = 20_000


class Block(NamedTuple):
    """Query tokens [start, end) of each row of a group."""

    start: int
    end: int
    keys: int  # the first keys that any of them sees
    seen: int  # the first keys that all of them see
    hidden: Tensor  # [rows, end - start, keys - seen] bool: the rest, true past the query's own place


class Group(NamedTuple):
    rows: int
    queries: int  # most of a row; a shorter row repeats its last one, and the copies' results are dropped
    length: int  # of the longest row
    pages: Tensor  # [rows * P] int64
    gather: Tensor  # [rows * queries] int64: the padded queries among the T tokens
    own: Tensor | None  # which of them are no copies; None: all
    blocks: list[Block]


class PrefillPlan(NamedTuple):
    page_size: int
    groups: list[Group]


class TorchMlaPrefill:
    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def plan(
        self, lengths: Sequence[int], counts: Sequence[int], block_tables: Tensor, page_size: int, heads: int
    ) -> PrefillPlan:
        def cost(start: int, end: int) -> float:
            queries = max(counts[row] for row in order[start:end])
            return (end - start) * lengths[order[start]] * (queries + _EXPAND_PAIRS) + _GROUP_PAIRS

        order = sorted(range(len(lengths)), key=lambda row: (lengths[row], counts[row]), reverse=True)
        starts = [0, *itertools.accumulate(counts)]
        groups: list[Group] = []
        for start, end in cut(len(order), cost):
            members = order[start:end]
            groups.append(
                _group(
                    [lengths[row] for row in members],
                    [counts[row] for row in members],
                    [starts[row] for row in members],
                    block_tables[members],
                    page_size=page_size,
                    heads=heads,
                )
            )
        return PrefillPlan(page_size, groups)

    def __call__(
        self, q: Tensor, cache: Tensor, plan: PrefillPlan, *, scale: float, rank: int, expand: Expand
    ) -> Tensor:
        buffers = self._buffers
        take = buffers.take
        tokens, heads, head_dim = q.shape
        width = cache.shape[1]
        paged = cache.view(-1, plan.page_size * width)
        out: Tensor | None = None
        for group in plan.groups:
            rows, queries, length = group.rows, group.queries, group.length
            pages = torch.index_select(
                paged, 0, group.pages, out=take((len(group.pages), paged.shape[1]), cache.dtype)
            )
            kv = contiguous(pages.view(rows, -1, width)[:, :length], buffers).view(-1, width)
            if latents.in_fp8(cache):
                buffers.bypass()
            key_nope, value = expand(latents.latent_part(kv, rank, q.dtype))
            rope = head_dim - key_nope.shape[-1]
            turned = latents.rope_part(kv, rank, rope, q.dtype).expand(heads, -1, -1)
            shape = (heads, len(kv), key_nope.shape[-1] + turned.shape[-1])
            key = torch.cat((key_nope, turned), dim=-1, out=take(shape, q.dtype))
            padded = torch.index_select(
                q, 0, group.gather, out=take((len(group.gather), heads, head_dim), q.dtype)
            ).view(rows, queries, heads, head_dim)
            result = _attend(
                contiguous(padded.permute(2, 0, 1, 3), buffers).view(heads * rows, queries, head_dim),
                key.view(heads * rows, length, -1),
                value.reshape(heads * rows, length, -1),
                group,
                scale,
                buffers,
            )
            result = result.view(heads, rows * queries, -1).transpose(0, 1)
            places = group.gather
            if group.own is not None:
                result, places = result.index_select(0, group.own), places.index_select(0, group.own)
            if out is None:
                out = empty((tokens, heads, result.shape[-1]), q, buffers)
            out.index_copy_(0, places, result)
        assert out is not None, "a plan has a row"
        return out


def _attend(
    query: Tensor, key: Tensor, value: Tensor, group: Group, scale: float, buffers: Buffers
) -> Tensor:
    """query [h * rows, queries, n], key [h * rows, length, n], value [h * rows, length, v]; gives [.., queries, v]."""
    out = empty((*query.shape[:2], value.shape[-1]), query, buffers)
    unused = query.new_empty(())  # baddbmm's summand, which beta = 0 leaves out: this way the scale is free
    for start, end, keys, seen, hidden in group.blocks:
        # Copied here, row by row: oneDNN would copy the transposed slice of a batch element by element.
        seen_keys = contiguous(key[:, :keys], buffers).transpose(1, 2)
        shape = (query.shape[0], end - start, keys)
        scores = torch.baddbmm(
            unused,
            query[:, start:end],
            seen_keys,
            beta=0,
            alpha=scale,
            out=buffers.take(shape, query.dtype),
        )
        scores.unflatten(0, (-1, group.rows))[..., seen:].masked_fill_(hidden, -math.inf)
        shares = torch.softmax(scores, -1, out=buffers.take(shape, query.dtype))
        out[:, start:end] = torch.bmm(
            shares, value[:, :keys], out=buffers.take((*shape[:2], value.shape[-1]), query.dtype)
        )
    return out


def _group(
    lengths: list[int], counts: list[int], starts: list[int], tables: Tensor, *, page_size: int, heads: int
) -> Group:
    device = tables.device
    rows, queries, length = len(lengths), max(counts), max(lengths)
    count = torch.tensor(counts, device=device).unsqueeze(1)
    offset = torch.arange(queries, device=device)
    gather = torch.tensor(starts, device=device).unsqueeze(1) + torch.minimum(offset, count - 1)
    own = None
    if min(counts) < queries:
        own = torch.cat([torch.arange(n, device=device) + row * queries for row, n in enumerate(counts)])
    before = [total - n for total, n in zip(lengths, counts, strict=True)]
    before_of = torch.tensor(before, device=device).view(-1, 1, 1)
    block = max(_LEAST_BLOCK, min(_BLOCK, _MOST_SCORES // (heads * rows * length)))
    blocks: list[Block] = []
    for start in range(0, queries, block):
        end = min(start + block, queries)
        keys = min(length, max(before) + end)
        seen = min(keys, min(before) + start + 1)
        place = before_of + torch.arange(start, end, device=device).unsqueeze(1)
        blocks.append(Block(start, end, keys, seen, torch.arange(seen, keys, device=device) > place))
    pages = tables[:, : -(-length // page_size)].flatten()
    return Group(rows, queries, length, pages, gather.flatten(), own, blocks)
