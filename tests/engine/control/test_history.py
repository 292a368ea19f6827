"""Windows, samples and percentiles, against straight sums over what was put in."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import pytest
from arc.engine.control import history as h
from arc.engine.control.protocol import NA, Percentiles
from arc.engine.sequence import FinishReason
from arc.engine.telemetry.records import SECONDS, Counters, StepRecord
from hypothesis import given
from hypothesis import strategies as st


def step(index: int, rows: int = 1, wall: float = 0.01) -> StepRecord:
    return StepRecord(
        index=index, started=0.0, wall=wall, schedule=0.0, forward=wall / 2, sample=0.0, publish=0.0, admitted=rows,
        rows=rows, decode_rows=rows, prompt_rows=0, prompt_tokens=0, waiting=0, finished=0, preempted=0, pages_used=0,
        pages_cached=0, pages_free=0,
    )  # fmt: skip


class Clock:
    """Both clocks of the history module, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1e9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(h, "time", clock)
    return clock


class Engine:
    def __init__(self) -> None:
        self.counters = Counters()
        self.ring: deque[StepRecord] = deque(maxlen=100)
        self.history = h.History(self.counters, self.ring)
        self.steps = 0

    def run(self, rows: int = 1, tokens: int = 1) -> None:
        self.ring.append(step(self.steps, rows))
        self.steps += 1
        self.counters.steps += 1
        self.counters.generation_tokens += tokens


def test_a_window_counts_what_happened_in_it_and_says_how_long_it_is(clock: Clock) -> None:
    engine = Engine()
    for _ in range(100):  # ten seconds, one step of two rows and three tokens a tick
        clock.now += h.TICK
        engine.run(rows=2, tokens=3)
        engine.history.tick()
    recent, life = engine.history.window(2.0)
    assert recent.seconds == pytest.approx(2.0, abs=h.TICK * 1.01)
    assert recent.steps == round(recent.seconds / h.TICK)
    assert recent.rows == 2 * recent.steps
    assert recent.generation_tokens == 3 * recent.steps
    assert recent.step_seconds == pytest.approx(0.01 * recent.steps)
    assert (life.steps, life.generation_tokens) == (100, 300)
    assert life.seconds == pytest.approx(10.0)


def test_a_window_longer_than_life_is_life(clock: Clock) -> None:
    engine = Engine()
    clock.now += 1.0
    engine.run()
    recent, life = engine.history.window(900.0)
    assert recent == life and recent.steps == 1 and recent.seconds == pytest.approx(1.0)


def test_long_windows_go_back_past_the_fine_readings(clock: Clock) -> None:
    engine = Engine()
    for _ in range(1500):
        clock.now += h.TICK
        engine.run()
        engine.history.tick()
    recent, _ = engine.history.window(120.0)
    assert recent.seconds == pytest.approx(120.0, abs=1.01)
    assert recent.steps == pytest.approx(recent.seconds / h.TICK)


def test_samples_add_up_to_the_counters(clock: Clock) -> None:
    engine = Engine()
    for tick in range(237):
        clock.now += h.TICK
        for _ in range(tick % 3):
            engine.run(tokens=tick)
        engine.counters.finished[FinishReason.STOP] += tick % 2
        if tick % 5 == 0:
            engine.counters.time_to_first_token.observe(0.003 * tick)
        engine.history.tick()
    fine = engine.history.samples(0.1, 0.0)
    assert len(fine) == 237
    assert sum(sample.generation_tokens for sample in fine) == engine.counters.generation_tokens
    assert sum(sample.steps for sample in fine) == engine.steps
    assert sum(sample.finished for sample in fine) == engine.counters.finished[FinishReason.STOP]
    counts = [0] * (len(SECONDS) + 1)
    for sample in fine:
        for bucket, count in sample.buckets.get("first_token", {}).items():
            counts[bucket] += count
    assert counts == engine.counters.time_to_first_token.counts
    coarse = engine.history.samples(1.0, 0.0)
    assert len(coarse) == 23
    assert sum(sample.seconds for sample in coarse) == pytest.approx(23.0)
    assert all(sample.buckets or not sample.steps for sample in coarse) or coarse
    later = engine.history.samples(1.0, coarse[9].time)
    assert later == coarse[10:]


def test_what_is_kept_is_bounded(clock: Clock) -> None:
    engine = Engine()
    for _ in range(700):
        clock.now += h.TICK
        engine.history.tick()
    assert len(engine.history.samples(0.1, 0.0)) == h.FINE_KEPT


def test_a_reset_begins_the_shown_life_anew_and_leaves_the_counters(clock: Clock) -> None:
    engine = Engine()
    engine.run(tokens=50)
    clock.now += 5
    engine.history.reset()
    engine.run(tokens=7)
    clock.now += 1
    _, life = engine.history.window(10.0)
    assert life.generation_tokens == 7 and life.seconds == pytest.approx(1.0)
    assert engine.counters.generation_tokens == 57


def test_a_gap_in_the_ring_is_not_counted_as_steps_that_were_seen(clock: Clock) -> None:
    """rows / steps stays the mean of what was seen, even when the ring has lost steps between two readings."""
    engine = Engine()
    for _ in range(250):
        engine.run(rows=4)
    _, life = engine.history.window(10.0)
    assert life.rows == 4 * life.steps


@given(st.lists(st.floats(0.0001, 100.0), min_size=1, max_size=200))
def test_percentiles_lie_in_the_bucket_of_the_true_ones(values: list[float]) -> None:
    counts = [0] * (len(SECONDS) + 1)
    for value in values:
        counts[bucket_of(value)] += 1
    found = Percentiles.of(counts, SECONDS)
    assert found.count == len(values)
    ordered = sorted(values)
    for share, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        true = ordered[max(0, math.ceil(share * len(values)) - 1)]
        assert not isinstance(value, NA)
        bucket = bucket_of(true)
        assert (SECONDS[bucket - 1] if bucket else 0.0) <= value <= SECONDS[bucket]
    assert found.p50 <= found.p95 <= found.p99  # pyright: ignore[reportOperatorIssue]


def bucket_of(value: float) -> int:
    return next((index for index, bound in enumerate(SECONDS) if value <= bound), len(SECONDS))


def test_past_the_last_bound_is_not_available_and_never_a_number() -> None:
    counts: list[Any] = [0] * len(SECONDS) + [3]
    found = Percentiles.of(counts, SECONDS)
    assert isinstance(found.p50, NA) and "2560" in found.p50.na
