"""Each thing that cannot be is brought about on purpose, and the proof names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from arc.engine.control.span_messages import Proof
from arc.engine.profiler import fold
from arc.engine.profiler.sites import Detail
from arc.kernels.operations import Section

from .simulated import US, Bench, FakeStamps, SimulatedDevice, Work, on_a_device

Stamp = Callable[[int], list[Section]]


def judged(sections: Stamp) -> Proof:
    """The proof of a step in which a backend claims these sections, 30 us of time passing."""
    stamps = FakeStamps()
    bench = Bench(stamps=stamps).on()

    def native() -> None:
        began = bench.clock()
        bench.clock.pass_(30 * US)
        stamps.sections += sections(began)

    bench.engine.model.stamped.append(native)
    bench.engine.run(Work())
    return bench.report().proof


def test_a_sound_step_passes() -> None:
    proof = judged(lambda t: [Section("outer", 0, t, t + 20 * US), Section("inner", 0, t + US, t + 9 * US)])
    assert (proof.verdict, proof.failures, proof.violations, proof.misnested_spans) == ("pass", (), {}, 0)


def test_nothing_recorded_is_no_pass() -> None:
    assert Bench().on().report().proof.verdict == "none"


def test_a_child_longer_than_its_parent_is_named() -> None:
    proof = judged(lambda t: [Section("outer", 0, t, t + 10 * US), Section("inner", 0, t + US, t + 25 * US)])
    assert proof.violations[fold.LONGER_CHILD] == 1
    assert proof.misnested_spans == 1
    assert proof.verdict == "fail" and any(fold.LONGER_CHILD in each for each in proof.failures)


def test_spans_that_overlap_are_misnested() -> None:
    proof = judged(lambda t: [Section("one", 0, t, t + 10 * US), Section("two", 0, t + 8 * US, t + 12 * US)])
    assert proof.misnested_spans == 1 and fold.LONGER_CHILD not in proof.violations
    assert proof.verdict == "fail"


def test_a_section_outside_of_the_step_is_misnested_and_left_out() -> None:
    proof = judged(lambda t: [Section("early", 0, t - 10**9, t - 10**9 + US)])
    assert proof.misnested_spans == 1 and proof.verdict == "fail"


def test_children_that_add_up_to_more_than_their_parent_are_named() -> None:
    proof = judged(
        lambda t: [
            Section("outer", 0, t, t + 10 * US),
            Section("a", 0, t, t + 9 * US),
            Section("b", 0, t + 9 * US, t + 19 * US),
        ]
    )
    assert proof.violations[fold.NEGATIVE_SELF] == 1
    assert any(fold.NEGATIVE_SELF in each for each in proof.failures)


@pytest.mark.parametrize("skip", [1, 3])
def test_calls_that_do_not_match_the_layers_are_named(skip: int) -> None:
    bench = Bench(layers=3).on(Detail.LAYER)
    bench.engine.run(Work())
    assert bench.report().proof.verdict == "pass"
    bench.engine.model.skip = skip
    bench.engine.run(Work(), Work())
    proof = bench.report().proof
    assert proof.violations == {fold.WRONG_CALLS: 2}
    assert proof.verdict == "fail" and bench.profiler.instruments().verdict == "fail"


def test_a_call_that_ends_while_another_is_open_inside_it_is_misnested() -> None:
    bench = Bench().on()
    tape = bench.profiler._recording.tape  # type: ignore[union-attr]

    def lose_the_end() -> None:
        tape.open = 0

    bench.engine.model.stamped.append(lose_the_end)
    bench.engine.run(Work())
    assert bench.report().proof.misnested_spans > 0


def test_device_time_longer_than_the_step_and_what_was_in_flight_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = on_a_device().on()
    bench.engine.run(Work())
    bench.clock.pass_(1000 * US)
    assert bench.report().proof.verdict == "pass"
    bench.engine.run(Work())
    bench.clock.pass_(1000 * US)
    ring = bench.profiler._recording._ring  # type: ignore[union-attr]
    assert ring is not None
    attend = ring.of(ring._released + 9)  # the end of some call's work, which now claims to be far later
    attend.at += 10**9  # type: ignore[attr-defined]
    bench.clock.pass_(10**9)
    proof = bench.report().proof
    assert proof.violations[fold.LONGER_DEVICE] >= 1
    assert any(fold.LONGER_DEVICE in each for each in proof.failures)


def test_work_in_flight_is_no_violation() -> None:
    """A step that does not wait for the device leaves it work: the device's part is then longer than the step."""
    bench = on_a_device()
    bench.engine.fetch = lambda: None  # type: ignore[method-assign]
    bench.on()
    bench.engine.run(*[Work()] * 20)
    assert isinstance(bench.device, SimulatedDevice)
    bench.clock.now = bench.device.free_at()
    report = bench.report()
    assert report.proof.verdict == "pass", report.proof.failures
    step = report.kinds[0].spans[0]
    assert isinstance(step.device, float) and step.device > step.wall


def test_the_proof_is_of_the_window_that_it_stands_beside() -> None:
    bench = Bench(layers=3).on(Detail.LAYER)
    bench.engine.model.skip = 1
    bench.engine.run(Work())
    bench.profiler.flush()
    bench.engine.model.skip = 0
    bench.clock.pass_(100 * 10**9)
    bench.engine.run(Work())
    assert bench.report(window=10.0).proof.verdict == "pass"
    assert bench.report(window=900.0).proof.verdict == "fail"
    assert bench.profiler.instruments().verdict == "fail", "since it was turned on"
