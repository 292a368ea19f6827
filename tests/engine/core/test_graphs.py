"""Decode steps as graph replays, without a card: sizes, refusals, padding and counts, over an executor that runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from arc.engine.core import graphs
from arc.engine.core.graphs import DecodeGraphs, Size, StaticBatch, own_output, size_for, sizes, why_not_here
from arc.engine.folder import CARRIED
from arc.engine.memory.pool import HostPool
from arc.engine.model.batch import ForwardBatch
from arc.engine.model.cache import LatentCache
from arc.engine.model.deepseek import DeepseekModel, ForwardOutput
from arc.engine.telemetry.records import AllocatorCounters
from arc.kernels import Resolution, Target, resolve
from hypothesis import given
from hypothesis import strategies as st

from ..deepseek_cases import CPU, Case, Runner, build, hub_tensors
from .living import complete, engine, request

NULL = 0  # the cases' null page


@given(st.integers(1, 512))
def test_every_number_of_rows_has_a_size_that_is_not_much_larger(most):
    captured = sizes(most)
    assert captured[-1] == most
    assert list(captured) == sorted(set(captured))
    for rows in range(1, most + 1):
        size = next(n for n in captured if n >= rows)
        assert size < rows + 16 or size < 2 * rows
        assert size <= max(2 * rows - 1, rows + 15, 1)


def test_what_an_engine_cannot_capture_is_said():
    kernels = resolve("torch", Target(CPU, torch.float32))
    assert "device is cpu" in str(why_not_here(kernels, CPU))
    card = torch.device("cuda:0")
    assert "mla_decode runs on torch" in str(why_not_here(kernels, card))

    class Fixed:
        def fixed_plan(
            self, rows: int, queries: int, pages: int, page_size: int, device: torch.device
        ) -> Any: ...

        def refill(self, plan: Any, lengths: Any, counts: Any, block_tables: Any) -> None: ...

    half: Any = replace(kernels, mla_decode=Fixed())
    assert "moe_experts runs on torch" in str(why_not_here(half, card))
    lines = tuple(Resolution(line.operation, "triton", ()) for line in kernels.table())
    assert why_not_here(replace(half, resolutions=lines), card) is None


def batch(rows: list[int], decode_rows: int) -> ForwardBatch:
    """Of so many queries a row."""
    starts = [sum(rows[:n]) for n in range(len(rows) + 1)]
    empty = torch.zeros(0, dtype=torch.int64)
    return ForwardBatch(empty, empty, empty, empty, tuple(rows), tuple(starts), decode_rows, empty)


def test_what_a_step_cannot_be_replayed_for_is_said():
    one, both = {1: (1, 2, 4)}, {1: (1, 2, 4), 3: (1, 2)}
    assert size_for(batch([1, 1], 2), one) == Size(2, 1)
    assert size_for(batch([1, 7], 1), one) == "prompt rows"
    assert size_for(batch([1, 3], 2), one) == "rows of 3 queries"
    assert size_for(batch([1] * 5, 5), one) == "more than 4 rows"
    assert size_for(batch([1], 1), {}) == size_for(batch([1], 1), {1: (), 3: ()}) == "nothing captured"
    assert size_for(batch([1, 3], 2), both) == Size(2, 3)
    assert size_for(batch([2], 1), both) == Size(1, 3)  # fewer drafts than there is room for
    assert size_for(batch([1, 2, 1], 3), both) == "more than 2 rows of 3 queries"
    assert size_for(batch([4], 1), both) == "rows of 4 queries"
    assert size_for(batch([1, 1, 1], 3), both) == Size(4, 1)


@given(st.data())
def test_what_a_step_leaves_over_fits_into_the_rows_that_are_planned(data):
    size = Size(data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5)))
    counts = data.draw(st.lists(st.integers(1, size.queries), min_size=1, max_size=size.rows))
    static = StaticBatch(size, 3, 8, NULL, CPU)
    step = batch(counts, len(counts))
    tokens = sum(counts)
    zeros = torch.zeros(tokens, dtype=torch.int64)
    step = replace(
        step, token_ids=zeros, positions=zeros, slots=zeros + 99, block_tables=zeros[: len(counts), None] + 7
    )
    filled = static.fill(step)
    assert filled.counts[: len(counts)] == counts
    assert sum(filled.counts) == size.tokens
    assert all(1 <= count <= size.queries for count in filled.counts)
    assert len(filled.counts) == len(filled.lengths) <= size.planned
    assert filled.lengths[len(counts) :] == tuple(filled.counts[len(counts) :])  # they see themselves alone
    assert bool((static.batch.slots[tokens:] < 8).all()) and bool((static.batch.slots[:tokens] == 99).all())
    assert bool((static.batch.block_tables[len(counts) :, 0] == NULL).all())


class Simulated:
    """Replays by running the padded batch: all that a graph does but the capture."""

    def __init__(self, model: DeepseekModel, cache: LatentCache, pages: int, null_page: int) -> None:
        self.model, self.cache, self.pages, self.null_page = model, cache, pages, null_page
        self.static: dict[Size, StaticBatch] = {}
        self.order: list[Size] = []
        self.fails: set[Size] = set()

    def capture(self, size: Size) -> None:
        self.order.append(size)
        if size in self.fails:
            raise RuntimeError(f"out of memory at {size}\nand a stack")
        self.static[size] = StaticBatch(size, self.pages, self.cache.page_size, self.null_page, CPU)

    def replay(self, size: Size, step: ForwardBatch) -> ForwardOutput:
        static = self.static[size]
        filled = static.fill(step)
        rows = len(filled.lengths)
        padded = replace(
            static.batch,
            lengths=filled.lengths,
            query_starts=filled.query_starts,
            decode_rows=rows,
            block_tables=static.batch.block_tables[:rows],
        )
        return own_output(self.model.forward(padded, self.cache), step)


@pytest.fixture(scope="module")
def model() -> DeepseekModel:
    case = Case("graphs", 3, layers=2)
    return build(case, hub_tensors(case.oracle()))


def simulated(
    model: DeepseekModel, most: int, queries: tuple[int, ...] = (1,)
) -> tuple[Runner, Simulated, DecodeGraphs]:
    runner = Runner(model)
    executor = Simulated(model, runner.cache, 8, NULL)
    chooser = DecodeGraphs(executor, lambda step: model.forward(step, runner.cache))
    chooser.warm_up(most, queries)
    return runner, executor, chooser


def test_the_largest_is_captured_first_and_what_fails_is_left_out(model):
    _, executor, chooser = simulated(model, 5)
    assert executor.order == [(5, 1), (4, 1), (2, 1), (1, 1)]
    executor.fails = {Size(5, 1), Size(2, 1)}
    failing = DecodeGraphs(executor, lambda step: model.forward(step, executor.cache))
    failing.warm_up(5)
    assert failing.captured == {1: (1, 4)}
    assert failing.refused == {
        Size(5, 1): "out of memory at 5 rows",
        Size(2, 1): "out of memory at 2 rows",
    }
    assert chooser.refused == {}


def test_rows_of_several_queries_are_captured_up_to_as_many_tokens(model):
    _, executor, chooser = simulated(model, 4, (1, 3))
    assert executor.order == [(4, 3), (2, 3), (4, 1), (1, 3), (2, 1), (1, 1)]
    assert chooser.captured == {1: (1, 2, 4), 3: (1, 2, 4)}
    nothing: Any = type("Nothing", (), {"capture": lambda self, size: None})()
    chooser = DecodeGraphs(nothing, lambda step: None)  # pyright: ignore[reportArgumentType]
    chooser.warm_up(4096, (1, 5))
    assert chooser.captured[1][-1] == graphs.MOST
    assert chooser.captured[5][-1] == graphs.MOST // 5
    assert [str(Size(4, 1)), str(Size(4, 3))] == ["4 rows", "4 rows of 3 queries"]


def test_a_buffer_that_is_missing_inside_a_capture_costs_that_graph_alone(model):
    """The pool of the host refuses, inside a window, what it has no free buffer for; the engine goes on."""
    pool = HostPool(AllocatorCounters(), free=lambda: 1 << 30)
    pool.configure(True, 64)

    class Pooled(Simulated):
        def capture(self, size: Size) -> None:
            warm = [((1 << 20,), torch.uint8)] if size.rows < 4 else []
            with pool.capture(warm):
                assert pool.take((1 << 20,), torch.uint8) is not None
            super().capture(size)

    runner = Runner(model)
    chooser = DecodeGraphs(
        Pooled(model, runner.cache, 8, NULL), lambda step: model.forward(step, runner.cache)
    )
    chooser.warm_up(4)
    assert chooser.captured == {1: (1, 2)}
    (reason,) = chooser.refused.values()
    assert reason == "a buffer of 1,048,576 bytes was wanted inside the capture window and none was free"
    chooser.forward(runner.batch([(name, [1]) for name in "abcd"], 4))
    assert chooser.plain == {"more than 2 rows": 1}
    assert pool.counters.capture_misses == 1


def test_a_padded_step_gives_what_the_plain_one_gives_and_touches_no_other_page(model):
    """Rows come and go between replays of one graph, so what an earlier step left in it would show."""
    plain = Runner(model)
    runner, _, chooser = simulated(model, 8)
    prompts = {str(n): [(3 * n + k) % 97 for k in range(2 + 3 * n)] for n in range(7)}
    for each in (plain, runner):
        each.step({}, prompts)
    for present in (range(7), range(5), (6, 1, 3), range(8), (2,), (0, 5, 6, 4, 3, 2, 1)):
        names = [str(n) for n in present if str(n) in prompts]
        step = [(name, [len(plain.pages[name]) + int(name)]) for name in names]
        before = [layer.clone() for layer in runner.cache.layers]
        mine, other = runner.batch(step, len(step)), plain.batch(step, len(step))
        got, want = chooser.forward(mine), model.forward(other, plain.cache)
        torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)
        assert got.logits.shape[0] == len(step)
        own = torch.zeros(len(before[0]), dtype=torch.bool)
        own[mine.slots] = True
        own[: runner.page_size] = True  # the null page
        for layer, old in zip(runner.cache.layers, before, strict=True):
            assert torch.equal(layer[~own], old[~own])
            assert bool(layer.isfinite().all())
    assert sum(chooser.replays.values()) == 6
    assert chooser.replays[Size(8, 1)] == 4
    assert chooser.plain == {}


def test_rows_of_several_queries_give_what_the_plain_step_gives(model):
    """Of any numbers of queries, one after the other through the same graphs."""
    plain = Runner(model)
    runner, _, chooser = simulated(model, 5, (1, 4))
    prompts = {str(n): [(3 * n + k) % 97 for k in range(2 + 3 * n)] for n in range(5)}
    for each in (plain, runner):
        each.step({}, prompts)
    for counts in ((4, 1, 2, 3, 4), (1, 1, 1, 1, 1), (2,), (4, 4, 4, 4, 4), (1, 3), (1, 1, 2, 1)):
        step = [(str(n), [(7 * n + k) % 97 for k in range(count)]) for n, count in enumerate(counts)]
        before = [layer.clone() for layer in runner.cache.layers]
        mine, other = runner.batch(step, len(step)), plain.batch(step, len(step))
        got, want = chooser.forward(mine), model.forward(other, plain.cache)
        torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got.hidden, want.hidden, rtol=1e-4, atol=1e-5)
        own = torch.zeros(len(before[0]), dtype=torch.bool)
        own[mine.slots] = True
        own[: runner.page_size] = True  # the null page
        for layer, old in zip(runner.cache.layers, before, strict=True):
            assert torch.equal(layer[~own], old[~own])
    assert chooser.plain == {}
    assert chooser.replays == {Size(5, 4): 2, Size(5, 1): 1, Size(1, 4): 1, Size(2, 4): 1, Size(4, 4): 1}


def test_a_fault_of_a_row_of_several_queries_stays_its_own(model):
    """Were the tokens that a step leaves over queries of its rows, a fault would go through the null page to others."""
    runner, _, chooser = simulated(model, 4, (1, 3))
    chooser.forward(runner.batch([("a", [1, 2]), ("b", [2]), ("c", [3, 4, 5])], 3))
    for layer in runner.cache.layers:
        layer[runner.pages["b"][0] * runner.page_size] = float("nan")
    output = chooser.forward(runner.batch([("a", [4]), ("b", [5, 6]), ("c", [6])], 3))
    assert bool(output.logits[[0, 3]].isfinite().all())
    assert bool(output.logits[[1, 2]].isnan().all())
    for layer in runner.cache.layers:
        assert bool(layer[: runner.page_size].isfinite().all())


def test_a_fault_in_a_page_of_a_row_that_left_does_not_reach_the_null_page(model):
    runner, _, chooser = simulated(model, 4)
    chooser.forward(runner.batch([("a", [1]), ("b", [2]), ("c", [3]), ("d", [4])], 4))
    for layer in runner.cache.layers:
        for page in runner.pages["d"]:
            layer[page * runner.page_size : (page + 1) * runner.page_size] = float("nan")
    output = chooser.forward(runner.batch([("a", [4]), ("b", [5]), ("c", [6])], 3))
    assert bool(output.logits.isfinite().all())
    for layer in runner.cache.layers:
        assert bool(layer[: runner.page_size].isfinite().all())


def test_what_is_no_replay_runs_as_ever_and_is_counted(model):
    runner, _, chooser = simulated(model, 2)
    output = chooser.forward(runner.batch([("a", [1, 2, 3])], 0))
    assert output.logits.shape[0] == 3
    chooser.forward(runner.batch([("a", [4]), ("b", [1]), ("c", [1])], 3))
    assert chooser.plain == {"prompt rows": 1, "more than 2 rows": 1}
    assert not chooser.replays


def replaying(choosers: list[DecodeGraphs], *sizes: Any) -> Callable[[Any], None]:
    """Has an engine replay by an executor without a card, warmed up for `sizes`; its chooser goes to `choosers`."""

    def prepare(assembly: Any) -> None:
        runner = assembly.engine.runner
        executor = Simulated(runner.model, runner.cache, 64, runner.cache.pages - 1)
        chooser = DecodeGraphs(executor, lambda step: runner.model.forward(step, runner.cache))
        with torch.inference_mode():
            chooser.warm_up(*sizes)
        runner.graphs = chooser
        choosers.append(chooser)

    return prepare


async def test_an_engine_that_replays_gives_the_same_tokens(tiny: Path, tmp_path: Path):
    """The runner, its null page and its block tables, over the executor without a card."""
    choosers: list[DecodeGraphs] = []

    requests = [request(f"r{n}", list(range(2, 5 + 7 * n)), max_tokens=9 + 4 * n) for n in range(4)]
    answers: list[list[list[int]]] = []
    for how in (lambda _: None, replaying(choosers, 4)):
        async with engine(tiny, tmp_path, prepare=how) as assembly:
            answers.append([tokens for tokens, _ in await complete(assembly, *requests)])
    assert answers[0] == answers[1]
    assert sum(choosers[0].replays.values()) >= 17  # the longest answer's tokens, less the prompt's step
    assert any(size.rows > 1 for size in choosers[0].replays)
    assert set(choosers[0].plain) <= {"prompt rows"}


async def test_an_engine_that_speculates_replays_and_gives_the_same_tokens(tmp_path: Path):
    choosers: list[DecodeGraphs] = []

    requests = [request(f"r{n}", list(range(302, 310 + 7 * n)), max_tokens=9 + 8 * n) for n in range(4)]
    answers: list[list[list[int]]] = []
    for how, depth in ((lambda _: None, 0), (replaying(choosers, 4, (1, 3)), 2)):
        async with engine(CARRIED, tmp_path, prepare=how, spec__depth=depth) as assembly:
            answers.append([tokens for tokens, _ in await complete(assembly, *requests)])
    assert answers[0] == answers[1]
    assert sum(count for size, count in choosers[0].replays.items() if size.queries == 3) >= 5
    assert set(choosers[0].plain) <= {"prompt rows"}


def test_every_field_that_a_step_brings_is_copied():
    """A new tensor in the batch would otherwise be read from an earlier step."""
    tensors = {"token_ids", "positions", "slots", "block_tables", "sample_tokens"}
    assert {f.name for f in dataclasses.fields(ForwardBatch)} == tensors | {
        "lengths",
        "query_starts",
        "decode_rows",
    }
    assert graphs.MOST >= 256
