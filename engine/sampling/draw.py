"""Filter and draw: tensors in, token ids out, with no knowledge of sequences. To move behind the seam of kernels/.

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

from .select import blocks, first_max, index_of, rows_at_once, top_values

TOP_K_BOUND = 1024  # a larger top_k goes the nucleus way
PREFIX = 256  # candidates that a nucleus row tries first
WIDEN = 16  # by how much more it tries if they hold too little
GREEDY_BELOW = (
    1e-5  # a temperature below it is greedy, as in vLLM: logits 1e-4 apart are e^10 apart in weight there
)


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
    members: dict[Way, list[int]] = {way: [] for way in Way}
    for row, (heat, limit, mass, least) in enumerate(zip(temperature, limits, top_p, min_p, strict=True)):
        if heat < GREEDY_BELOW:
            way = Way.GREEDY
        elif limit == vocab_size and mass >= 1 and least == 0:
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
            unlimited=column(
                [limit == vocab_size and m == 0 for limit, m in zip(limits, min_p, strict=True)], torch.bool
            ),
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
                width = min(PREFIX, logits.shape[1])
                chosen[group.rows] = _nucleus(mine, group, uniform[group.rows], width)
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


def _nucleus(logits: Tensor, group: Group, uniform: Tensor, width: int) -> Tensor:
    values = top_values(logits, width)
    cumulative, kept = _candidates(values, group)
    total = _total(cumulative, kept)
    short = None
    if width < logits.shape[1]:
        # Where a filter cuts inside the candidates, all that it keeps is here. Elsewhere a row without other filters
        # needs only the whole row's weight, and enough of it here.
        open_end = kept == width
        if open_end.any():
            mass = 1.0 / _scaled(logits, group).softmax(dim=-1).amax(dim=-1).double()
            total = torch.where(open_end, mass, total)
            covered = group.unlimited & (cumulative[:, -1] >= group.top_p * mass)
            short = (open_end & ~covered).nonzero()[:, 0]
    chosen = _id_at(logits, values, _rank(cumulative, kept, total, group, uniform))
    if short is not None and len(short):
        wider = min(WIDEN * width, logits.shape[1])
        chosen[short] = _nucleus(logits[short], group.take(short), uniform[short], wider)
    return chosen


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
    nucleus = 1 + (cumulative < (group.top_p * total)[:, None]).sum(dim=-1)
    end = _total(cumulative, kept.minimum(nucleus))
    return _inverse(cumulative, uniform * end, end)


def _inverse(cumulative: Tensor, target: Tensor, end: Tensor) -> Tensor:
    """The first place whose cumulative weight is above `target`, which is held below `end`.

    A uniform just under 1 times the end can round up to the end itself; held below, it falls to the last place that
    weighs anything. cumulative [R, K] float64, target and end [R] float64; returns [R] int64.
    """
    target = target.minimum(torch.nextafter(end, torch.zeros_like(end)))
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def _id_at(logits: Tensor, values: Tensor, rank: Tensor) -> Tensor:
    """The token id at a place of the descending order, of which `values` is the beginning."""
    value = values.gather(1, rank[:, None])
    return index_of(logits, value[:, 0], rank - (values > value).sum(dim=-1))
