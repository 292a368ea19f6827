"""Filter and draw in torch: tensors in, token ids out, with no knowledge of sequences.

A row takes one of four ways, by its own parameters alone, so that it gets the same token in any batch:

- greedy (temperature 0): the first maximum;
- whole (no filter): inverse CDF over the vocabulary in id order;
- top_k: inverse CDF over the best candidates in descending order, as many as the largest top_k of the group;
- nucleus (top_p or min_p without a small top_k): the same over a prefix, widened for the rows that need more.

Filters, each on what the one before left: temperature, min_p, top_k, top_p. Sums that decide run in float64 and in a
fixed sequence, so that a longer list of candidates does not change a shorter one's.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..operations import GREEDY_BELOW
from .select import blocks, first_max, index_of, rows_at_once, top_values

TOP_K_BOUND = 1024  # a larger top_k goes the nucleus way
PREFIXES = (256, 4096)  # candidates that a nucleus row tries before its whole row is sorted


class Way(enum.Enum):
    GREEDY = enum.auto()
    WHOLE = enum.auto()
    TOP_K = enum.auto()
    NUCLEUS = enum.auto()


@dataclass(frozen=True, slots=True)
class Group:
    """R rows of a batch that go one way, and their parameters, [R] each, on the logits' device."""

    way: Way
    rows: slice | Tensor  # which rows of the batch
    temperature: Tensor  # float32
    top_k: Tensor  # int64, the vocabulary's size when there is none
    top_p: Tensor  # float64
    min_p: Tensor  # float32, at least the smallest normal number: what weighs less weighs nothing
    unlimited: Tensor  # bool: neither top_k nor min_p
    some_unlimited: bool
    widest: int  # the largest top_k

    def take(self, members: Tensor) -> Group:
        return replace(
            self,
            rows=members,
            temperature=self.temperature[members],
            top_k=self.top_k[members],
            top_p=self.top_p[members],
            min_p=self.min_p[members],
            unlimited=self.unlimited[members],
        )


def groups_of(
    *,
    temperature: Sequence[float],
    top_k: Sequence[int],
    top_p: Sequence[float],
    min_p: Sequence[float],
    vocab_size: int,
    device: torch.device,
) -> tuple[Group, ...]:
    """Lay out a batch for `draw`. top_k 0, or past the vocabulary, is none; top_p 1 and min_p 0 are none."""
    limits = [k if 0 < k < vocab_size else vocab_size for k in top_k]
    unlimited = [limit == vocab_size and least == 0 for limit, least in zip(limits, min_p, strict=True)]
    members: dict[Way, list[int]] = {way: [] for way in Way}
    for row, (heat, limit, mass) in enumerate(zip(temperature, limits, top_p, strict=True)):
        if heat < GREEDY_BELOW:
            way = Way.GREEDY
        elif unlimited[row] and mass >= 1:
            way = Way.WHOLE
        else:
            way = Way.TOP_K if limit <= min(TOP_K_BOUND, vocab_size - 1) else Way.NUCLEUS
        members[way].append(row)

    def group(way: Way, rows: list[int]) -> Group:
        def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor([values[r] for r in rows], dtype=dtype).to(device)

        run = rows[-1] - rows[0] + 1 == len(rows)
        return Group(
            way=way,
            rows=slice(rows[0], rows[-1] + 1) if run else torch.tensor(rows, device=device),
            temperature=column(temperature, torch.float32),
            top_k=column(limits, torch.int64),
            top_p=column(top_p, torch.float64),
            min_p=column(min_p, torch.float32).clamp(min=torch.finfo(torch.float32).tiny),
            unlimited=column(unlimited, torch.bool),
            some_unlimited=any(unlimited[r] for r in rows),
            widest=max(limits[r] for r in rows),
        )

    at_once = rows_at_once(len(limits), vocab_size, device)
    return tuple(
        group(way, rows[start : start + at_once])
        for way, rows in members.items()
        for start in range(0, len(rows), at_once)
    )


def draw(logits: Tensor, groups: Sequence[Group], uniform: Tensor) -> Tensor:
    """Choose one token a row: logits [S, V] float32 and uniform [S] float64 in [0, 1) give [S] int64.

    Logits are finite, or -inf for a token that must not come; each row has a finite one.
    """
    chosen = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    for group in groups:
        mine = logits[group.rows]
        match group.way:
            case Way.GREEDY:
                chosen[group.rows] = first_max(mine)
            case Way.WHOLE:
                chosen[group.rows] = _whole(mine, group, uniform[group.rows])
            case Way.TOP_K:
                chosen[group.rows] = _top_k(mine, group, uniform[group.rows])
            case Way.NUCLEUS:
                chosen[group.rows] = _nucleus(mine, group, uniform[group.rows])
    return chosen


def _whole(logits: Tensor, group: Group, uniform: Tensor) -> Tensor:
    """Two levels, so that only block sums and one block a row are summed up in float64."""
    cells = blocks(_scaled(logits, group).softmax(dim=-1))
    cumulative = cells.sum(dim=-1).double().cumsum(dim=-1)
    end = cumulative[:, -1]
    block = _inverse(cumulative, uniform * end, end)
    below = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    inside = cells[torch.arange(len(block), device=block.device), block].double().cumsum(dim=-1)
    return block * cells.shape[-1] + _inverse(inside, uniform * end - below, inside[:, -1])


def _top_k(logits: Tensor, group: Group, uniform: Tensor) -> Tensor:
    values = top_values(logits, group.widest)
    cumulative, kept = _candidates(values, group)
    return _id_at(logits, values, _rank(cumulative, kept, _total(cumulative, kept), group, uniform))


def _nucleus(logits: Tensor, group: Group, uniform: Tensor) -> Tensor:
    vocab_size = logits.shape[1]
    chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    mass = (
        _mass(logits, group) if group.some_unlimited else torch.zeros_like(uniform)
    )  # no row looks at zeros
    left = torch.arange(len(logits), device=logits.device)  # rows still without a token
    for width in (*(w for w in PREFIXES if w < vocab_size), vocab_size):
        values = top_values(logits, width)
        cumulative, kept = _candidates(values, group)
        # Where a filter cuts inside the candidates, all that it keeps is here. Elsewhere a row without other filters
        # needs only the whole row's mass, and enough of it here.
        inside = (kept < width) | (width == vocab_size)
        total = torch.where(inside, _total(cumulative, kept), mass)
        enough = inside | (group.unlimited & (cumulative[:, -1] >= group.top_p * mass))
        chosen[left] = _id_at(logits, values, _rank(cumulative, kept, total, group, uniform))
        short = (~enough).nonzero()[:, 0]
        if not len(short):
            break
        left, logits, group = left[short], logits[short], group.take(short)
        uniform, mass = uniform[short], mass[short]
    return chosen


def _mass(logits: Tensor, group: Group) -> Tensor:
    """Each row's whole weight, the best one weighing 1: [R] float64. By softmax, which goes row by row."""
    return 1.0 / _scaled(logits, group).softmax(dim=-1).amax(dim=-1).double()


def _scaled(logits: Tensor, group: Group) -> Tensor:
    """Logits below each row's largest, over the temperature: at most 0, so that no exponential overflows."""
    return (logits - logits.amax(dim=-1, keepdim=True)).div_(group.temperature[:, None])


def _candidates(values: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Cumulative weights of candidates `values`, both [R, K], descending, and how many of them are kept, [R].

    The best weighs 1, so min_p compares with the weight. min_p and top_k cut the descending order at one place each.
    """
    weights = _scaled(values, group).exp_()
    kept = (weights >= group.min_p[:, None]).sum(dim=-1).minimum(group.top_k)
    return weights.double().cumsum(dim=-1), kept


def _total(cumulative: Tensor, kept: Tensor) -> Tensor:
    return cumulative.gather(1, kept[:, None] - 1)[:, 0]


def _rank(cumulative: Tensor, kept: Tensor, total: Tensor, group: Group, uniform: Tensor) -> Tensor:
    """Cut by top_p, as a share of `total` [R], and draw: the candidate's place in the descending order, [R]."""
    nucleus = (
        1 + torch.searchsorted(cumulative, (group.top_p * total)[:, None])[:, 0]
    )  # the first to reach the share
    end = _total(cumulative, kept.minimum(nucleus))
    return _inverse(cumulative, uniform * end, end)


def _inverse(cumulative: Tensor, target: Tensor, end: Tensor) -> Tensor:
    """The first place whose cumulative weight is above `target`, which is held below `end`.

    A block's sum in float32 can be above that of its parts in float64; held below, a target there falls to the last
    place that weighs anything. cumulative [R, K] float64, target and end [R] float64; returns [R] int64.
    """
    target = target.minimum(torch.nextafter(end, torch.zeros_like(end)))
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def _id_at(logits: Tensor, values: Tensor, rank: Tensor) -> Tensor:
    """The token id at a place of the descending order, of which `values` is the beginning."""
    value = values.gather(1, rank[:, None])
    return index_of(logits, value[:, 0], rank - (values > value).sum(dim=-1))


class TorchSample:
    """Each way's rows together, as many at once as fit a cache."""

    def plan(
        self,
        *,
        temperature: Sequence[float],
        top_k: Sequence[int],
        top_p: Sequence[float],
        min_p: Sequence[float],
        vocab_size: int,
        device: torch.device,
    ) -> tuple[Group, ...]:
        return groups_of(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            vocab_size=vocab_size,
            device=device,
        )

    def __call__(self, logits: Tensor, plan: tuple[Group, ...], uniform: Tensor) -> Tensor:
        return draw(logits, plan, uniform)

    def not_finite(self, logits: Tensor) -> list[int]:
        return not_finite(logits)


def not_finite(logits: Tensor) -> list[int]:
    """A sum is finite unless a term is not (or it overflows), so one reduction clears a sound batch."""
    suspect = (~logits.sum(dim=-1).isfinite()).nonzero()[:, 0]
    if not len(suspect):
        return []
    return suspect[(~logits[suspect].isfinite()).any(dim=-1)].tolist()
