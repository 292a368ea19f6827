"""Everything that touches the device: a step's rows to one flat batch, through the model, to tokens.

The engine loop above it knows no tensor; the model below it knows no sequence.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from ..model.batch import ForwardBatch
from ..model.cache import LatentCache
from ..model.deepseek import DeepseekModel, ForwardOutput
from ..sampling.sampler import Sampler
from ..scheduler.types import Row, Step
from ..sequence import Sequence, TokenLogprob
from .block_tables import BlockTables
from .graphs import DecodeGraphs


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the device gave for a step, for its sampling rows in order."""

    rows: tuple[Row, ...]  # the rows that sampled
    token_ids: list[int]
    logprobs: list[TokenLogprob | None]
    faults: dict[int, str]  # index into rows -> why that row has no token
    layout: float  # seconds: rows to one flat batch
    forward: float
    sample: float


NO_RESULT = StepResult((), [], [], {}, 0.0, 0.0, 0.0)  # of a step without rows


class Runner:
    def __init__(
        self, model: DeepseekModel, cache: LatentCache, sampler: Sampler, page_size: int, pages: int
    ) -> None:
        """`cache` holds `pages` pages for sequences and one more, the null page. No sequence ever writes
        to it; rows that only fill a graph up do, and what they write is finite."""
        self.model = model
        self.cache = cache
        self._sampler = sampler
        self._page_size = page_size
        self._device = model.device
        self._tables = BlockTables(null_page=pages)
        self.graphs: DecodeGraphs | None = None  # where steps can be replays of captured graphs

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Run a step. Raises whatever the device raises: the caller then fails the step's sequences."""
        began = time.perf_counter()
        batch = self._batch(step)
        laid_out = time.perf_counter()
        logits = self.forward(batch).logits
        ran = time.perf_counter()
        sampling = tuple(row for row in step.rows if row.samples)
        if not sampling:
            return StepResult((), [], [], {}, laid_out - began, ran - laid_out, 0.0)
        sampled = self._sampler.sample(logits, [row.seq for row in sampling])
        done = time.perf_counter()
        return StepResult(
            rows=sampling,
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            faults=sampled.faults,
            layout=laid_out - began,
            forward=ran - laid_out,
            sample=done - ran,
        )

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        if self.graphs is not None:
            return self.graphs.forward(batch)
        return self.model.forward(batch, self.cache)

    def forget(self, seq: Sequence) -> None:
        """The sequence ended: nothing about it is kept."""
        self._tables.release(seq.number)
        self._sampler.forget(seq.number)

    def release_pages(self, seq: Sequence) -> None:
        """The sequence gave its pages away and may come back with others (preemption)."""
        self._tables.release(seq.number)

    def scrub(self, pages: list[int]) -> None:
        """Zero pages whose contents may not be finite: padded attention would carry a NaN into their next owner."""
        self.cache.zero_pages(pages)

    def _batch(self, step: Step) -> ForwardBatch:
        rows, decode = step.rows, step.decode_rows
        counts = [row.count for row in rows]
        starts = np.array([row.start for row in rows], dtype=np.int64)
        tables = self._tables.gather([row.seq for row in rows])
        tokens = [row.seq.tokens[row.start] for row in rows[:decode]]
        for row in rows[decode:]:
            tokens += row.seq.tokens[row.start : row.start + row.count]
        query_starts = (0, *accumulate(counts))
        if len(rows) == decode:
            row_of = np.arange(decode)
            positions = starts
        else:
            row_of = np.repeat(np.arange(len(rows)), counts)
            positions = np.arange(query_starts[-1]) - np.array(query_starts[:-1])[row_of] + starts[row_of]
        page, offset = np.divmod(positions, self._page_size)
        slots = tables[row_of, page] * self._page_size + offset
        last = [query_starts[i + 1] - 1 for i, row in enumerate(rows) if row.samples]
        return ForwardBatch(
            token_ids=self._to_device(np.array(tokens, dtype=np.int64)),
            positions=self._to_device(positions),
            slots=self._to_device(slots),
            block_tables=self._to_device(tables),
            lengths=tuple(row.start + row.count for row in rows),
            query_starts=query_starts,
            decode_rows=decode,
            sample_tokens=self._to_device(np.array(last, dtype=np.int64)),
        )

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)
