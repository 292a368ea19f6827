"""Decode steps as graph replays, without a card: sizes, refusals, padding and counts, over an executor that runs."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from arc.engine.core import graphs
from arc.engine.core.graphs import DecodeGraphs, StaticBatch, sizes, why_not, why_not_here
from arc.engine.model.batch import ForwardBatch
from arc.engine.model.cache import LatentCache
from arc.engine.model.deepseek import DeepseekModel, ForwardOutput
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
        def fixed_plan(self, rows: int, pages: int, page_size: int, device: torch.device) -> Any: ...

        def refill(self, plan: Any, lengths: Any, block_tables: Any) -> None: ...

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
    assert why_not(batch([1, 1], 2), (1, 2, 4)) is None
    assert why_not(batch([1, 7], 1), (1, 2, 4)) == "prompt rows"
    assert why_not(batch([1, 3], 2), (1, 2, 4)) == "rows of several queries"
    assert why_not(batch([1] * 5, 5), (1, 2, 4)) == "more than 4 rows"
    assert why_not(batch([1], 1), ()) == "nothing captured"


class Simulated:
    """Replays by running the padded batch: all that a graph does but the capture."""

    def __init__(self, model: DeepseekModel, cache: LatentCache, pages: int, null_page: int) -> None:
        self.model, self.cache, self.pages, self.null_page = model, cache, pages, null_page
        self.static: dict[int, StaticBatch] = {}
        self.order: list[int] = []
        self.fails: set[int] = set()

    def capture(self, size: int) -> None:
        self.order.append(size)
        if size in self.fails:
            raise RuntimeError(f"out of memory at {size}\nand a stack")
        self.static[size] = StaticBatch(size, self.pages, self.cache.page_size, self.null_page, CPU)

    def replay(self, size: int, step: ForwardBatch) -> ForwardOutput:
        static = self.static[size]
        padded = replace(static.batch, lengths=static.fill(step))
        output = self.model.forward(padded, self.cache)
        return ForwardOutput(*(part.index_select(0, step.sample_tokens) for part in output))


@pytest.fixture(scope="module")
def model() -> DeepseekModel:
    case = Case("graphs", 3, layers=2)
    return build(case, hub_tensors(case.oracle()))


def simulated(model: DeepseekModel, most: int) -> tuple[Runner, Simulated, DecodeGraphs]:
    runner = Runner(model)
    executor = Simulated(model, runner.cache, 8, NULL)
    chooser = DecodeGraphs(executor, lambda step: model.forward(step, runner.cache))
    chooser.warm_up(most)
    return runner, executor, chooser


def test_the_largest_is_captured_first_and_what_fails_is_left_out(model):
    _, executor, chooser = simulated(model, 5)
    assert executor.order == [5, 4, 2, 1]
    executor.fails = {5, 2}
    failing = DecodeGraphs(executor, lambda step: model.forward(step, executor.cache))
    failing.warm_up(5)
    assert failing.captured == (1, 4)
    assert failing.refused == {5: "out of memory at 5", 2: "out of memory at 2"}
    assert chooser.refused == {}


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
    assert chooser.replays[8] == 4
    assert chooser.plain == {}


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


async def test_an_engine_that_replays_gives_the_same_tokens(tiny: Path, tmp_path: Path):
    """The runner, its null page and its block tables, over the executor without a card."""
    choosers: list[DecodeGraphs] = []

    def prepare(assembly: Any) -> None:
        runner = assembly.engine.runner
        executor = Simulated(runner.model, runner.cache, 64, runner.cache.pages - 1)
        chooser = DecodeGraphs(executor, lambda step: runner.model.forward(step, runner.cache))
        with torch.inference_mode():
            chooser.warm_up(4)
        runner.graphs = chooser
        choosers.append(chooser)

    requests = [request(f"r{n}", list(range(2, 5 + 7 * n)), max_tokens=9 + 4 * n) for n in range(4)]
    answers: list[list[list[int]]] = []
    for how in (lambda _: None, prepare):
        async with engine(tiny, tmp_path, prepare=how) as assembly:
            answers.append([tokens for tokens, _ in await complete(assembly, *requests)])
    assert answers[0] == answers[1]
    assert sum(choosers[0].replays.values()) >= 17  # the longest answer's tokens, less the prompt's step
    assert any(size > 1 for size in choosers[0].replays)
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
