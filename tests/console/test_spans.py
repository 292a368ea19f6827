"""`arc spans` and `arc profile`: over a simulated engine, over a real one, and when the command is killed."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from arc.console import trace_events
from arc.console.exits import Exit, Failure
from arc.console.main import arc
from arc.console.span_compare import differences, pairs, read_report
from arc.console.span_tree import arranged, nodes
from arc.engine.control import span_messages as s
from arc.engine.core.assembly import Assembly
from arc.engine.profiler.sites import Detail
from click.testing import CliRunner, Result

from ..engine.conftest import tiny
from ..engine.control.conftest import Running, folders, running, start
from ..engine.control.test_real_engine import controlled
from ..engine.core.living import request, submit, until
from ..engine.profiler.simulated import BUILD, US, Bench, Work, on_a_device

__all__ = ["folders", "running", "start", "tiny"]  # fixtures


# -- the form of a trace: the events of the document "Trace Event Format" that are written, and nothing else


class Metadata(msgspec.Struct, tag_field="ph", tag="M", forbid_unknown_fields=True):
    name: Literal["process_name", "thread_name"]
    pid: int
    tid: int
    ts: float
    args: dict[str, str]


class Complete(msgspec.Struct, tag_field="ph", tag="X", forbid_unknown_fields=True):
    name: str
    cat: str
    pid: int
    tid: int
    ts: float
    dur: float
    args: dict[str, int] = {}


class Counter(msgspec.Struct, tag_field="ph", tag="C", forbid_unknown_fields=True):
    name: str
    pid: int
    tid: int
    ts: float
    args: dict[str, float]


class Other(msgspec.Struct, forbid_unknown_fields=True):
    build: s.Build
    proof: s.Proof
    detail: Literal["step", "layer", "op"]
    began: float
    seconds: float
    cut: bool
    device: Any
    report: s.SpanReport


class Document(msgspec.Struct, forbid_unknown_fields=True):
    traceEvents: list[Metadata | Complete | Counter]
    displayTimeUnit: Literal["ms", "ns"]
    otherData: Other


def valid(content: bytes) -> Document:
    """The document, checked: its types, that tracks are named, and that spans nest with parents first."""
    document = msgspec.json.decode(content, type=Document)
    spans = [event for event in document.traceEvents if isinstance(event, Complete)]
    named = {
        event.tid
        for event in document.traceEvents
        if isinstance(event, Metadata) and event.name == "thread_name"
    }
    assert {span.tid for span in spans} <= named
    for track in named:
        open_: list[Complete] = []
        for span in (each for each in spans if each.tid == track):
            assert span.dur >= 0
            while open_ and open_[-1].ts + open_[-1].dur <= span.ts + 0.0005:
                open_.pop()
            if open_:
                outer = open_[-1]
                assert outer.ts <= span.ts + 0.0005, (
                    f"{span.name} stands after {outer.name} and begins before it"
                )
                assert span.ts + span.dur <= outer.ts + outer.dur + 0.0005, (
                    f"{span.name} outlives {outer.name}"
                )
            open_.append(span)
    return document


def documented(bench: Bench) -> Document:
    bench.clock.pass_(10**9)
    report = bench.report()
    trace = bench.profiler.trace(BUILD, 60.0)
    assert trace is not None
    return valid(trace_events.document(trace, report, "main"))


def test_a_trace_with_a_device_has_both_tracks() -> None:
    bench = on_a_device().on()
    bench.engine.run(*[Work(rows=n + 1) for n in range(5)])
    document = documented(bench)
    spans = [event for event in document.traceEvents if isinstance(event, Complete)]
    host, device = (
        [span for span in spans if span.tid == track] for track in (trace_events.HOST, trace_events.DEVICE)
    )
    assert (
        sum(span.name == "mla_attn" for span in host) == sum(span.name == "mla_attn" for span in device) == 15
    )
    assert not any(span.name == "publish" for span in device), "the device does not publish"
    assert max(span.dur for span in device if span.name == "attend") == pytest.approx(120), (
        "its 100 us of work, and the 20 us in which the device waits for it"
    )
    steps = [span for span in host if span.name == "step"]
    assert [span.args["rows"] for span in steps] == [1, 2, 3, 4, 5]
    assert [event.args["rows"] for event in document.traceEvents if isinstance(event, Counter)] == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_a_trace_without_a_device_says_why_there_is_no_track() -> None:
    bench = Bench().on(Detail.LAYER)
    bench.engine.run(Work(), Work("prompt"), Work("mixed"))
    document = documented(bench)
    spans = [event for event in document.traceEvents if isinstance(event, Complete)]
    assert {span.tid for span in spans} == {trace_events.HOST}
    assert {span.cat for span in spans} == {"decode", "prompt", "mixed"}
    assert "without a device" in document.otherData.device["na"]


def test_the_check_of_a_trace_finds_what_is_wrong() -> None:
    bench = Bench().on()
    bench.engine.run(Work())
    trace = bench.profiler.trace(BUILD, 60.0)
    assert trace is None or not trace.steps, "not flushed yet"
    report = bench.report()
    trace = bench.profiler.trace(BUILD, 60.0)
    assert trace is not None
    longer = msgspec.structs.replace(trace, wall=[trace.wall[0], *(wall * 9 for wall in trace.wall[1:])])
    with pytest.raises(AssertionError, match="outlives"):
        valid(trace_events.document(longer, report, "main"))


# -- comparing


def reported(extra: int, **flags: Any) -> s.SpanReport:
    bench = Bench().on(Detail.LAYER)
    bench.engine.run(*[Work(extra=extra)] * 10)
    return msgspec.structs.replace(bench.report(), build=msgspec.structs.replace(BUILD, **flags))


def test_two_reports_are_compared_span_by_span() -> None:
    found = pairs(reported(100 * US), reported(300 * US))
    by_path = {pair.node.path: pair for pair in found["decode"]}
    assert by_path["step/decode"].difference == pytest.approx(200e-6)
    assert by_path["step/publish"].ratio == pytest.approx(1.0)
    assert by_path["step/decode/model_forward/mla_attn"].difference == pytest.approx(0.0, abs=1e-12)


def test_a_span_that_one_report_lacks_stands_at_its_place_without_a_number() -> None:
    deep = Bench().on(Detail.OP)
    deep.engine.run(Work())
    found = pairs(deep.report(), reported(0))["decode"]
    at = [pair.node.path for pair in found].index("step/decode/model_forward/mla_attn/attend")
    assert found[at - 1].node.name == "mla_attn"
    assert found[at].after is None and found[at].difference is None and found[at].ratio is None


def test_builds_that_differ_are_said_to() -> None:
    other = msgspec.structs.replace(BUILD, revision="def", flags={"kernels.backend": "torch"})
    assert differences(BUILD, BUILD) == []
    assert differences(BUILD, other) == [
        "revision abc against def",
        "kernels.backend the profile's against torch",
    ]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"traceEvents": []}', b'{"otherData": {"report": 3}}', b"3"]
)
def test_a_file_that_is_no_report_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(Failure, match="neither a trace"):
        read_report(path)


def test_siblings_are_sorted_and_stay_under_their_parent() -> None:
    report = reported(500 * US)
    tree = nodes(report.kinds[0], report)
    by_wall = arranged(tree, "wall")
    assert [node.name for node in by_wall if node.depth == 1] == [
        "decode", "scheduler.schedule", "scheduler.inbox", "publish", "sample",
    ]  # fmt: skip
    assert arranged(tree, "tree") == tree
    assert next(node.name for node in arranged(tree, "name") if node.depth == 1) == "decode"
    for key in ("device", "sync"):
        assert sorted(node.path for node in arranged(tree, key)) == sorted(node.path for node in tree)


# -- the commands


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(arc, arguments, prog_name="arc")
    assert result.exit_code == code, (result.exit_code, result.output, result.exception)
    return result


def test_without_a_recording_the_command_says_what_to_do(running: Running) -> None:
    assert "nothing was recorded yet" in run("spans", code=Exit.ERROR).stderr


def test_the_tree_the_fit_and_the_data(running: Running) -> None:
    bench = on_a_device().on()
    bench.engine.run(*[Work(rows=1 + n % 30, extra=(1 + n % 30) * 10 * US) for n in range(60)])
    bench.clock.pass_(10**9)
    running.engine.span_report = bench.report()
    text = run("spans").output
    assert "proof PASS" in text and "self-test pass" in text
    step = next(line for line in text.splitlines() if line.startswith("step"))
    assert step.split()[-1] == "100.0" and "NA" not in step
    assert "a span of the host alone" in text, "why publish has no device time"
    assert "dispatch" not in text and "shared: fused" in text, "what is not timed here, and why"
    fit = run("spans", "--fit").output
    assert "0.010 (+-0.000) ms x rows" in fit
    data = msgspec.json.decode(run("spans", "--json").output.encode(), type=s.SpanReport)
    assert data == running.engine.span_report
    ordered = [
        line.strip().split()[0]
        for line in run("spans", "--sort", "wall").output.splitlines()
        if line[:3] == "  s"
    ]
    assert ordered[0] == "sample", "waiting for the device is the longest"


def test_a_capture_needs_a_file_and_a_comparison_no_engine(tmp_path: Path, folders: Path) -> None:
    assert "--out" in run("profile", code=Exit.USAGE).stderr
    for name, extra in (("a", 100), ("b", 250)):
        (tmp_path / name).write_bytes(msgspec.json.encode(reported(extra * US, revision=name)))
    text = run("profile", "--compare", str(tmp_path / "a"), str(tmp_path / "b")).output
    assert "they differ in: revision a against b" in text
    assert "+0.150" in text


async def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, _argv(*arguments), capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


def _argv(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from arc.console.main import main; main()", *arguments]


async def test_a_capture_of_a_real_engine_is_a_valid_trace_and_leaves_the_flags_as_they_were(
    tiny: Path, tmp_path: Path, folders: Path
) -> None:
    out = tmp_path / "trace.json"
    async with controlled(tiny, tmp_path, profile__detail="step") as (assembly, _ask), working(assembly):
        before = assembly.port.settings.values()
        done = await command("profile", "--seconds", "1", "--out", str(out))
        assert done.returncode == 0, done.stderr
        assert assembly.port.settings.values() == before
        assert "engine" not in vars(assembly.engine) and "step" not in vars(assembly.engine)
    document = valid(out.read_bytes())
    names = {event.name for event in document.traceEvents if isinstance(event, Complete)}
    assert {"step", "decode", "model_forward", "mla_attn", "attend", "moe", "experts", "publish"} <= names
    assert document.otherData.proof.verdict == "pass", document.otherData.proof.failures
    assert document.otherData.build.model == assembly.info.model
    assert read_report(out).kinds, "what --compare reads"
    assert f"written: {out}" in done.stdout


@pytest.mark.parametrize("detail", ["op", "layer"])
async def test_a_capture_over_a_lasting_profile_leaves_it_as_it_was(
    tiny: Path, tmp_path: Path, folders: Path, detail: str
) -> None:
    """With another detail than the capture's, too, which begins anew when it comes and when it goes."""
    out = tmp_path / "trace.json"
    flags = {"profile__enabled": "on", "profile__detail": detail}
    async with controlled(tiny, tmp_path, **flags) as (assembly, _ask), working(assembly):
        before = assembly.port.settings.values()
        done = await command("profile", "--seconds", "1", "--out", str(out))
        assert done.returncode == 0, done.stderr
        assert assembly.port.settings.values() == before
        assert "step" in vars(assembly.engine)
    names = {event.name for event in valid(out.read_bytes()).traceEvents if isinstance(event, Complete)}
    assert "attend" in names, "a span of the detail op"


async def test_a_capture_whose_command_is_killed_ends_all_the_same(
    tiny: Path, tmp_path: Path, folders: Path
) -> None:
    async with controlled(tiny, tmp_path) as (assembly, _ask), working(assembly):
        arguments = _argv("profile", "--seconds", "3", "--out", str(tmp_path / "trace.json"))
        capture = await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.DEVNULL)
        try:
            await until(lambda: assembly.port.settings.get_bool("profile.enabled"), 60)
        finally:
            capture.kill()
            await capture.wait()
        assert "step" in vars(assembly.engine), "it recorded"
        await until(lambda: not assembly.port.settings.get_bool("profile.enabled"), 60)
        assert "step" not in vars(assembly.engine)
    assert not (tmp_path / "trace.json").exists()


async def test_a_capture_of_an_idle_engine_writes_nothing_and_says_so(
    tiny: Path, tmp_path: Path, folders: Path
) -> None:
    async with controlled(tiny, tmp_path):
        done = await command("profile", "--seconds", "0.2", "--out", str(tmp_path / "trace.json"))
    assert done.returncode == Exit.ERROR and "no step ran" in done.stderr
    assert not (tmp_path / "trace.json").exists()


@contextlib.asynccontextmanager
async def working(assembly: Assembly) -> AsyncIterator[None]:
    """Requests without end while the body runs."""
    ended = False

    async def one(number: int) -> None:
        turn = 0
        while not ended:
            turn += 1
            stream = submit(assembly, request(f"w{number}-{turn}", list(range(3, 30)), max_tokens=50))
            async for _ in stream:
                pass

    tasks = [asyncio.create_task(one(number)) for number in range(3)]
    try:
        await until(lambda: assembly.engine.steps > 3)
        yield
    finally:
        ended = True
        await asyncio.gather(*tasks)
