"""From cumulative counters to what happened: against a server whose every event is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
import pytest
from arc.console.metrics.difference import COUNTS, Differ, PageSample
from arc.console.top.scene import totals
from hypothesis import given
from hypothesis import strategies as st

from .pages import IDLE, LOADED, histogram, line, reading, vllm

BOUNDS = (0.1, 0.5, 1.0)
LABELS = {"engine": "0", "model_name": "m"}
FIRST = "vllm:time_to_first_token_seconds"


@dataclass
class Life:
    """A server as it counts: what it did since it began."""

    started: float | None
    counts: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)

    def page(self, hidden: frozenset[str]) -> str:
        numbers = {
            f"{name}_total": float(self.counts[name])
            for name in ("generation_tokens", "prompt_tokens")
            if name not in hidden
        }
        text = vllm(started=self.started, **numbers)
        return text if "first" in hidden else text + histogram(FIRST, BOUNDS, self.first, LABELS)


STEP = st.one_of(
    st.tuples(st.just("work"), st.integers(0, 2**40), st.lists(st.floats(0, 2), max_size=4)),
    st.tuples(st.just("restart"), st.booleans(), st.none()),
    st.tuples(st.just("gap"), st.none(), st.none()),
    st.tuples(
        st.just("hide"), st.sets(st.sampled_from(["generation_tokens", "prompt_tokens", "first"])), st.none()
    ),
)


@given(st.lists(STEP, max_size=40), st.booleans())
def test_whatever_a_server_does_no_count_is_negative_and_none_is_more_than_there_was(
    steps: list[tuple], tells_its_start: bool
) -> None:
    """Restarts at any moment, pages missed and families that come and go."""
    life, lives, differ, at = Life(1.0 if tells_its_start else None), 1, Differ(), 0.0
    true: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    hidden: frozenset[str] = frozenset()
    differ.take(reading(life.page(hidden)), at, at)
    for kind, first, second in steps:
        at += 1.0
        if kind == "gap":
            differ.gap()
            continue
        if kind == "hide":
            hidden = frozenset(first)
        elif kind == "restart":
            lives += 1
            life = Life(float(lives) if tells_its_start else None)
        else:
            life.counts.update(generation_tokens=first, prompt_tokens=2 * first)
            life.first += second
            true.update(generation_tokens=first, prompt_tokens=2 * first, first=len(second))
        taken = differ.take(reading(life.page(hidden)), at, at)
        if taken.restarted:
            assert lives > 1 and taken.sample is None
        if taken.sample is None:
            continue
        assert taken.sample.seconds > 0
        for name in COUNTS:
            value = getattr(taken.sample, name)
            assert value is None or value >= 0
            if value is not None:
                shown[name] += value
        for buckets in taken.sample.buckets.values():
            assert all(count > 0 for count in buckets.values())
            shown["first"] += sum(buckets.values())
    for name, count in true.items():
        assert shown[name] <= count, name


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.lists(st.floats(0, 2), max_size=5)), min_size=1, max_size=20)
)
def test_without_a_restart_nothing_is_lost(work: list[tuple[int, list[float]]]) -> None:
    life, differ = Life(1.0), Differ()
    differ.take(reading(life.page(frozenset())), 0.0, 0.0)
    samples: list[PageSample] = []
    for at, (tokens, first) in enumerate(work, 1):
        life.counts.update(generation_tokens=tokens, prompt_tokens=1)
        life.first += first
        sample = differ.take(reading(life.page(frozenset())), float(at), float(at)).sample
        assert sample is not None
        samples.append(sample)
    seen = totals(samples, (), {"first_token": BOUNDS})
    assert seen.generation_tokens == sum(tokens for tokens, _ in work)
    assert seen.rate(seen.generation_tokens) == pytest.approx(sum(tokens for tokens, _ in work) / len(work))
    values = [value for _, first in work for value in first]
    assert ("first_token" in seen.latency) == bool(values)
    if values:
        assert seen.latency["first_token"].count == len(values)


def test_the_recorded_pages_are_a_second_apart_in_everything() -> None:
    differ = Differ()
    assert differ.take(reading(IDLE), 10.0, 100.0).sample is None  # one page has no rates
    sample = differ.take(reading(LOADED), 12.0, 102.0).sample
    assert sample is not None and (sample.time, sample.seconds) == (102.0, 2.0)
    assert (sample.generation_tokens, sample.prompt_tokens, sample.steps) == (2781, 6914, 89)
    assert (sample.running, sample.waiting, sample.pages_used) == (32, 8, 90)
    assert sample.rows is None and sample.step_seconds is None and sample.pages_cached is None
    assert sum(sample.buckets["first_token"].values()) == 32 and sample.buckets["end_to_end"] == {}


def test_unknown_is_not_zero_in_any_total() -> None:
    differ = Differ()
    differ.take(reading(IDLE), 0.0, 0.0)
    sample = differ.take(reading(LOADED), 1.0, 1.0).sample
    assert sample is not None
    sample = msgspec.structs.replace(sample, buckets={})
    seen = totals([sample], ())
    assert seen.rows is None and seen.faults is None and seen.per_step(seen.step_seconds) is None
    known = msgspec.structs.replace(sample, faults=0)
    assert totals([known, known], ()).faults == 0 and totals([known, sample], ()).faults is None


def test_a_restart_shows_by_the_start_alone_and_after_a_gap() -> None:
    differ = Differ()
    differ.take(reading(vllm(started=1.0, generation_tokens_total=5.0)), 0.0, 0.0)
    assert differ.take(reading(vllm(started=2.0, generation_tokens_total=9.0)), 1.0, 1.0).restarted
    differ.gap()
    assert differ.take(reading(vllm(started=3.0, generation_tokens_total=50.0)), 9.0, 9.0).restarted
    differ.gap()
    taken = differ.take(reading(vllm(started=3.0, generation_tokens_total=60.0)), 19.0, 19.0)
    assert taken.sample is None and not taken.restarted  # ten seconds that nobody watched
    sample = differ.take(reading(vllm(started=3.0, generation_tokens_total=61.0)), 20.0, 20.0).sample
    assert sample is not None and sample.generation_tokens == 1


def test_a_counter_that_appears_had_not_counted_and_one_that_comes_back_is_unknown_once() -> None:
    differ = Differ()

    def take(at: float, **numbers: float) -> int | None:
        sample = differ.take(reading(vllm(started=1.0, **numbers)), at, at).sample
        assert sample is not None
        return sample.generation_tokens

    differ.take(reading(vllm(started=1.0)), 0.0, 0.0)
    assert take(1.0, generation_tokens_total=7.0) == 7
    assert take(2.0) is None
    assert take(3.0, generation_tokens_total=90.0) is None
    assert take(4.0, generation_tokens_total=95.0) == 5


def test_other_buckets_are_another_life() -> None:
    differ = Differ()
    differ.take(reading(vllm() + histogram(FIRST, (1, 2), (), LABELS)), 0.0, 0.0)
    assert differ.take(reading(vllm() + histogram(FIRST, (1, 3), (0.5,), LABELS)), 1.0, 1.0).restarted


def test_a_bucket_that_falls_is_another_life_though_the_count_rises() -> None:
    differ = Differ()
    differ.take(reading(vllm() + histogram(FIRST, (1, 2), (0.5, 0.5), LABELS)), 0.0, 0.0)
    assert differ.take(reading(vllm() + histogram(FIRST, (1, 2), (1.5,) * 4, LABELS)), 1.0, 1.0).restarted


def test_the_waiting_by_reason_is_summed_over_other_labels() -> None:
    text = vllm() + "".join(
        line("vllm:num_requests_waiting_by_reason", 2.0, {**LABELS, "reason": "capacity", "lora": each})
        for each in "ab"
    )
    assert reading(text).reasons == {"capacity": 4}
