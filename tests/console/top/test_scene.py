"""Windows over samples, against straight sums; the past; what a step costs."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from arc.console.top import scene as sc
from arc.engine.control import protocol as p
from hypothesis import given
from hypothesis import strategies as st

from .recorded import picture, recorded, scene


def sample(**changes: object) -> p.Sample:
    return msgspec.structs.replace(recorded().history.samples[-1], **changes)


def test_every_total_is_the_sum_over_the_window() -> None:
    seen = scene(span=60.0)
    inside = [each for each in picture().samples if seen.end - 60.0 < each.time <= seen.end]
    assert len(inside) == 60
    totals = seen.totals
    names = {name for name in totals.__dataclass_fields__ if isinstance(getattr(totals, name), int | float)}
    assert {"steps", "rows", "generation_tokens", "prefix_hits", "seconds"} <= names
    for name in names:
        assert getattr(totals, name) == pytest.approx(sum(getattr(each, name) for each in inside)), name
    assert totals.generation_tokens is not None
    assert totals.rate(totals.generation_tokens) == pytest.approx(totals.generation_tokens / totals.seconds)


def test_percentiles_are_read_off_merged_buckets() -> None:
    seen = scene(span=60.0)
    bounds = picture().bounds
    for name, found in seen.totals.latency.items():
        counts = [0] * (len(bounds) + 1)
        for each in seen.window:
            for index, count in each.buckets.get(name, {}).items():
                counts[index] += count
        assert found == p.Percentiles.of(counts, bounds)
    assert set(seen.totals.latency) == {"first_token", "between_tokens", "queue", "end_to_end"}


def test_without_events_there_is_no_latency_and_without_samples_no_rate() -> None:
    empty = scene(samples=())
    assert empty.totals.latency == {} and empty.totals.rate(5) is None and empty.totals.per_step(5.0) is None
    quiet = scene(samples=(sample(buckets={}),))
    assert quiet.totals.latency == {}


@given(st.floats(0, 700), st.floats(0, 700))
def test_between_is_open_at_the_start_and_closed_at_the_end(back: float, long: float) -> None:
    samples = picture().samples
    end = samples[-1].time - back
    found = sc.between(samples, end - long, end)
    assert list(found) == [each for each in samples if end - long < each.time <= end]


def test_the_past_shows_the_sample_of_that_moment_and_no_reasons() -> None:
    moment = picture().samples[-31]
    past = scene(at=moment.time)
    gauges = past.gauges
    assert gauges is not None and gauges.reasons is None
    assert (gauges.running, gauges.waiting) == (moment.running, moment.waiting)
    assert past.window[-1] is moment and len(past.window) == 60
    assert scene(at=moment.time - 3600).gauges is None


def test_live_gauges_are_the_newest_snapshots() -> None:
    gauges, snapshot = scene().gauges, recorded().snapshot
    assert gauges is not None
    assert (gauges.running, gauges.effective, gauges.reasons) == (
        snapshot.running, snapshot.effective_batch, snapshot.waiting_by_reason,
    )  # fmt: skip


def test_totals_are_carried_only_while_the_window_is_the_same() -> None:
    before = scene()
    first = before.totals
    same = sc.Scene(before.picture, before.span, None, before.now + 0.25).carrying(before)
    assert same.totals is first
    longer = sc.Scene(before.picture, 300.0, None, before.now).carrying(before)
    assert longer.totals is not first and longer.totals.seconds > first.seconds
    newer = replace(before.picture, samples=before.picture.samples[:-1])
    assert sc.Scene(newer, before.span, None, before.now).carrying(before).totals is not first


@given(st.floats(0.001, 0.1), st.floats(0.0001, 0.01))
def test_a_straight_line_of_step_times_is_found(base: float, per_row: float) -> None:
    samples = [
        sample(steps=10, rows=10 * rows, step_seconds=10 * (base + per_row * rows)) for rows in range(1, 33)
    ]
    model = sc.step_model(samples)
    assert model is not None
    assert model.base == pytest.approx(base, rel=1e-3, abs=1e-6)
    assert model.per_row == pytest.approx(per_row, rel=1e-3) and model.fit == pytest.approx(1.0)


def test_no_line_is_claimed_where_none_is() -> None:
    same_rows = [sample(steps=10, rows=40, step_seconds=0.1 + 0.01 * index) for index in range(20)]
    assert sc.step_model(same_rows) is None
    scattered = [
        sample(steps=10, rows=10 * (index % 9), step_seconds=0.1 * (index * 7 % 11)) for index in range(60)
    ]
    assert sc.step_model(scattered) is None
    falling = [sample(steps=10, rows=10 * rows, step_seconds=1.0 - 0.02 * rows) for rows in range(1, 20)]
    assert sc.step_model(falling) is None
    assert sc.step_model(falling[:3]) is None


def test_changes_in_the_window_are_those_that_may_move_a_curve() -> None:
    events = picture().events
    seen = scene(span=60.0).changes
    assert [event.kind for event in seen] == ["flags", "mark"]
    assert all(event in events for event in seen)
    assert scene(at=seen[0].time - 1).changes == []
