"""The law of a step, on steps whose law is known."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from arc.engine.profiler.law import Line, Rows
from arc.engine.profiler.sites import Detail
from hypothesis import given
from hypothesis import strategies as st

from .simulated import US, Bench, Work


def fitted(rows: list[int], walls: list[float]) -> Line:
    shared = Rows(len(rows), sum(rows), sum(r * r for r in rows))
    assert shared.why_not is None
    squares = sum(w * w for w in walls)
    return shared.line(sum(walls), sum(r * w for r, w in zip(rows, walls, strict=True)), squares)


@given(st.floats(0.0, 0.2), st.floats(0.0, 0.05), st.integers(0, 2**32 - 1))
def test_a_known_law_is_found_and_its_errors_are_those_of_the_textbook(a: float, b: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.integers(1, 65, size=200)
    if rows.std() < 1:
        return
    walls = a + b * rows + generator.normal(0, 0.001, size=200)
    line = fitted(rows.tolist(), walls.tolist())
    design = np.column_stack((np.ones(200), rows))
    (base, slope), residual, *_ = np.linalg.lstsq(design, walls, rcond=None)
    covariance = np.linalg.inv(design.T @ design) * residual[0] / 198
    assert line.base == pytest.approx(base, abs=1e-7)
    assert line.per_row == pytest.approx(slope, abs=1e-8)
    assert line.base_error == pytest.approx(math.sqrt(covariance[0, 0]), rel=1e-3)
    assert line.per_row_error == pytest.approx(math.sqrt(covariance[1, 1]), rel=1e-3)


def test_the_errors_cover_the_truth_as_often_as_they_should() -> None:
    within = 0
    for seed in range(300):
        generator = np.random.default_rng(seed)
        rows = generator.integers(1, 33, size=60)
        walls = 0.0165 + 0.00173 * rows + generator.normal(0, 0.002, size=60)
        line = fitted(rows.tolist(), walls.tolist())
        within += abs(line.per_row - 0.00173) < 2 * line.per_row_error
    assert 0.90 * 300 < within < 0.99 * 300


def test_steps_of_a_known_law_through_the_whole_profiler() -> None:
    """step = a + b x rows, all of b in the forward pass."""
    bench = Bench().on(Detail.LAYER)
    generator = random.Random(5)
    for _ in range(400):
        rows = generator.randint(1, 64)
        bench.engine.run(Work(rows=rows, extra=rows * 300 * US))
    bench.engine.run(Work("prompt", rows=1, tokens=900, extra=10**9), Work("mixed", rows=9, extra=10**9))
    law = bench.report().law
    assert law is not None
    assert law.steps == 400, "decode steps alone"
    assert law.per_row == pytest.approx(300e-6, rel=1e-6)
    assert law.base == pytest.approx((19 + 10 + 120) * 1e-6, rel=1e-3)
    assert law.r2 == pytest.approx(1.0)
    marginal = {each.path: each.per_row for each in law.spans}
    assert marginal["step/decode"] == pytest.approx(300e-6, rel=1e-6)
    assert marginal["step/decode/model_forward"] == pytest.approx(0.0, abs=1e-9)
    assert marginal["step/publish"] == pytest.approx(0.0, abs=1e-9)


def test_marginals_of_the_parts_add_up_to_that_of_the_whole() -> None:
    bench = Bench().on(Detail.STEP)
    generator = random.Random(6)
    for _ in range(100):
        rows = generator.randint(1, 64)
        bench.engine.run(Work(rows=rows, extra=rows * 100 * US + generator.randint(0, 1000 * US)))
    law = bench.report().law
    assert law is not None
    parts = sum(each.per_row for each in law.spans if each.path.count("/") == 1)
    assert parts == pytest.approx(law.per_row, rel=1e-9)


@pytest.mark.parametrize(
    ("works", "why"),
    [
        (
            [Work(rows=rows, extra=(20 - rows) * 1000 * US) for rows in range(1, 20)],
            "one more row cost -1.00 ±0.00 ms",
        ),
        (
            [Work(rows=rows, extra=(rows - 5) * 1000 * US) for rows in range(5, 25)],
            "a step without rows cost -",
        ),
        ([Work()] * 3, "3 decode steps"),
        ([Work()] * 100, "about 4.0 rows"),
        ([Work("prompt")] * 100, "0 decode steps"),
    ],
)
def test_no_line_is_drawn_where_there_is_none(works: list[Work], why: str) -> None:
    bench = Bench().on(Detail.STEP)
    bench.engine.run(*works)
    report = bench.report()
    assert report.law is None
    assert report.no_law is not None and why in report.no_law.na
