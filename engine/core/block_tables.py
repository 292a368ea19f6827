"""The block tables of the admitted sequences as one matrix, so that a step copies rows and never walks page lists."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..sequence import Sequence

_FIRST_ROWS = 64
_FIRST_PAGES = 16


class BlockTables:
    """Mirrors `Sequence.pages` row by row.

    Invariant: a sequence's pages are append-only while it runs, so only what was appended since the last step
    is copied. Whoever takes pages away (finish, cancel, preemption) must call `release`. So what was gathered for the
    last step holds for the next one as well, if that has the same sequences: a step's cost is not that of its context.
    """

    def __init__(self, null_page: int) -> None:
        """`null_page`: a page of finite values that no sequence ever holds. It pads every row, so that a padded read
        can bring in neither another sequence's fault (zero weight times NaN is NaN) nor its data."""
        self._null_page = null_page
        self._table: NDArray[np.int64] = np.full((_FIRST_ROWS, _FIRST_PAGES), null_page, dtype=np.int64)
        self._row: dict[int, int] = {}  # sequence number -> row
        self._filled: dict[int, int] = {}  # sequence number -> pages copied
        self._free = list(range(_FIRST_ROWS - 1, -1, -1))
        self._gathered = self._table[:0]
        self._gathered_for: list[Sequence] = []  # row by row
        self._pages: list[int] = []  # how many of each row's pages it has

    def __len__(self) -> int:
        return len(self._row)

    def gather(self, sequences: list[Sequence]) -> NDArray[np.int64]:
        """[len(sequences), P]: their pages, P the longest table among them, padded with the null page.

        Good until the next call, which may write into it.
        """
        pages = [len(seq.pages) for seq in sequences]
        longest = max(pages)
        if sequences != self._gathered_for or longest != self._gathered.shape[1]:
            rows = [self._synced(seq) for seq in sequences]
            self._gathered, self._gathered_for = self._table[rows, :longest], sequences
        elif pages != self._pages:
            for place, seq in enumerate(sequences):
                filled = self._pages[place]
                if filled < pages[place]:
                    self._synced(seq)
                    self._gathered[place, filled : pages[place]] = seq.pages[filled:]
        self._pages = pages
        return self._gathered

    def release(self, number: int) -> None:
        row = self._row.pop(number, None)
        if row is not None:
            self._gathered_for = []
            self._table[row, : self._filled.pop(number)] = self._null_page
            self._free.append(row)

    def _synced(self, seq: Sequence) -> int:
        row = self._row.get(seq.number)
        if row is None:
            row = self._row[seq.number] = self._new_row()
            self._filled[seq.number] = 0
        filled, pages = self._filled[seq.number], seq.pages
        if filled < len(pages):
            if len(pages) > self._table.shape[1]:
                self._widen(len(pages))
            self._table[row, filled : len(pages)] = pages[filled:]
            self._filled[seq.number] = len(pages)
        return row

    def _new_row(self) -> int:
        if not self._free:
            rows, width = self._table.shape
            more = np.full((rows, width), self._null_page, dtype=np.int64)
            self._table = np.concatenate([self._table, more])
            self._free = list(range(2 * rows - 1, rows - 1, -1))
        return self._free.pop()

    def _widen(self, pages: int) -> None:
        rows, width = self._table.shape
        wider = np.full((rows, max(pages, 2 * width)), self._null_page, dtype=np.int64)
        wider[:, :width] = self._table
        self._table = wider
