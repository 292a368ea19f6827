"""The device channel, over a simulated device: late events, a ring that is full, and a device that lies."""

from __future__ import annotations

import pytest
import torch
from arc.engine.control.protocol import NA
from arc.engine.profiler import recording, resolve
from arc.engine.profiler.device import NO_EVENT, Anchor, EventRing, self_test
from arc.engine.profiler.sites import Detail

from .simulated import BUILD, US, Bench, Clock, SimulatedDevice, Work, kind, on_a_device, span

FORWARD = "step/decode/model_forward"
ATTN = f"{FORWARD}/mla_attn"
MS = 1000 * US


def device_of(bench: Bench) -> SimulatedDevice:
    assert bench.device is not None
    return bench.device


def later(bench: Bench, ns: int = MS) -> None:
    bench.clock.pass_(ns)


def test_device_and_sync_are_what_the_device_did() -> None:
    bench = on_a_device().on()
    bench.engine.run(*[Work()] * 4)
    later(bench)
    report = bench.report()
    assert kind(report).device_steps == 4
    attend, attn, fetch = (
        span(report, path) for path in (f"{ATTN}/attend", ATTN, "step/sample/sample.fetch")
    )
    # 100 us of work is launched each 20 us, six times: the stream is never idle after the first launch.
    assert attn.device == pytest.approx(4 * 600e-6, rel=0.1)
    assert attend.device == pytest.approx(4 * 300e-6, rel=0.2)
    waited = fetch.wall
    assert waited > 4 * 400e-6
    for path in ("step", "step/sample", "step/sample/sample.fetch"):
        assert span(report, path).sync == pytest.approx(waited), "the wait counts for all that it was in"
    assert span(report, FORWARD).sync == 0.0, "a zero here was measured"
    assert fetch.host_self == 0.0, "waiting is not the host's work"
    own = sum(row.host_self for row in kind(report).spans)
    assert own + waited == pytest.approx(span(report, "step").wall)
    assert report.proof.verdict == "pass", report.proof.failures


def test_nothing_ever_waits_for_an_event_after_profiling_was_turned_on() -> None:
    bench = on_a_device().on()
    device = device_of(bench)
    waited = device.waited
    device.lag = 50 * MS
    bench.engine.run(*[Work()] * 200)
    bench.report()
    bench.off()
    assert device.waited == waited


def test_late_events_are_read_later_and_the_numbers_are_the_same() -> None:
    prompt, late = on_a_device(), on_a_device()
    for bench in (prompt, late):
        bench.on()
        device_of(bench).lag = 0 if bench is prompt else 20 * MS
        bench.engine.run(*[Work()] * 10)
    assert kind(prompt.report()).steps == 10
    assert late.report().kinds == (), "not before all is known"
    later(late, 30 * MS)
    assert span(late.report(), ATTN).device == span(prompt.report(), ATTN).device


def test_events_that_are_never_passed_are_counted_and_cost_only_their_channel() -> None:
    bench = on_a_device().on()
    bench.engine.run(*[Work()] * 3)
    bench.profiler.flush()
    device_of(bench).lag = 10**15
    steps = (resolve.PATIENCE + 10) * 64
    bench.engine.run(*[Work()] * steps)
    report = bench.report()
    assert kind(report).steps > 3
    assert kind(report).device_steps == 3
    assert span(report, "step").wall > 0
    assert isinstance(report.proof.unresolved_device_spans, int) and report.proof.unresolved_device_spans > 0
    assert report.proof.verdict == "fail"
    assert "device spans without a time" in " ".join(report.proof.failures)


def test_a_full_ring_loses_the_device_times_of_some_steps_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    device = SimulatedDevice(clock)
    monkeypatch.setattr(recording, "EventRing", lambda device: EventRing(device, capacity=64))
    bench = Bench(clock, device, layers=20).on()  # more events a step than the ring has
    bench.engine.run(*[Work()] * 5)
    later(bench)
    report = bench.report()
    assert kind(report).steps == 5
    assert kind(report).device_steps < 5
    assert isinstance(report.proof.unresolved_device_spans, int) and report.proof.unresolved_device_spans > 0
    device_time = span(report, ATTN).device
    assert isinstance(device_time, NA) == (kind(report).device_steps == 0)


def test_idle_turns_use_up_no_events() -> None:
    bench = on_a_device().on()
    for _ in range(50_000):
        bench.engine.turn()
    bench.engine.run(Work())
    later(bench)
    assert bench.report().proof.unresolved_device_spans == 0
    assert device_of(bench).made < 100


def test_the_ring_makes_an_event_when_it_is_needed_and_uses_it_again() -> None:
    device = SimulatedDevice(Clock())
    ring = EventRing(device, capacity=4)
    tickets = [ring.record() for _ in range(4)]
    assert tickets == [0, 1, 2, 3] and ring.record() == NO_EVENT
    ring.release(2)
    assert [ring.record(), ring.record(), ring.record()] == [4, 5, NO_EVENT]
    assert device.made == 4
    ring.rewind(5)
    assert ring.record() == 5
    with pytest.raises(AssertionError, match="given back"):
        ring.of(1)


def test_self_test_passes_where_events_see_execution() -> None:
    tested = self_test(SimulatedDevice(Clock()))
    assert tested.passed and tested.ratio > 100
    assert tested.execution == pytest.approx(tested.known)


def test_self_test_fails_where_events_see_launches_alone() -> None:
    clock = Clock()
    device = SimulatedDevice(clock)
    device.times_launches = True
    bench = Bench(clock, device).on()
    bench.engine.run(Work())
    later(bench)
    proof = bench.report().proof
    assert proof.self_test is not None and not proof.self_test.passed
    assert proof.verdict == "fail" and "self-test" in proof.failures[0]
    assert "self-test" in bench.profiler.instruments().text


def test_an_anchor_places_events_on_the_hosts_clock_for_hours() -> None:
    clock = Clock()
    device = SimulatedDevice(clock)
    anchor = Anchor(device, clock)
    for _ in range(5000):
        clock.pass_(3_000 * MS)
        anchor.renew()
    event = device.event()
    event.record()
    assert abs(anchor.place(event) - clock.now) < 5 * US


def test_a_trace_has_the_devices_own_times() -> None:
    bench = on_a_device().on(Detail.LAYER)
    bench.engine.run(Work(), Work())
    later(bench)
    bench.profiler.flush()
    trace = bench.profiler.trace(BUILD, 60.0)
    assert (
        trace is not None and not isinstance(trace.device_start, NA) and not isinstance(trace.device_wall, NA)
    )
    named = [trace.paths[path] for path in trace.path]
    for at, name in enumerate(named):
        known = trace.device_start[at] is not None
        assert known == (name not in ("step/scheduler.inbox", "step/scheduler.schedule", "step/publish",
                                      "step/sample/sample.fetch"))  # fmt: skip
        if known:
            start, wall = trace.device_start[at], trace.device_wall[at]
            assert start is not None and wall is not None
            assert start >= trace.start[at] - US, "the device cannot begin before the host asks"


def test_what_is_asked_of_torch_for_a_card_is_there() -> None:
    """cuda.py runs on a card alone; this finds at least a torch in which its names are others."""
    for name in ("Event", "_sleep", "clock_rate", "current_stream", "synchronize", "device"):
        assert callable(getattr(torch.cuda, name)), name
