"""Proposes the tokens that come next, by the model's own prediction layer, for all rows of a step together.

Once a step's tokens are chosen, the layer runs over all tokens that the step computed, prompt chunks included, each
with the token that follows it. The last one of a row gives its first draft; further drafts are one query a row each, on
the layer's own output. Their latents lie in slots past the sequence's tokens, and are written anew when the true tokens
are known.

A row is left alone, and named, when the layer missed some of its tokens (they were computed while spec.depth was 0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..model.prediction import Predicted, PredictionLayer
from ..scheduler.types import Row, Step
from ..sequence import Sequence
from .layout import Layout

INCOMPLETE = "computed without speculation"
NO_PAGES = "no free page for drafts"


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a step proposes."""

    by_number: dict[
        int, tuple[int, ...]
    ]  # every row whose latents are complete; () where nothing is to be drafted
    left_out: Counter[str]  # rows that go on without drafts, by why


@dataclass(frozen=True, slots=True)
class _Part:
    """What one row computed in this step."""

    seq: Sequence
    start: int
    following: list[int]  # the token after each computed one
    first: int  # the row's first token in the step's batch
    decode: bool
    wanted: int  # drafts

    @property
    def end(self) -> int:
        return self.start + len(self.following)


class Drafter:
    def __init__(self, head: PredictionLayer, layout: Layout, page_size: int, max_model_len: int) -> None:
        self.head = head
        self._cache = layout.cache
        self._layout = layout
        self._page_size = page_size
        self._max_model_len = max_model_len

    def draft(
        self, step: Step, hidden: Tensor, new: dict[int, tuple[int, ...]], faulty: set[int], depth: int
    ) -> Drafts:
        """`hidden` [T, H] of the step's tokens; `new` (what rows sampled) and `faulty` go by sequence number.

        `depth`: most drafts of a row.
        """
        left_out: Counter[str] = Counter()
        parts = self._parts(step, new, faulty, depth, left_out)
        if not parts:
            return Drafts({}, left_out)
        drafting = [part for part in parts if part.wanted]
        last = self.first(parts, hidden)
        columns = [last.token_ids]
        for place in range(1, max((part.wanted for part in drafting), default=0)):
            going = [index for index, part in enumerate(drafting) if part.wanted > place]
            if len(going) < len(columns[-1]):
                kept = [index for index, part in enumerate(drafting) if part.wanted >= place]
                rows = self._layout.to_device(
                    np.array([kept.index(index) for index in going], dtype=np.int64)
                )
                last = Predicted(last.token_ids.index_select(0, rows), last.hidden.index_select(0, rows))
            last = self.further([drafting[index] for index in going], place, last)
            columns.append(last.token_ids)
        proposed: list[list[int]] = [[] for _ in drafting]
        for place, column in enumerate(columns):
            rows = (index for index, part in enumerate(drafting) if part.wanted > place)
            for index, token in zip(rows, column.tolist(), strict=True):
                proposed[index].append(token)
        by_number = {part.seq.number: () for part in parts}
        by_number |= {part.seq.number: tuple(tokens) for part, tokens in zip(drafting, proposed, strict=True)}
        return Drafts(by_number, left_out)

    def first(self, parts: Rows[_Part], hidden: Tensor) -> Predicted:
        """The layer over all that the step computed, and the first draft of the parts that want one."""
        counts = [len(part.following) for part in parts]
        ends = np.cumsum(counts)
        if sum(counts) < len(hidden):
            taken = np.concatenate(
                [np.arange(part.first, part.first + len(part.following)) for part in parts]
            )
            hidden = hidden.index_select(0, self._layout.to_device(taken))
        batch = self._layout.batch(
            [part.seq for part in parts],
            np.array([part.start for part in parts], dtype=np.int64),
            counts,
            [token for part in parts for token in part.following],
            sum(part.decode for part in parts),
            [int(end) - 1 for part, end in zip(parts, ends, strict=True) if part.wanted],
        )
        return self.head.forward(batch, hidden, self._cache)

    def further(self, parts: Rows[_Part], place: int, last: Predicted) -> Predicted:
        """The draft at `place` of each part, from those before it."""
        batch = self._layout.decode_batch(
            [part.seq for part in parts],
            [part.end - 1 + place for part in parts],
            last.token_ids,
        )
        return self.head.forward(batch, last.hidden, self._cache)

    def _parts(
        self,
        step: Step,
        new: dict[int, tuple[int, ...]],
        faulty: set[int],
        depth: int,
        left_out: Counter[str],
    ) -> list[_Part]:
        parts: list[_Part] = []
        first = 0
        for row in step.rows:
            seq, begin = row.seq, first
            first += row.count
            if seq.number in faulty:
                continue
            tokens = new.get(seq.number, ())
            if seq.predicted != row.start:
                left_out[INCOMPLETE] += bool(tokens)
                continue
            if row.decode:
                following = list(tokens)
            else:
                following = seq.tokens[row.start + 1 : row.start + 1 + row.count] + list(tokens)
            wanted = (
                self._wanted(row, len(tokens), row.start + len(following), depth, left_out) if tokens else 0
            )
            parts.append(_Part(seq, row.start, following, begin, row.decode, wanted))
        return parts

    def _wanted(self, row: Row, new: int, end: int, depth: int, left_out: Counter[str]) -> int:
        """As many drafts as can still come out and whose latents have pages. The last one's are not needed."""
        seq = row.seq
        left = seq.request.params.max_tokens - seq.output_len - new - 1
        most = min(depth, left, self._max_model_len - len(seq.tokens) - new - 1)
        held = len(seq.pages) * self._page_size - end + 1
        if held < 1 <= most:
            left_out[NO_PAGES] += 1
        return max(min(most, held), 0)
