"""Everything that touches the device: a step's rows to one flat batch, through the model, to tokens.

The engine loop above it knows no tensor; the model below it knows no sequence.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from ..memory.allocator import Allocator
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
        self,
        model: DeepseekModel,
        cache: LatentCache,
        sampler: Sampler,
        allocator: Allocator,
        page_size: int,
        pages: int,
    ) -> None:
        """`cache` holds `pages` pages for sequences and one more, the null page. No sequence ever writes
        to it; rows that only fill a graph up do, and what they write is finite."""
        self.model = model
        self.cache = cache
        self.allocator = allocator
        self.sampler = sampler
        self._page_size = page_size
        self._device = model.device
        self._tables = BlockTables(null_page=pages)
        self.graphs: DecodeGraphs | None = None  # where steps can be replays of captured graphs

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Run a step. Raises whatever the device raises: the caller then fails the step's sequences."""
        began = time.perf_counter()
        logits, layout = self.forward(step)
        ran = time.perf_counter()
        sampling = tuple(row for row in step.rows if row.samples)
        if not sampling:
            return StepResult((), [], [], {}, layout, ran - began - layout, 0.0)
        sampled = self.sampler.sample(logits, [row.seq for row in sampling])
        done = time.perf_counter()
        return StepResult(
            rows=sampling,
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            faults=sampled.faults,
            layout=layout,
            forward=ran - began - layout,
            sample=done - ran,
        )

    def forward(self, step: Step) -> tuple[torch.Tensor, float]:
        """The logits of the rows that sample, and the seconds that laying out the batch took: a step's prompt or decode
        part, as the profiler names it."""
        return self.pipeline_step(step)

    def pipeline_step(self, step: Step) -> tuple[torch.Tensor, float]:
        """One pass through one model, from rows to logits."""
        began = time.perf_counter()
        batch = self.lay_out(step)
        layout = time.perf_counter() - began
        return self._through_model(batch).logits, layout

    def _through_model(self, batch: ForwardBatch) -> ForwardOutput:
        if self.graphs is not None:
            return self.graphs.forward(batch)
        return self.model.forward(batch, self.cache)

    def end_step(self) -> None:
        """After `run` has returned or raised and its frame is gone: the step's buffers are back."""
        self.allocator.end_step()

    def forget(self, seq: Sequence) -> None:
        """The sequence ended: nothing about it is kept."""
        self._tables.release(seq.number)
        self.sampler.forget(seq.number)

    def release_pages(self, seq: Sequence) -> None:
        """The sequence gave its pages away and may come back with others (preemption)."""
        self._tables.release(seq.number)

    def scrub(self, pages: list[int]) -> None:
        """Zero pages whose contents may not be finite: padded attention would carry a NaN into their next owner."""
        self.cache.zero_pages(pages)

    def lay_out(self, step: Step) -> ForwardBatch:
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
