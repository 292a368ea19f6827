"""What a report says of steps whose times are known, and that being off is being as before."""

from __future__ import annotations

import types

import pytest
from arc.engine.control.protocol import NA
from arc.engine.profiler import recording, tape, timed, window
from arc.engine.profiler.sites import Detail, Role, Site, SiteError
from arc.kernels.operations import Section

from .simulated import BUILD, US, Bench, Engine, FakeStamps, Work, kind, on_a_device, paths, span

FORWARD = "step/decode/model_forward"
ATTN = f"{FORWARD}/mla_attn"


def test_the_tree_has_each_span_where_it_was_called() -> None:
    bench = Bench().on()
    bench.engine.run(Work())
    report = bench.report()
    decode = kind(report)
    assert paths(decode.spans) == [
        "step", "step/scheduler.inbox", "step/scheduler.schedule", "step/decode", FORWARD, ATTN, f"{ATTN}/attend",
        "step/sample", "step/publish",
    ]  # fmt: skip
    assert [row.depth for row in decode.spans] == [row.path.count("/") for row in decode.spans]
    assert (decode.steps, decode.rows, decode.tokens) == (1, 4, 4)


def test_wall_and_host_self_are_exact() -> None:
    bench = Bench(layers=3).on()
    bench.engine.run(*[Work(extra=50 * US)] * 10)
    report = bench.report()
    wall = {row.path: round(row.wall * 1e9 / 10) for row in kind(report).spans}
    own = {row.path: round(row.host_self * 1e9 / 10) for row in kind(report).spans}
    layers = 3 * 40 * US
    assert wall["step/scheduler.inbox"] == 5 * US
    assert wall[ATTN] == layers
    assert wall[f"{ATTN}/attend"] == 3 * 20 * US
    assert wall[FORWARD] == 10 * US + layers
    assert wall["step/decode"] == 50 * US + wall[FORWARD]
    assert wall["step"] == (5 + 7 + 3 + 4) * US + wall["step/decode"]
    assert own["step/decode"] == 50 * US
    assert own[FORWARD] == 10 * US
    assert own[ATTN] == 3 * 20 * US
    assert own["step"] == 0
    assert span(report, ATTN).calls == 30
    assert sum(own.values()) == wall["step"], "host self of all spans is the step"


def test_kinds_are_apart_and_a_mixed_step_is_its_own() -> None:
    bench = Bench().on(Detail.STEP)
    bench.engine.run(Work("prompt", 2, 64), Work("mixed", 3, 40), Work(), Work())
    report = bench.report()
    assert [(each.kind, each.steps, each.rows, each.tokens) for each in report.kinds] == [
        ("decode", 2, 8, 8), ("prompt", 1, 2, 64), ("mixed", 1, 3, 40),
    ]  # fmt: skip
    for each in report.kinds:
        assert f"step/{each.kind}" in paths(each.spans)
        names = [row.name for row in each.spans if row.depth == 1]
        assert names == ["scheduler.inbox", "scheduler.schedule", each.kind, "sample", "publish"], (
            "in this order"
        )


@pytest.mark.parametrize(
    ("detail", "deepest"), [(Detail.STEP, "model_forward"), (Detail.LAYER, "mla_attn"), (Detail.OP, "attend")]
)
def test_detail_bounds_what_is_recorded(detail: Detail, deepest: str) -> None:
    bench = Bench().on(detail)
    bench.engine.run(Work())
    rows = kind(bench.report()).spans
    assert max(rows, key=lambda row: row.depth).name == deepest


def test_off_is_the_very_same_function() -> None:
    bench = on_a_device()
    engine = bench.engine
    sites = engine.sites()
    before = [getattr(site.owner, site.method).__func__ for site in sites]
    bench.on()
    for site in sites:
        assert not isinstance(getattr(site.owner, site.method), types.MethodType), f"{site.name} is not timed"
    bench.off()
    for site, function in zip(sites, before, strict=True):
        now = getattr(site.owner, site.method)
        assert now.__func__ is function is getattr(type(site.owner), site.method)
        assert site.method not in vars(site.owner)


def test_what_stood_on_the_instance_stands_there_again() -> None:
    bench = Bench()

    def own() -> None:
        bench.clock.pass_(US)

    bench.engine.publish = own
    bench.on()
    assert bench.engine.publish is not own
    bench.engine.run(Work())
    bench.off()
    assert bench.engine.publish is own
    assert span(bench.report(), "step/publish").wall == pytest.approx(US * 1e-9)


def test_a_turn_with_nothing_to_do_is_not_a_step() -> None:
    bench = Bench().on()
    for _ in range(5):
        assert bench.engine.turn() is None
    bench.engine.run(Work())
    bench.engine.turn()
    report = bench.report()
    assert [each.steps for each in report.kinds] == [1]
    assert span(report, "step/scheduler.inbox").wall == pytest.approx(5e-6), "only its own border"


def test_a_step_that_fails_in_its_forward_pass_is_not_kept() -> None:
    bench = Bench().on()
    bench.engine.run(Work())
    bench.engine.fault = RuntimeError("no device")
    with pytest.raises(RuntimeError):
        bench.engine.run(Work())
    bench.engine.fault = None
    bench.engine.run(Work())
    report = bench.report()
    assert kind(report).steps == 2
    assert report.proof.verdict == "pass"


def test_nothing_is_recorded_outside_a_step() -> None:
    bench = Bench().on()
    bench.engine.model.forward()
    bench.engine.run(Work())
    assert span(bench.report(), FORWARD).calls == 1


def test_turned_off_it_keeps_what_it_had_and_records_no_more() -> None:
    bench = Bench().on()
    bench.engine.run(Work(), Work())
    bench.off()
    bench.engine.run(Work())
    report = bench.report()
    assert not report.on
    assert kind(report).steps == 2


def test_another_detail_begins_anew_so_that_no_two_are_mixed() -> None:
    bench = Bench().on(Detail.STEP)
    bench.engine.run(Work(), Work())
    bench.profiler.configure(True, Detail.LAYER)
    bench.engine.run(Work())
    report = bench.report()
    assert kind(report).steps == 1
    assert span(report, ATTN).calls == 3


def test_a_window_counts_its_own_seconds_alone() -> None:
    bench = Bench().on(Detail.STEP)
    for _ in range(20):
        bench.engine.run(Work())
        bench.profiler.flush()
        bench.clock.pass_(1_000_000_000)
    report = bench.report(window=5.0)
    assert 5.0 <= report.seconds < 6.0
    assert kind(report).steps in (5, 6)
    assert kind(bench.report(window=900.0)).steps == 20
    assert bench.report(window=900.0).seconds == pytest.approx(20.0, abs=0.1), (
        "no further back than profiling"
    )


def test_memory_is_bounded_however_long_it_runs() -> None:
    bench = Bench(layers=60).on()
    for _ in range(3000):
        bench.engine.run(Work())
        bench.clock.pass_(500_000_000)
    bench.profiler.flush()
    running = bench.profiler._recording
    assert running is not None
    assert sum(len(kept.block.node) for kept in running.kept) <= recording.CALLS_KEPT + 130 * 64
    assert len(running.windows._seconds) <= window.KEPT
    assert bench.profiler.trace(BUILD, 900.0).cut  # type: ignore[union-attr]


def test_more_calls_than_there_is_room_for_are_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tape, timed):
        monkeypatch.setattr(module, "CAPACITY", 256)
    bench = Bench(layers=200).on()
    bench.engine.run(Work())
    proof = bench.report().proof
    assert proof.lost_spans == 2 * 200 + 7 - 256
    assert proof.verdict == "fail" and "lost" in " ".join(proof.failures)


def test_without_a_device_its_channels_are_na_with_the_reason() -> None:
    bench = Bench().on()
    bench.engine.run(Work())
    report = bench.report()
    for row in kind(report).spans:
        assert isinstance(row.device, NA) and "simulated without a device" in row.device.na
        assert isinstance(row.sync, NA) and "simulated without a device" in row.sync.na
    assert report.proof.self_test is None
    assert report.proof.no_self_test is not None and "simulated" in report.proof.no_self_test.na
    assert isinstance(report.proof.unresolved_device_spans, NA)


def test_a_backends_own_sections_stand_under_the_call_that_they_ran_in() -> None:
    stamps = FakeStamps()
    bench = Bench(stamps=stamps, layers=2).on()
    clock = bench.clock

    def native() -> None:
        for layer in range(2):
            began = clock()
            clock.pass_(9 * US)
            stamps.sections.append(Section("fused", layer, began, clock()))
            stamps.sections.append(Section("inside", layer, began + 2 * US, began + 5 * US))

    bench.engine.model.stamped.append(native)
    bench.engine.run(Work(), Work())
    report = bench.report()
    assert stamps.on
    fused, inside = (span(report, f"{FORWARD}/{path}") for path in ("fused", "fused/inside"))
    assert fused.calls == inside.calls == 4
    assert fused.wall == pytest.approx(4 * 9e-6) and fused.host_self == pytest.approx(4 * 6e-6)
    assert span(report, FORWARD).host_self == pytest.approx(2 * 10e-6)
    assert report.proof.verdict == "pass"
    bench.off()
    assert not stamps.on


def test_at_detail_layer_only_a_backends_layers_are_taken() -> None:
    stamps = FakeStamps()
    bench = Bench(stamps=stamps).on(Detail.LAYER)

    def native() -> None:
        began = bench.clock()
        bench.clock.pass_(9 * US)
        stamps.sections += [
            Section("mla_attn", 3, began, bench.clock()),
            Section("attend", 3, began + US, began + 2 * US),
        ]

    bench.engine.model.stamped.append(native)
    bench.engine.model.skip = 1  # one of the layers is the backend's own
    bench.engine.run(Work())
    report = bench.report()
    assert span(report, ATTN).calls == 3
    assert f"{ATTN}/attend" not in paths(kind(report).spans)
    assert report.proof.verdict == "pass"


def test_detail_step_asks_no_backend_to_time_itself() -> None:
    stamps = FakeStamps()
    Bench(stamps=stamps).on(Detail.STEP)
    assert not stamps.on


def test_the_open_span_is_known_while_it_is_open() -> None:
    bench = Bench().on()
    seen: list[object] = []
    bench.engine.model.stamped.append(lambda: seen.append(bench.profiler.instruments().open_span))
    bench.engine.run(Work())
    assert seen == [FORWARD]
    assert isinstance(bench.profiler.instruments().open_span, NA)
    bench.off()
    off = bench.profiler.instruments().open_span
    assert isinstance(off, NA) and "profile.enabled" in off.na


def test_cumulative_times_rise_over_changes_of_detail() -> None:
    bench = Bench().on(Detail.STEP)
    bench.engine.run(Work())
    bench.profiler.configure(True, Detail.LAYER)
    bench.engine.run(Work(), Work())
    bench.off()
    step = 3 * (19 + 10 + 120) * 1e-6
    assert bench.published["step", "wall"] == pytest.approx(step)
    assert bench.published[ATTN, "wall"] == pytest.approx(2 * 120e-6)
    assert {channel for _, channel in bench.published} == {"wall", "host_self"}, (
        "what is NA is left out, not 0"
    )


class Slotted:
    __slots__ = ()

    def method(self) -> None: ...


@pytest.mark.parametrize(
    ("site", "why"),
    [
        (Site("a", Slotted(), "method"), "__slots__"),
        (Site("b", object(), "gone"), "__slots__"),
        (Site("c", Engine.__new__(Engine), "gone"), "no method gone"),
        (Site("d", FakeStamps(), "__init__"), "on the class"),
        (Site("e", FakeStamps(), "take", role=Role.KIND), "a kind"),
    ],
)
def test_a_site_that_cannot_be_timed_is_an_error_and_nothing_is_changed(site: Site, why: str) -> None:
    bench = Bench()
    sites = bench.engine.sites()
    bench.profiler._sites = lambda: [*sites, site]
    with pytest.raises(SiteError, match=why):
        bench.on()
    assert not bench.profiler.on
    assert all(each.method not in vars(each.owner) for each in sites)


def test_an_instrument_that_breaks_takes_itself_away_and_the_step_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(FakeStamps):
        def take(self) -> list[Section]:
            if self.on:
                raise ValueError("no sections")
            return []

    bench = Bench(stamps=Broken()).on()
    bench.engine.run(Work(), Work())
    assert bench.engine.steps == 2
    assert "step" not in vars(bench.engine)
    said = bench.profiler.instruments()
    assert not said.spans and said.verdict == "fail" and "no sections" in said.text


def test_a_device_is_timed_only_where_it_is_given_work() -> None:
    bench = on_a_device().on()
    bench.engine.run(Work())
    device = span(bench.report(), "step/publish").device
    assert isinstance(device, NA) and "host alone" in device.na
