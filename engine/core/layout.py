"""Rows of sequences to one flat batch: where each query token stands and where its latent is written.

Invariant: places come from the sequences' own block tables; a batch never names a page that its row does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..model.batch import ForwardBatch
from ..sequence import Sequence
from .block_tables import BlockTables


class Layout:
    def __init__(self, page_size: int, null_page: int, device: torch.device) -> None:
        self._page_size = page_size
        self._device = device
        self._tables = BlockTables(null_page)

    def __len__(self) -> int:
        return len(self._tables)

    def batch(
        self,
        sequences: list[Sequence],
        starts: NDArray[np.int64],
        counts: Rows[int],
        tokens: Rows[int] | Tensor,
        decode_rows: int,
        sample: Rows[int],
    ) -> ForwardBatch:
        """Row r's counts[r] query tokens begin at position starts[r]; `tokens` are those of all rows, [T].

        `sample`: the indices into T of the tokens whose logits are wanted.
        """
        tables = self._tables.gather(sequences)
        query_starts = (0, *accumulate(counts))
        if query_starts[-1] == len(sequences):
            row_of = np.arange(len(sequences))
            positions = starts
        else:
            row_of = np.repeat(np.arange(len(sequences)), counts)
            positions = np.arange(query_starts[-1]) - np.array(query_starts[:-1])[row_of] + starts[row_of]
        page, offset = np.divmod(positions, self._page_size)
        slots = tables[row_of, page] * self._page_size + offset
        if not isinstance(tokens, Tensor):
            tokens = self.to_device(np.array(tokens, dtype=np.int64))
        return ForwardBatch(
            token_ids=tokens,
            positions=self.to_device(positions),
            slots=self.to_device(slots),
            block_tables=self.to_device(tables),
            lengths=tuple((starts + np.array(counts)).tolist()),
            query_starts=query_starts,
            decode_rows=decode_rows,
            sample_tokens=self.to_device(np.array(sample, dtype=np.int64)),
        )

    def release(self, seq: Sequence) -> None:
        """The sequence's pages are no longer its own."""
        self._tables.release(seq.number)

    def to_device(self, array: NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)
