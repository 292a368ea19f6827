"""The dense layout of the latents, kept for comparison: a batch's rows in one tensor a layer, front-aligned.

A row's tokens stand in neighbouring columns and all rows end at the same one, where the next tokens are appended.
Before a row's first token lies its lead pad, a dead prefix. A row's token at position p is in column lead + p: its
length is its own and never the tensor's width. docs/dense-layout.md says what the two designs do with the dead prefix,
and what that costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .config import ModelConfig

SlotKind = Literal["latent", "prediction"]
CUT = frozenset(
    {"latent", "prediction"}
)  # kinds that hold a value a token, in order: their front can be cut off
GONE = -1  # in the place of a row that left the batch; sequence numbers start at 0
COPIES: tuple[str, ...] = ("clone_in.alloc", "clone_in.slice_set", "clone_out", "front_pad_grow", "grow")
_ROUND = 64  # columns: a cohort that grows by a token a step is given room for so many at once


class SlotKindError(Exception):
    """A row's cache has a part that this design does not know how to treat."""


class DenseCache:
    """What the model writes and reads in a step, as `LatentCache` is, with rows in the place of pages.

    Between steps it keeps the rows of the last step where they are, until others run; those are set aside as copies of
    their own.
    """

    page_size = 1  # of what the batch calls pages: every column is one

    def __init__(
        self, config: ModelConfig, *, prediction: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.width = config.latent_width
        self.kinds: tuple[str, ...] = ("latent",) * config.layers + ("prediction",) * prediction
        self.columns = 0  # that there is room for
        self.end = 0  # the column behind every row's last token of this step
        self.rows: list[int] = []  # sequence numbers
        self.leads: list[int] = []
        # Copies and allocations since the start, by what made them.
        self.done: Counter[str] = Counter(dict.fromkeys(COPIES, 0))
        self._dtype = dtype
        self._device = device
        self._slots: list[Tensor] = [self._empty(0, 0) for _ in self.kinds]  # [rows, columns, width]
        self._lengths: dict[int, int] = {}  # of every row that is known, in the batch or aside
        self._aside: dict[int, list[Tensor]] = {}  # [length, width] for each slot
        self._flat: list[Tensor] = []

    @property
    def layers(self) -> list[Tensor]:
        return self._flat[: self.kinds.count("latent")]

    @property
    def prediction(self) -> Tensor | None:
        return self._flat[-1] if self.kinds[-1] == "prediction" else None

    def __len__(self) -> int:
        return len(self._lengths)

    # -- a step -----------------------------------------------------------------------------------------------------

    def open(self, rows: list[int], computed: list[int], counts: list[int], slack: int, strip: bool) -> None:
        """Before a forward: bring `rows` together, with room for counts[r] tokens behind their computed[r], and for
        `slack` columns behind all of them.
        """
        for row, own in zip(rows, computed, strict=True):
            if (held := self._lengths.setdefault(row, 0)) != own:
                raise RuntimeError(f"row {row} has {held} tokens here and {own} in its sequence")
        if rows == self.rows and not strip:
            self.front_align([own + new for own, new in zip(computed, counts, strict=True)], slack)
            return
        self.clone_out([row for row in self.rows if row != GONE])
        self.clone_in(rows, counts, slack)

    def close(self, lengths: Mapping[int, int], strip: bool) -> None:
        """After a forward: how many tokens of each row count. Under strip every row is taken apart again."""
        self._lengths.update(lengths)
        if strip:
            self.clone_out([row for row in self.rows if row != GONE])
            self.rows, self.leads = [], []

    def drop(self, row: int) -> None:
        """The row has ended, or gave its place away."""
        self._lengths.pop(row, None)
        self._aside.pop(row, None)
        self.rows = [GONE if each == row else each for each in self.rows]  # it may come again, from nothing

    def first(self, rows: Sequence[int]) -> list[int]:
        """The slot of each row's first token: its row in the batch times the columns, plus its lead."""
        place = {row: at for at, row in enumerate(self.rows)}
        return [place[row] * self.columns + self.leads[place[row]] for row in rows]

    # -- copies, each a method so that a profiler can time it ----------------------------------------------------------

    def clone_in(self, rows: list[int], counts: list[int], slack: int) -> None:
        """Assemble the batch from rows that are aside, each ending at the longest one's end."""
        after = [self._lengths[row] + new for row, new in zip(rows, counts, strict=True)]
        self.rows, self.end = list(rows), max(after)
        self.leads = [self.end - length for length in after]
        self.alloc(len(rows), self.end + slack)
        for at, row in enumerate(rows):
            parts = self._aside.pop(row, None)
            if parts is not None:
                self.slice_set(at, parts)

    def alloc(self, rows: int, columns: int) -> None:
        """Zeroed: a dead prefix is masked, and zero weight times what is not finite would not be zero."""
        self.columns = -(-columns // _ROUND) * _ROUND
        self._slots = [self._empty(rows, self.columns) for _ in self.kinds]
        self._flat = [slot.view(-1, self.width) for slot in self._slots]
        self.done["clone_in.alloc"] += len(self.kinds)

    def slice_set(self, at: int, parts: list[Tensor]) -> None:
        lead = self.leads[at]
        for slot, part in zip(self._slots, parts, strict=True):
            slot[at, lead : lead + len(part)] = part
        self.done["clone_in.slice_set"] += len(parts)

    def clone_out(self, rows: list[int]) -> None:
        """Set rows of the batch aside, each at its own length."""
        for row in rows:
            at = self.rows.index(row)
            self._aside[row] = [
                self.drop_dead_prefix(kind, slot[at], self.leads[at], self._lengths[row])
                for kind, slot in zip(self.kinds, self._slots, strict=True)
            ]
            self.done["clone_out"] += len(self.kinds)

    def drop_dead_prefix(self, kind: str, row: Tensor, lead: int, length: int) -> Tensor:
        """[length, width]: what a row of the batch [columns, width] holds itself. Raises SlotKindError."""
        if kind not in CUT:
            known = ", ".join(sorted(CUT))
            raise SlotKindError(
                f"a slot of kind {kind!r} cannot have its dead prefix cut off (known: {known})"
            )
        return row[lead : lead + length].clone()

    def front_align(self, after: list[int], slack: int) -> None:
        """Let rows that advanced less than others catch up, so that all end at one column after this step too."""
        self.end = max(lead + length for lead, length in zip(self.leads, after, strict=True))
        if self.end + slack > self.columns:
            self.grow(self.end + slack)
        for at, length in enumerate(after):
            lead = self.end - length
            if lead > self.leads[at]:
                self.front_pad_grow(at, lead)

    def front_pad_grow(self, at: int, lead: int) -> None:
        """Widen the lead pad of one row: its tokens move to the right."""
        old, length = self.leads[at], self._lengths[self.rows[at]]
        for slot in self._slots:
            slot[at, lead : lead + length] = slot[at, old : old + length].clone()
        self.leads[at] = lead
        self.done["front_pad_grow"] += len(self._slots)

    def grow(self, columns: int) -> None:
        """More columns behind the last."""
        old, self.columns = self.columns, -(-columns // _ROUND) * _ROUND
        for number, slot in enumerate(self._slots):
            wider = self._empty(len(self.rows), self.columns)
            wider[:, :old] = slot
            self._slots[number] = wider
        self._flat = [slot.view(-1, self.width) for slot in self._slots]
        self.done["grow"] += len(self._slots)

    def _empty(self, rows: int, columns: int) -> Tensor:
        return torch.zeros(rows, columns, self.width, dtype=self._dtype, device=self._device)


class DensePlan(NamedTuple):
    columns: int
    rows: slice | Tensor  # of the batch
    low: int  # the columns that any row sees: [low, high)
    high: int
    gather: (
        Tensor | None
    )  # [R * most] int64: the rows' queries, a shorter row's last one repeated; None: as they came
    own: Tensor | None  # which of them are no copies
    most: int  # queries of a row
    hidden: Tensor  # [R, most, 1, high - low] bool: the dead prefix, and what comes after the query


class DenseMlaDecode:
    """The decode rows' attention over the dense layout: the batch tensor is the operand, and nothing is gathered.

    Takes the place of a backend's `mla_decode` for a model whose cache is dense; there block_tables[r, 0] is the slot
    of row r's first token.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        """`columns`: those of the cache in this step."""
        self._columns = columns

    def plan(
        self, lengths: Sequence[int], counts: Sequence[int], block_tables: Tensor, page_size: int, width: int
    ) -> DensePlan:
        columns, device = self._columns(), block_tables.device
        firsts = block_tables[:, 0].tolist()
        rows = [first // columns for first in firsts]
        leads = torch.tensor([first % columns for first in firsts], device=device)
        own = torch.tensor(lengths, device=device)
        many = torch.tensor(counts, device=device)
        low, high, most = int(leads.min()), int((leads + own).max()), max(counts)
        query = torch.arange(most, device=device).minimum(many[:, None] - 1)  # [R, most]
        seen = (leads + own - many)[:, None] + query  # the column of each query's own token
        column = torch.arange(low, high, device=device)
        hidden = (column < leads[:, None])[:, None] | (column > seen[:, :, None])
        gather = copies = None
        if min(counts) < most:
            starts = many.cumsum(0) - many
            gather = (starts[:, None] + query).flatten()
            copies = (torch.arange(most, device=device) < many[:, None]).flatten()
        run = rows == list(range(rows[0], rows[0] + len(rows)))
        return DensePlan(
            columns=columns,
            rows=slice(rows[0], rows[0] + len(rows)) if run else torch.tensor(rows, device=device),
            low=low,
            high=high,
            gather=gather,
            own=copies,
            most=most,
            hidden=hidden[:, :, None],
        )

    def __call__(self, q: Tensor, cache: Tensor, plan: DensePlan, *, scale: float, rank: int) -> Tensor:
        _, heads, width = q.shape
        kv = cache.view(-1, plan.columns, width)[plan.rows, plan.low : plan.high]
        if plan.gather is not None:
            q = q.index_select(0, plan.gather)
        q = q.reshape(len(kv), plan.most * heads, width)
        scores = torch.bmm(q, kv.transpose(1, 2)).mul_(scale).view(len(kv), plan.most, heads, -1)
        weights = scores.masked_fill_(plan.hidden, -torch.inf).softmax(-1)
        out = torch.bmm(weights.view(len(kv), plan.most * heads, -1), kv).view(-1, heads, width)
        if plan.own is not None:
            out = out[plan.own]
        return out[..., :rank]
