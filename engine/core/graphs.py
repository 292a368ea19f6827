"""Decode steps as replays of captured graphs: on a card, a small step's launches take longer than its work.

A graph is a fixed list of launches on fixed memory, so a step must have one of a few sizes, and its numbers must be
copied to where the graph reads them. Steps are padded to the next size by rows that compute on the null page alone.
What a graph cannot run is run as ever, and counted by its reason.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ...kernels import KernelSet
from ...kernels.operations import Plan, Replayable
from ..model.batch import ForwardBatch
from ..model.cache import LatentCache
from ..model.deepseek import DeepseekModel, ForwardOutput

log = logging.getLogger("arc.engine")

_DOUBLED = (1, 2, 4, 8, 16)
_STEP = 16  # above them: a step is padded by 15 rows at most


MOST = 512  # rows: past it a step's work takes far longer than its launches


def sizes(most: int) -> tuple[int, ...]:
    """The rows that graphs are captured for, up to `most` itself, ascending."""
    return (*(n for n in (*_DOUBLED, *range(2 * _STEP, most, _STEP)) if n < most), most)


def why_not_here(kernels: KernelSet, device: torch.device) -> str | None:
    """Why no step of this engine can be captured, or None."""
    if device.type != "cuda":
        return f"the device is {device}: graphs are of CUDA and ROCm"
    backends = {line.operation: line.backend for line in kernels.table()}
    if not isinstance(kernels.mla_decode, Replayable):
        return f"mla_decode runs on {backends['mla_decode']}: the shapes it works on change with the rows' lengths"
    if backends["moe_experts"] == "torch":
        return "moe_experts runs on torch: it waits for the card to count each expert's tokens"
    return None


def why_not(batch: ForwardBatch, captured: tuple[int, ...]) -> str | None:
    """Why this step cannot be a replay, or None."""
    rows = len(batch.lengths)
    if batch.decode_rows < rows:
        return "prompt rows"
    if batch.query_starts[-1] > rows:
        return "rows of several queries"
    if not captured:
        return "nothing captured"
    if rows > captured[-1]:
        return f"more than {captured[-1]} rows"
    return None


class StaticBatch:
    """The memory that one graph reads: a batch of `size` decode rows, of which a step fills the first.

    Invariant: rows past those that are filled write to the null page and read from it, at every replay. What an earlier
    step left there would write to pages that have other owners now.
    """

    def __init__(self, size: int, pages: int, page_size: int, null_page: int, device: torch.device) -> None:
        def full(value: int, *shape: int) -> torch.Tensor:
            return torch.full(shape, value, dtype=torch.int64, device=device)

        place = torch.arange(size, device=device)
        self._unused = null_page * page_size + place % page_size  # slots of rows that are not filled
        self._null_page = null_page
        self.batch = ForwardBatch(
            token_ids=full(0, size),
            positions=full(0, size),
            slots=self._unused.clone(),
            block_tables=full(null_page, size, pages),
            lengths=(1,) * size,
            query_starts=tuple(range(size + 1)),
            decode_rows=size,
            sample_tokens=place,
        )

    def fill(self, step: ForwardBatch) -> tuple[int, ...]:
        """Copy a step of no more rows in; gives the lengths of all rows, those that are not filled included."""
        mine, rows = self.batch, len(step.lengths)
        mine.token_ids[:rows].copy_(step.token_ids)
        mine.token_ids[rows:].zero_()
        mine.positions[:rows].copy_(step.positions)
        mine.positions[rows:].zero_()
        mine.slots[:rows].copy_(step.slots)
        mine.slots[rows:].copy_(self._unused[rows:])
        mine.block_tables[:rows, : step.block_tables.shape[1]].copy_(step.block_tables)
        mine.block_tables[rows:, 0].fill_(self._null_page)
        return (*step.lengths, *mine.lengths[rows:])


class Executor(Protocol):
    """What captures and replays. Tests have one without a card."""

    def capture(self, size: int) -> None:
        """Raises RuntimeError where the size cannot be captured."""
        ...

    def replay(self, size: int, step: ForwardBatch) -> ForwardOutput:
        """The output of the step's own rows. It is good until the next replay."""
        ...


class CudaExecutor:
    def __init__(
        self, model: DeepseekModel, cache: LatentCache, attention: Replayable, *, pages: int, null_page: int
    ) -> None:
        """`pages`: of the longest sequence there may be."""
        self._model = model
        self._cache = cache
        self._attention = attention
        self._pages = pages
        self._null_page = null_page
        self._pool: Any = None  # all graphs share one, since they never run at the same time
        self._captured: dict[int, tuple[torch.cuda.CUDAGraph, StaticBatch, Plan, ForwardOutput]] = {}

    def capture(self, size: int) -> None:
        device, page_size = self._model.device, self._cache.page_size
        static = StaticBatch(size, self._pages, page_size, self._null_page, device)
        plan = self._attention.fixed_plan(size, self._pages, page_size, device)
        self._attention.refill(plan, static.batch.lengths, static.batch.block_tables)
        # Once outside the graph: it compiles the kernels and lays out the plan, neither of which may be captured.
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            self._model.forward(static.batch, self._cache, plan)
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = self._model.forward(static.batch, self._cache, plan)
        self._pool = graph.pool()
        self._captured[size] = (graph, static, plan, output)

    def replay(self, size: int, step: ForwardBatch) -> ForwardOutput:
        graph, static, plan, output = self._captured[size]
        lengths = static.fill(step)
        self._attention.refill(plan, lengths, static.batch.block_tables)
        graph.replay()
        return ForwardOutput(*(part.index_select(0, step.sample_tokens) for part in output))


class DecodeGraphs:
    """Chooses, for each step, between a replay and the plain forward pass."""

    def __init__(self, executor: Executor, forward: Callable[[ForwardBatch], ForwardOutput]) -> None:
        self._executor = executor
        self._forward = forward
        self.captured: tuple[int, ...] = ()  # ascending
        self.replays: Counter[int] = Counter()  # by size
        self.plain: Counter[str] = Counter()  # steps that were no replay, by reason
        self.refused: dict[int, str] = {}  # sizes that could not be captured

    def warm_up(self, most: int) -> None:
        """Capture every size before the first request, the largest first: the others then fit in its memory."""
        captured: list[int] = []
        for size in reversed(sizes(most)):
            try:
                self._executor.capture(size)
            except RuntimeError as error:  # out of memory is one too
                self.refused[size] = str(error).splitlines()[0]
                log.warning("no graph of %d rows: %s", size, self.refused[size])
                continue
            captured.append(size)
        self.captured = tuple(reversed(captured))

    def forward(self, step: ForwardBatch) -> ForwardOutput:
        reason = why_not(step, self.captured)
        if reason is not None:
            self.plain[reason] += 1
            return self._forward(step)
        size = next(n for n in self.captured if n >= len(step.lengths))
        self.replays[size] += 1
        return self._executor.replay(size, step)


def build(
    model: DeepseekModel, cache: LatentCache, kernels: KernelSet, *, most: int, pages: int, null_page: int
) -> DecodeGraphs | str:
    """Capture what can be captured; or why nothing can. `pages`: of the longest sequence there may be."""
    reason = why_not_here(kernels, model.device)
    if reason is not None:
        return reason
    attention = kernels.mla_decode
    assert isinstance(attention, Replayable), "why_not_here has looked"
    executor = CudaExecutor(model, cache, attention, pages=pages, null_page=null_page)
    graphs = DecodeGraphs(executor, lambda step: model.forward(step, cache))
    with torch.inference_mode():
        graphs.warm_up(min(most, MOST))
    log.info("graphs of %s rows", ", ".join(map(str, graphs.captured)) or "no number of")
    return graphs
