"""An experiment on engines with a known effect: it finds it, and whatever happens the flag is as it was."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from arc.console.ab.experiment import Experiment, Progress
from arc.console.ab.metrics import METRICS, inside, metric_of
from arc.console.ab.plan import Guard, Plan, divided
from arc.console.ab.report import Report, lines, verdict
from arc.console.ab.statistics import Estimate
from arc.console.client import Refused
from arc.console.exits import Failure
from arc.engine.control import protocol as p
from arc.engine.control.protocol import NA

from ...engine.control.conftest import Running, folders, running, start
from ...engine.control.simulated import Work
from ...engine.control.test_server import until
from ..test_control_commands import run

__all__ = ["folders", "running", "start"]  # fixtures

FLAG = "sched.prefill_chunk"
FAST, SLOW = 64, 256
ROWS = {FAST: 8, SLOW: 2}  # in a step; other values run as many as FAST


@pytest.fixture
def loaded(running: Running) -> Iterator[Running]:
    """Eight sequences without end, of which a step runs all or two: an effect that no load on the machine changes."""
    engine = running.engine

    def admit() -> list[Work]:
        rows = ROWS.get(engine.settings.get_int(FLAG), 8)
        for place, work in enumerate(engine._work):
            work.running = place < rows
        return engine._work[:rows]

    engine._admit = admit
    for _ in range(8):
        engine.submit(10_000_000)
    until(lambda: engine.counters.running == ROWS[SLOW])
    yield running


def plan(seconds: float = 8.0, **more: Any) -> Plan:
    chosen: dict[str, Any] = {
        "flag": FLAG, "values": (str(SLOW), str(FAST)), "metric": METRICS["effective_batch"], "seconds": seconds,
        "block": 1.0, "washout": 0.2, "guards": (), "alpha": 0.05, "margin": None, "seed": 1,
    }  # fmt: skip
    return Plan(**(chosen | more))


def flag(running: Running) -> p.FlagView:
    return next(
        each
        for each in msgspec.convert(running.connect().get("/v1/flags"), p.Flags).flags
        if each.name == FLAG
    )


def as_before(running: Running) -> None:
    """Value, origin and layers: nothing of the experiment is left."""
    now = flag(running)
    assert (now.value, now.origin.layer, now.until) == (SLOW, "profile", None)


def begun(running: Running, chosen: Plan) -> tuple[Experiment, Callable[[], Report], list[Progress]]:
    """An experiment in a thread, once its first block runs; and what waits for its report."""
    seen: list[Progress] = []
    experiment = Experiment(chosen, running.path, seen.append)
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(experiment.run()), daemon=True)
    thread.start()

    def ended() -> Report:
        thread.join(90)
        assert reports
        return reports[0]

    until(lambda: any(each.arm >= 0 for each in seen) and flag(running).until is not None)
    return experiment, ended, seen


def test_a_known_effect_is_found_and_the_flag_is_as_before(loaded: Running) -> None:
    seen: list[Progress] = []
    report = Experiment(plan(), loaded.path, seen.append).run()
    assert isinstance(report.estimate, Estimate), lines(report)
    assert (report.end, report.restored, report.before) == ("decided", True, SLOW)
    assert report.estimate.decided and report.estimate.ratio == pytest.approx(4)
    assert [len([b for b in report.blocks if b.arm == arm]) for arm in (0, 1)] == [4, 4]
    assert f"{FLAG}={FAST} is better" in verdict(report)
    as_before(loaded)
    assert seen[-1].report == report and {each.arm for each in seen} == {0, 1}
    windows = sorted((block.start, block.end) for block in report.blocks)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(windows))
    assert all(0 < block.seconds <= 0.8 + 0.01 for block in report.blocks), "the wash-out is not measured"


def test_a_value_set_at_runtime_comes_back_with_its_origin(loaded: Running) -> None:
    wire = loaded.connect()
    assert wire.ask("PATCH", "/v1/flags", {"changes": {FLAG: FAST}, "reason": "for lunch"})[0] == 200
    report = Experiment(plan(values=("128", "96")), loaded.path).run()
    assert report.restored is True and report.before == FAST
    now = flag(loaded)
    assert (now.value, now.origin.layer, now.origin.reason, now.until) == (FAST, "runtime", "for lunch", None)


def test_stopping_it_restores_at_once_and_decides_nothing(loaded: Running) -> None:
    experiment, ended, _ = begun(loaded, plan(600, block=30.0))
    experiment.stop("the operator has seen enough")
    report = ended()
    assert (report.end, report.why, report.restored) == ("operator", "the operator has seen enough", True)
    assert report.estimate is None
    as_before(loaded)


def test_somebody_else_s_change_stops_it_and_stays(loaded: Running) -> None:
    _, ended, _ = begun(loaded, plan(600, block=30.0))
    status, _ = loaded.connect().ask("PATCH", "/v1/flags", {"changes": {FLAG: 77}, "reason": "mine"})
    assert status == 200
    report = ended()
    assert (
        report.end == "taken over"
        and FLAG in report.why
        and "77" in report.why
        and str(os.getpid()) in report.why
    )
    now = flag(loaded)
    assert (now.value, now.origin.reason, now.until) == (77, "mine", None)


def test_another_flag_s_change_leaves_its_pair_out(loaded: Running) -> None:
    _, ended, seen = begun(loaded, plan(10))
    status, _ = loaded.connect().ask("PATCH", "/v1/flags", {"changes": {"sched.max_waiting": 99}})
    assert status == 200
    report = ended()
    assert report.spoilt == {"sched.max_waiting changed in it": 1}
    assert isinstance(report.estimate, Estimate) and report.estimate.pairs == 4
    assert seen[-1].spoilt == 1


def test_an_engine_that_drains_ends_it(loaded: Running) -> None:
    _, ended, _ = begun(loaded, plan(600, block=30.0))
    assert loaded.connect().ask("POST", "/v1/actions/drain", {})[0] == 200
    report = ended()
    assert (report.end, report.why, report.restored) == ("engine", "the engine is draining", True)
    as_before(loaded)


def test_an_engine_that_goes_away_ends_it_by_name(loaded: Running) -> None:
    _, ended, _ = begun(loaded, plan(600, block=30.0))
    loaded.server.stop()
    report = ended()
    assert report.end == "connection" and isinstance(report.restored, NA)
    assert "takes it back itself" in report.restored.na


def test_a_hurt_guard_stops_it(loaded: Running) -> None:
    """The baseline is the value from before, whichever arm it is."""
    assert loaded.connect().ask("PATCH", "/v1/flags", {"changes": {FLAG: FAST}})[0] == 200
    guard = Guard(METRICS["effective_batch"], 1.5)
    for values in ((str(FAST), str(SLOW)), (str(SLOW), str(FAST))):
        report = Experiment(plan(60, values=values, guards=(guard,)), loaded.path).run()
        assert report.end == "guard" and report.hurt is not None and report.restored is True
        assert f"effective_batch is hurt by {FLAG}={SLOW}" in report.why
        assert len(report.hurt.worse) == 2 and min(report.hurt.worse) > 1.5
        assert len(report.blocks) == 4 and "stopped before its end" in verdict(report)
    assert flag(loaded).value == FAST


def test_failed_steps_stop_it(loaded: Running) -> None:
    _, ended, seen = begun(loaded, plan(60))
    until(lambda: _fault(loaded) and seen[-1].report is not None, 60)
    report = ended()
    assert report.end == "guard" and "steps failed while" in report.why and report.restored is True


def _fault(running: Running) -> bool:
    running.engine.counters.faults += 1
    return True


def test_without_traffic_nothing_is_found_and_the_reason_is_said(running: Running) -> None:
    report = Experiment(plan(), running.path).run()
    assert report.estimate is None and "no step in the block" in report.no_estimate
    assert report.spoilt == {"no step in the block": 4} and report.end == "time"
    as_before(running)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"flag": "sched.prefil_chunk"}, "sched.prefill_chunk"),
        ({"flag": "cache.page_size", "values": ("16", "32")}, "restart"),
        ({"values": ("64", "0")}, "1 to 1048576"),
        ({"values": ("64", "64")}, "both values"),
    ],
)
def test_what_cannot_be_tried_is_refused_before_anything_is_changed(
    running: Running, changed: dict[str, Any], said: str
) -> None:
    last = running.engine.events.last
    with pytest.raises((Refused, Failure), match=said):
        Experiment(plan(**changed), running.path).run()
    assert running.engine.events.last == last


def test_a_limited_change_of_somebody_is_not_lost(running: Running) -> None:
    body = {"changes": {FLAG: 99}, "ttl": 600}
    assert running.connect().ask("PATCH", "/v1/flags", body)[0] == 200
    with pytest.raises(Failure, match="ends by itself"):
        Experiment(plan(), running.path).run()
    assert flag(running).value == 99


# -- the command, in processes of its own -----------------------------------------------------------------------------


def command(*arguments: str) -> subprocess.Popen[str]:
    code = "from arc.console.main import main; main()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-c", code, "ab", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip


def test_a_killed_console_leaves_an_engine_that_goes_back_by_itself(loaded: Running) -> None:
    """SIGKILL in the middle of a block: nothing of the console is left to restore anything."""
    process = command(f"{FLAG}=64,96", "--metric", "step_ms", "--for", "8s", "--block", "1s")
    until(lambda: flag(loaded).until is not None, 60)
    process.kill()
    process.wait(30)
    assert flag(loaded).value in (64, 96), "it was in the middle of it"
    until(lambda: flag(loaded).until is None, 60)
    as_before(loaded)
    assert loaded.engine.events.since(0)[1][-1].kind == "reverted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_restores_and_still_reports(loaded: Running, number: int, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    process = command(
        f"{FLAG}=64,96", "--metric", "step_ms", "--for", "10m", "--block", "30s", "--out", str(out)
    )
    until(lambda: flag(loaded).until is not None, 60)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped by" in printed and f"{FLAG} is {SLOW} again" in printed
    as_before(loaded)
    assert msgspec.json.decode(out.read_bytes(), type=Report).end == "operator"


def test_the_command_reports_as_text_and_as_json(loaded: Running) -> None:
    arguments = [f"{FLAG}={SLOW},{FAST}", "--metric", "effective_batch", "--for", "8s", "--seed", "3"]
    report = json.loads(run("ab", *arguments, "--json").output)
    assert report["end"] == "decided" and report["restored"] is True and report["seed"] == 3
    assert report["guards"] == {"ttft_p95": 3.0, "itl_p95": 3.0}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["sched.prefill_chunk=64", "--metric", "itl_p95", "--for", "1m"], 2, "FLAG=FIRST,SECOND"),
        (["sched.prefill_chunk=64,128,256", "--metric", "itl_p95", "--for", "1m"], 2, "FLAG=FIRST,SECOND"),
        (["a=1,2", "--metric", "itl_p59", "--for", "1m"], 1, "itl_p95"),
        (["a=1,2", "--metric", "itl_p95", "--for", "3s"], 1, "--for 8s"),
        (["a=1,2", "--metric", "itl_p95", "--for", "1m", "--block", "20s"], 1, "pairs of 20 s"),
        (["a=1,2", "--metric", "itl_p95", "--for", "1m", "--guard", "ttft_p95=0.5"], 2, "above 1"),
        (["a=1,2", "--metric", "itl_p95", "--for", "1m", "--guard", "ttft_p95"], 2, "NAME=FACTOR"),
    ],
)
def test_a_wrong_command_line_says_what_is_right(
    folders: Path, arguments: list[str], code: int, said: str
) -> None:
    assert said in run("ab", *arguments, code=code).output


def test_time_is_divided_into_blocks() -> None:
    assert divided(600, None, None) == (15.0, 3.0)
    assert divided(40, None, None) == (5.0, 1.0)
    with pytest.raises(Failure, match="wash-out"):
        divided(600, 10, 9)


# -- what is measured -------------------------------------------------------------------------------------------------


def sample(at: float, **counts: Any) -> p.Sample:
    fields = dict.fromkeys(p.Sample.__struct_fields__, 0)
    return p.Sample(**(fields | {"time": at, "seconds": 1.0, "buckets": {}} | counts))  # pyright: ignore[reportArgumentType]


def test_percentiles_are_of_merged_buckets_and_of_nothing_else() -> None:
    """Two samples whose own p95s average to something else than the p95 of both together."""
    bounds = (0.01, 0.02, 0.04)
    samples = (
        sample(11.0, buckets={"between_tokens": {0: 95, 2: 5}}),
        sample(12.0, buckets={"between_tokens": {1: 900}}),
        sample(13.5, buckets={"between_tokens": {2: 10_000}}),  # reaches past the window
        sample(10.5, buckets={"between_tokens": {2: 10_000}}),  # begins before it
    )
    window = inside(samples, bounds, 10.0, 13.0)
    assert [each.time for each in window.samples] == [11.0, 12.0]
    merged = p.Percentiles.of([95, 900, 5, 0], bounds)
    assert isinstance(merged.p95, float)
    assert metric_of("itl_p95").value(window) == pytest.approx(1000 * merged.p95)
    past = inside((sample(11.0, buckets={"between_tokens": {3: 1}}),), bounds, 10.0, 13.0)
    assert isinstance(metric_of("itl_p50").value(past), NA), "past the last bucket's bound nothing is known"


def test_rates_are_sums_over_sums() -> None:
    window = inside(
        (sample(11.0, generation_tokens=10, steps=1, rows=8, step_seconds=0.5), sample(12.0, generation_tokens=30)),
        (), 10.0, 13.0,
    )  # fmt: skip
    assert metric_of("output_tok_s").value(window) == 20
    assert metric_of("step_ms").value(window) == 500 and metric_of("effective_batch").value(window) == 8
    assert isinstance(metric_of("prompt_tok_s").value(window), NA)


def test_a_metric_is_worse_in_its_own_direction() -> None:
    assert metric_of("itl_p95").worsened(2.0) == 2.0
    assert metric_of("output_tok_s").worsened(0.5) == 2.0
