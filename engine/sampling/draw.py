"""Filter and draw: tensors in, token ids out, with no knowledge of sequences. To move behind the seam of kernels/.

A row takes one of four ways, by its own parameters alone, so that it gets the same token in any batch:

- greedy (temperature 0): the first maximum;
- whole: no top_k, no top_p: inverse CDF over the vocabulary in id order, min_p as a mask;
- top_k: inverse CDF over the best candidates in descending order, as many as the largest top_k of the batch;
- nucleus: top_p without a top_k: the same over a prefix, and over the whole sorted row if the prefix holds too little.

Sums that decide run in float64 and in a fixed sequence, so a longer candidate list does not change a shorter one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .select import blocks, first_max, index_of, top_values

TOP_K_BOUND = 1024  # a larger top_k goes the nucleus way: partial selection no longer pays
PREFIX = 256  # candidates that a nucleus row tries before its whole row is sorted


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one way and their parameters, [R] each. `rows` is None when it is every row of the batch."""

    rows: Tensor | None
    temperature: Tensor  # float32
    top_k: Tensor  # int64, V when there is none
    top_p: Tensor  # float64
    min_p: Tensor  # float32
    widest: int  # the largest top_k
    masked: bool  # some min_p is above 0
    vocab_size: int

    def take(self, rows: Tensor) -> Group:
        return replace(
            self,
            rows=None,
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
        )


@dataclass(frozen=True, slots=True)
class Ways:
    """A batch's rows by way; None where a way has no rows."""

    greedy: Group | None
    whole: Group | None
    top_k: Group | None
    nucleus: Group | None

    @property
    def random(self) -> bool:
        return self.whole is not None or self.top_k is not None or self.nucleus is not None


def ways(
    temperature: Sequence[float],
    top_k: Sequence[int],
    top_p: Sequence[float],
    min_p: Sequence[float],
    vocab_size: int,
    device: torch.device,
) -> Ways:
    """Sort rows by way. top_k 0, or past the vocabulary, is none; top_p 1 is none; temperature 0 is greedy."""
    limits = [k if 0 < k < vocab_size else vocab_size for k in top_k]
    members: dict[str, list[int]] = {"greedy": [], "whole": [], "top_k": [], "nucleus": []}
    for row, (heat, limit, mass) in enumerate(zip(temperature, limits, top_p, strict=True)):
        if heat == 0:
            way = "greedy"
        elif limit == vocab_size and mass >= 1:
            way = "whole"
        else:
            way = "top_k" if limit <= min(TOP_K_BOUND, vocab_size - 1) else "nucleus"
        members[way].append(row)

    def group(rows: list[int]) -> Group | None:
        if not rows:
            return None

        def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor([values[r] for r in rows], dtype=dtype).to(device)

        return Group(
            rows=None if len(rows) == len(limits) else torch.tensor(rows, device=device),
            temperature=column(temperature, torch.float32),
            top_k=column(limits, torch.int64),
            top_p=column(top_p, torch.float64),
            min_p=column(min_p, torch.float32),
            widest=max(limits[r] for r in rows),
            masked=any(min_p[r] > 0 for r in rows),
            vocab_size=vocab_size,
        )

    return Ways(**{way: group(rows) for way, rows in members.items()})


def draw(logits: Tensor, batch: Ways, uniform: Tensor) -> Tensor:
    """Choose one token a row. logits [S, V] float32, finite or -inf with one finite a row; uniform [S] float64 in [0, 1).

    Returns [S] int64. Order of the filters, each on what the one before left: temperature, min_p, top_k, top_p.
    """
    chosen = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    for group, way in (
        (batch.greedy, _greedy),
        (batch.whole, _whole),
        (batch.top_k, _top_k),
        (batch.nucleus, _nucleus),
    ):
        if group is None:
            continue
        if group.rows is None:
            return way(logits, group, uniform)
        chosen[group.rows] = way(logits[group.rows], group, uniform[group.rows])
    return chosen


def _greedy(logits: Tensor, group: Group, uniform: Tensor) -> Tensor:
    return first_max(logits)


def _whole(logits: Tensor, group: Group, uniform: Tensor) -> Tensor:
    """Two levels, so that only block sums and one block a row are summed up in float64."""
    cells = blocks(_weights(logits, group))
    cumulative = cells.sum(dim=-1).double().cumsum(dim=-1)
    end = cumulative[:, -1]
    block = _inverse(cumulative, uniform * end, end)
    below = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    inside = cells[torch.arange(len(block), device=block.device), block].double().cumsum(dim=-1)
    return block * cells.shape[-1] + _inverse(inside, uniform * end - below, inside[:, -1])


def _top_k(logits: Tensor, group: Group, uniform: Tensor) -> Tensor:
    values = top_values(logits, group.widest)
    rank, _ = _rank(values, group, uniform, None)
    return _id_at(logits, values, rank)


def _nucleus(logits: Tensor, group: Group, uniform: Tensor) -> Tensor:
    if logits.shape[1] <= PREFIX:
        return _nucleus_of_all(logits, group, uniform)
    values = top_values(logits, PREFIX)
    mass = blocks(_weights(logits, group)).sum(dim=-1).double().cumsum(dim=-1)[:, -1]
    rank, enough = _rank(values, group, uniform, mass)
    chosen = _id_at(logits, values, rank.clamp(max=PREFIX - 1))
    short = (~enough).nonzero()[:, 0]
    if len(short):
        chosen[short] = _nucleus_of_all(logits[short], group.take(short), uniform[short])
    return chosen


def _nucleus_of_all(logits: Tensor, group: Group, uniform: Tensor) -> Tensor:
    values = top_values(logits, logits.shape[1])
    rank, _ = _rank(values, group, uniform, None)
    return _id_at(logits, values, rank)


def _weights(logits: Tensor, group: Group) -> Tensor:
    """exp((logit - the row's largest) / temperature), 0 where min_p cuts; [R, V] float32.

    The largest weighs 1 and none overflows, so min_p compares with the weight itself.
    """
    weights = (logits - logits.amax(dim=-1, keepdim=True)).div_(group.temperature[:, None]).exp_()
    if group.masked:
        weights.masked_fill_(weights < group.min_p[:, None], 0.0)
    return weights


def _rank(values: Tensor, group: Group, uniform: Tensor, mass: Tensor | None) -> tuple[Tensor, Tensor]:
    """Filter and draw among the candidates `values` [R, K], descending.

    `mass` [R] is the weight of all that min_p keeps of the row, for candidates that may be too few; None says that they
    hold all that the filters can keep. Returns the drawn candidate's place, [R], and whether they were enough, [R].
    """
    width = values.shape[1]
    weights = ((values - values[:, :1]).double() / group.temperature[:, None]).exp()
    cumulative = weights.cumsum(dim=-1)
    kept = (weights >= group.min_p[:, None]).sum(dim=-1).minimum(group.top_k)
    total = cumulative.gather(1, kept[:, None] - 1)[:, 0]
    enough = torch.ones_like(kept, dtype=torch.bool)
    if mass is not None:
        cut = kept < width  # min_p cuts inside the prefix, so what it keeps is all here
        total = torch.where(cut, total, mass)
        enough = cut | ((group.top_k >= group.vocab_size) & (cumulative[:, -1] >= group.top_p * mass))
    nucleus = 1 + (cumulative < (group.top_p * total)[:, None]).sum(dim=-1)
    end = cumulative.gather(1, kept.minimum(nucleus)[:, None] - 1)[:, 0]
    return _inverse(cumulative, uniform * end, end), enough


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
