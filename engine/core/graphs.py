"""Decode steps as replays of captured graphs: on a card, a small step's launches take longer than its work.

A graph is a fixed list of launches on fixed memory, so a step must have one of a few sizes, and its numbers must be
copied to where the graph reads them. Steps are padded to the next size by rows that compute on the null page alone.
What a graph cannot run is run as ever, and counted by its reason.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from ...kernels import KernelSet
from ...kernels.operations import Plan, Replayable
from ..memory.allocator import CaptureMiss
from ..model.batch import ForwardBatch
from ..model.cache import LatentCache
from ..model.deepseek import DeepseekModel, ForwardOutput

log = logging.getLogger("arc.engine")

_DOUBLED = (1, 2, 4, 8, 16)
_STEP = 16  # above them: a step is padded by 15 rows at most


MOST = 512  # query tokens: past it a step's work takes far longer than its launches


class Size(NamedTuple):
    """What one graph has room for: rows * queries tokens, of at most so many rows with at most so many queries each."""

    rows: int
    queries: int

    @property
    def tokens(self) -> int:
        return self.rows * self.queries

    @property
    def planned(self) -> int:
        """Rows that its plan needs: the step's, and those that take the tokens which the step leaves over.

        A step of r rows and t >= r tokens leaves ceil((tokens - t) / queries) rows' worth; r rows of one query each
        leave the most.
        """
        return 2 * self.rows - self.rows // self.queries

    def __str__(self) -> str:
        return f"{self.rows} rows" if self.queries == 1 else f"{self.rows} rows of {self.queries} queries"


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


Captured = Mapping[int, tuple[int, ...]]  # by queries a row: the rows of its graphs, ascending


def size_for(batch: ForwardBatch, captured: Captured) -> Size | str:
    """The smallest graph that runs this step, or why none does."""
    rows = len(batch.lengths)
    if batch.decode_rows < rows:
        return "prompt rows"
    most = max(end - start for start, end in itertools.pairwise(batch.query_starts))
    if not any(captured.values()):
        return "nothing captured"
    enough = [queries for queries, of in captured.items() if queries >= most and of]
    if not enough:
        return f"rows of {most} queries"
    queries = min(enough)
    fitting = [n for n in captured[queries] if n >= rows]
    return Size(fitting[0], queries) if fitting else f"more than {Size(captured[queries][-1], queries)}"


class Filled(NamedTuple):
    """Rows that a graph has work for, those included that take the tokens which a step leaves over."""

    lengths: tuple[int, ...]
    query_starts: tuple[int, ...]

    @property
    def counts(self) -> list[int]:
        return [end - start for start, end in itertools.pairwise(self.query_starts)]


class StaticBatch:
    """The memory that one graph reads, of which a step fills the first rows and tokens.

    Invariant: tokens past those that are filled belong to rows of their own, which write to the null page and read from
    it, at every replay. What an earlier step left there would write to pages that have other owners now; and as queries
    of the step's own rows they would carry a fault of such a row into the null page, which every row's padding names.
    """

    def __init__(self, size: Size, pages: int, page_size: int, null_page: int, device: torch.device) -> None:
        def full(value: int, *shape: int) -> torch.Tensor:
            return torch.full(shape, value, dtype=torch.int64, device=device)

        assert size.queries <= page_size, "a row that is left over sees its own queries in the null page"
        place = torch.arange(size.tokens, device=device)
        self._size = size
        self._unused = null_page * page_size + place % page_size  # slots of tokens that are not filled
        self._null_page = null_page
        self.batch = ForwardBatch(
            token_ids=full(0, size.tokens),
            positions=full(0, size.tokens),
            slots=self._unused.clone(),
            block_tables=full(null_page, size.planned, pages),
            lengths=(size.queries,) * size.rows,
            query_starts=tuple(range(0, size.tokens + 1, size.queries)),
            decode_rows=size.rows,
            sample_tokens=place,
        )

    def fill(self, step: ForwardBatch) -> Filled:
        """Copy a step in that the size has room for."""
        mine, rows, tokens = self.batch, len(step.lengths), step.query_starts[-1]
        mine.token_ids[:tokens].copy_(step.token_ids)
        mine.token_ids[tokens:].zero_()
        mine.positions[:tokens].copy_(step.positions)
        mine.positions[tokens:].zero_()
        mine.slots[:tokens].copy_(step.slots)
        mine.slots[tokens:].copy_(self._unused[tokens:])
        mine.block_tables[:rows, : step.block_tables.shape[1]].copy_(step.block_tables)
        mine.block_tables[rows:, 0].fill_(self._null_page)
        all_of, queries = self._size.tokens, self._size.queries
        starts = (*step.query_starts[:-1], *range(tokens, all_of, queries), all_of)
        left_over = (min(queries, all_of - start) for start in range(tokens, all_of, queries))
        return Filled((*step.lengths, *left_over), starts)


class Executor(Protocol):
    """What captures and replays. Tests have one without a card."""

    def capture(self, size: Size) -> None:
        """Raises RuntimeError or CaptureMiss where the size cannot be captured."""
        ...

    def replay(self, size: Size, step: ForwardBatch) -> ForwardOutput:
        """The output of the step's own tokens. It is good until the next replay."""
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
        self._captured: dict[Size, tuple[torch.cuda.CUDAGraph, StaticBatch, Plan, ForwardOutput]] = {}

    def capture(self, size: Size) -> None:
        device, page_size = self._model.device, self._cache.page_size
        static = StaticBatch(size, self._pages, page_size, self._null_page, device)
        plan = self._attention.fixed_plan(size.planned, size.queries, self._pages, page_size, device)
        self._attention.refill(
            plan, static.batch.lengths, [size.queries] * size.rows, static.batch.block_tables
        )
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

    def replay(self, size: Size, step: ForwardBatch) -> ForwardOutput:
        graph, static, plan, output = self._captured[size]
        filled = static.fill(step)
        self._attention.refill(plan, filled.lengths, filled.counts, static.batch.block_tables)
        graph.replay()
        return own_output(output, step)


def own_output(output: ForwardOutput, step: ForwardBatch) -> ForwardOutput:
    """Of a graph's output, copied, what belongs to the step: its tokens come first, and each has logits."""
    return ForwardOutput(
        logits=output.logits.index_select(0, step.sample_tokens),
        hidden=output.hidden[: step.query_starts[-1]].clone(),
    )


class DecodeGraphs:
    """Chooses, for each step, between a replay and the plain forward pass."""

    def __init__(self, executor: Executor, forward: Callable[[ForwardBatch], ForwardOutput]) -> None:
        self._executor = executor
        self._forward = forward
        self.captured: Captured = {}
        self.replays: Counter[Size] = Counter()
        self.plain: Counter[str] = Counter()  # steps that were no replay, by reason
        self.refused: dict[Size, str] = {}  # sizes that could not be captured

    def warm_up(self, most: int, queries: Sequence[int] = (1,)) -> None:
        """Capture every size before the first request, the largest first: the others then fit in its memory.

        `most` rows, and at most MOST tokens, for each of `queries` a row.
        """
        wanted = [Size(rows, each) for each in queries for rows in sizes(max(1, min(most, MOST // each)))]
        captured: dict[int, list[int]] = {each: [] for each in queries}
        for size in sorted(wanted, key=lambda size: size.tokens, reverse=True):
            try:
                self._executor.capture(size)
            except (RuntimeError, CaptureMiss) as error:  # out of memory is a RuntimeError too
                self.refused[size] = str(error).splitlines()[0]
                log.warning("no graph of %s: %s", size, self.refused[size])
                continue
            captured[size.queries].append(size.rows)
        self.captured = {each: tuple(sorted(rows)) for each, rows in captured.items()}

    def forward(self, step: ForwardBatch) -> ForwardOutput:
        size = size_for(step, self.captured)
        if isinstance(size, str):
            self.plain[size] += 1
            return self._forward(step)
        self.replays[size] += 1
        return self._executor.replay(size, step)


def build(
    model: DeepseekModel,
    cache: LatentCache,
    kernels: KernelSet,
    *,
    most: int,
    depth: int,
    pages: int,
    null_page: int,
) -> DecodeGraphs | str:
    """Capture what can be captured; or why nothing can. `depth`: drafts that are verified with a row's token.

    `pages`: of the longest sequence there may be.
    """
    reason = why_not_here(kernels, model.device)
    if reason is not None:
        return reason
    attention = kernels.mla_decode
    assert isinstance(attention, Replayable), "why_not_here has looked"
    executor = CudaExecutor(model, cache, attention, pages=pages, null_page=null_page)
    graphs = DecodeGraphs(executor, lambda step: model.forward(step, cache))
    with torch.inference_mode():
        graphs.warm_up(most, (1, 1 + depth) if depth else (1,))
    for queries, rows in graphs.captured.items():
        log.info("graphs of %s rows of %d queries", ", ".join(map(str, rows)) or "no number of", queries)
    return graphs
