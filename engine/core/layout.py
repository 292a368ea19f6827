"""Rows of sequences to one flat batch: where each query token stands and where its latent is written.

How the cache is laid out is chosen once, at the start, and known here and in the cache alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Rows
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..model.batch import ForwardBatch
from ..model.cache import LatentCache, Latents
from ..model.dense import DenseCache
from ..scheduler.types import Step
from ..sequence import Sequence
from .block_tables import BlockTables

Places = NDArray[np.int64]


class Layout(ABC):
    cache: Latents

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # of batches of decode rows alone, kept while their number stays: written by nobody
        self._every = self.to_device(np.arange(0))
        self._query_starts: tuple[int, ...] = (0,)

    # -- a step: opened, then batches of its rows, then closed ---------------------------------------------------

    @abstractmethod
    def open(self, step: Step, depth: int) -> None:
        """Before the step's forward. `depth`: drafts that may be written behind each row's tokens."""

    @abstractmethod
    def close(self, step: Step, tokens: list[tuple[int, ...]]) -> None:
        """After it. `tokens`: what each row that samples brought, so that drafts which were wrong do not count."""

    def batch(
        self,
        sequences: list[Sequence],
        starts: Places,
        counts: Rows[int],
        tokens: Rows[int],
        decode_rows: int,
        sample: Rows[int],
    ) -> ForwardBatch:
        """Row r's counts[r] query tokens begin at position starts[r]; `tokens` are those of all rows, [T].

        `sample`: the indices into T of the tokens whose logits are wanted.
        """
        query_starts = (0, *accumulate(counts))
        lengths = starts + np.array(counts)
        row_of = np.repeat(np.arange(len(sequences)), counts)
        positions = np.arange(query_starts[-1]) - np.array(query_starts[:-1])[row_of] + starts[row_of]
        expanded = decode_rows < len(sequences)
        tables, slots = self._places(sequences, row_of, positions, int(lengths.max()) if expanded else None)
        return ForwardBatch(
            token_ids=self._column(tokens),
            positions=self.to_device(positions),
            slots=self.to_device(slots),
            block_tables=self.to_device(tables),
            lengths=tuple(lengths.tolist()),
            query_starts=query_starts,
            decode_rows=decode_rows,
            sample_tokens=self._column(sample),
        )

    def decode_batch(
        self, sequences: list[Sequence], starts: list[int], tokens: list[int] | Tensor
    ) -> ForwardBatch:
        """One query token a row, and the logits of all. The numbers of so few rows are written down in less time than
        operations on arrays take to begin."""
        count = len(sequences)
        if len(self._every) != count:
            self._every = self.to_device(np.arange(count))
            self._query_starts = tuple(range(count + 1))
        tables, slots = self._decode_places(sequences, starts)
        return ForwardBatch(
            token_ids=tokens if isinstance(tokens, Tensor) else self._column(tokens),
            positions=self._column(starts),
            slots=self._column(slots),
            block_tables=self.to_device(tables),
            lengths=tuple([start + 1 for start in starts]),
            query_starts=self._query_starts,
            decode_rows=count,
            sample_tokens=self._every,
        )

    @abstractmethod
    def _places(
        self, sequences: list[Sequence], row_of: Places, positions: Places, longest: int | None
    ) -> tuple[Places, Places]:
        """Block tables [R, P], and each query token's slot [T]. `longest`: of all rows; None: all of them decode."""

    @abstractmethod
    def _decode_places(self, sequences: list[Sequence], starts: list[int]) -> tuple[Places, list[int]]:
        """The same for one query token a row, at `starts`."""

    # -- between steps -------------------------------------------------------------------------------------------

    @abstractmethod
    def release(self, seq: Sequence) -> None:
        """What the sequence has in the cache is no longer its own."""

    @abstractmethod
    def scrub(self, pages: list[int]) -> None:
        """Zero pages whose contents may not be finite: padded attention would carry a NaN into their next owner."""

    @abstractmethod
    def __len__(self) -> int:
        """Sequences that are known here."""

    def _column(self, numbers: Rows[int]) -> Tensor:
        return self.to_device(np.array(numbers, dtype=np.int64))

    def to_device(self, array: Places) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)


class PagedLayout(Layout):
    """Invariant: places come from the sequences' own block tables; no batch names a page that its row does not hold."""

    def __init__(self, cache: LatentCache, device: torch.device) -> None:
        """The last page of `cache` is the null page: no sequence ever holds it, and it stays zero."""
        super().__init__(device)
        self.cache = cache
        self.paged = cache
        self._tables = BlockTables(null_page=cache.pages - 1)

    def open(self, step: Step, depth: int) -> None:
        """Nothing: the scheduler has the pages already."""

    def close(self, step: Step, tokens: list[tuple[int, ...]]) -> None:
        """Nothing: what does not count lies behind a sequence's end and is overwritten."""

    def _places(
        self, sequences: list[Sequence], row_of: Places, positions: Places, longest: int | None
    ) -> tuple[Places, Places]:
        tables = self._tables.gather(sequences)
        size = self.paged.page_size
        page, offset = np.divmod(positions, size)
        return tables, tables[row_of, page] * size + offset

    def _decode_places(self, sequences: list[Sequence], starts: list[int]) -> tuple[Places, list[int]]:
        size = self.paged.page_size
        slots = [
            seq.pages[start // size] * size + start % size
            for seq, start in zip(sequences, starts, strict=True)
        ]
        return self._tables.gather(sequences), slots

    def release(self, seq: Sequence) -> None:
        self._tables.release(seq.number)

    def scrub(self, pages: list[int]) -> None:
        self.paged.zero_pages(pages)

    def __len__(self) -> int:
        return len(self._tables)


class DenseLayout(Layout):
    """A sequence's pages are counted and name no place; its row in the cache is where its tokens are."""

    def __init__(self, cache: DenseCache, device: torch.device, strip: Callable[[], bool]) -> None:
        """`strip`: whether rows are taken apart after each step (cache.dead_prefix), asked once a step."""
        super().__init__(device)
        self.cache = cache
        self._dense = cache
        self._strip = strip
        self._stripping = False

    def open(self, step: Step, depth: int) -> None:
        self._stripping = self._strip()
        self._dense.open(
            [row.seq.number for row in step.rows],
            [row.start for row in step.rows],
            [row.count for row in step.rows],
            depth,
            self._stripping,
        )

    def close(self, step: Step, tokens: list[tuple[int, ...]]) -> None:
        brought = iter(tokens)
        lengths: dict[int, int] = {}
        for row in step.rows:
            new = next(brought) if row.samples else ()
            lengths[row.seq.number] = row.start + (len(new) if row.decode else row.count)
        self._dense.close(lengths, self._stripping)

    def _places(
        self, sequences: list[Sequence], row_of: Places, positions: Places, longest: int | None
    ) -> tuple[Places, Places]:
        first = np.array(self._dense.first([seq.number for seq in sequences]), dtype=np.int64)
        tables = first[:, None]
        if longest is not None:
            columns = self._dense.columns
            last = (
                tables // columns + 1
            ) * columns - 1  # of the row: what a padded table names must be its own
            tables = np.minimum(tables + np.arange(longest), last)
        return tables, first[row_of] + positions

    def _decode_places(self, sequences: list[Sequence], starts: list[int]) -> tuple[Places, list[int]]:
        first = self._dense.first([seq.number for seq in sequences])
        tables = np.array(first, dtype=np.int64)[:, None]
        return tables, [slot + start for slot, start in zip(first, starts, strict=True)]

    def release(self, seq: Sequence) -> None:
        self._dense.drop(seq.number)

    def scrub(self, pages: list[int]) -> None:
        """Nothing: the faulty row leaves, and the others are brought into a tensor of zeros without it."""

    def __len__(self) -> int:
        return len(self._dense)
