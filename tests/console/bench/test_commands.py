"""`arc bench run` as a command: against a stub for what it prints and refuses, and against real engines."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arc.console.ab.experiment import Experiment
from arc.console.ab.metrics import METRICS
from arc.console.ab.plan import Plan as Trial
from arc.console.ab.statistics import Estimate
from arc.console.bench import engines
from arc.console.bench.engines import Started
from arc.console.bench.load import Bounds, Load
from arc.console.bench.result import read
from arc.console.bench.work import Lengths, Plan
from arc.console.client import Client
from arc.console.exits import Failure
from arc.console.held_flags import flags_of
from arc.engine.control import protocol as p

from tests.peers.make_checkpoint import TINY, write_checkpoint

from ..test_control_commands import run
from . import stub as stubs
from .stub import stub


def test_the_numbers_of_a_run(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    with stub() as served:
        text = run(
            "bench", "--url", served.url + "/v1", "--work", "mixed", "--prompt", "5..9", "--output", "3..6",
            "--requests", "10", "--concurrency", "3", "--repeats", "2", "--warmup", "2", "--out", str(out), "--plot",
        ).output  # fmt: skip
        assert len(served.bodies) == 2 + 2 * 10
        for body in served.bodies:
            assert (
                5 <= len(body["prompt"]) <= 9 and 3 <= body["max_tokens"] <= 6 and body["ignore_eos"] is True
            )
    assert "output tok/s" in text and "2 passes of 10 requests" in text and "NA (no control socket" in text
    assert "time between tokens, ms" in text
    written = read(out)
    (cell,) = written.cells
    assert [each.finished for each in cell.passes] == [10, 10]
    assert sum(each.output_tokens for each in cell.passes) == sum(
        body["max_tokens"] for body in served.bodies[2:]
    )
    assert written.client.revision and written.server is not None and written.server.model == "stub"


def test_errors_are_in_the_output_and_a_run_without_an_answer_fails() -> None:
    calls = itertools.count()

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        refused = next(calls) % 2
        await (stubs.refuse(429, "too many", "Retry-After: 1") if refused else stubs.plain)(body, writer)

    arguments = ("--requests", "4", "--concurrency", "1", "--repeats", "1", "--warmup", "0")
    with stub(answer) as served:
        text = run("bench", "run", "--url", served.url, *arguments).output
        assert "FAILED 2 x HTTP 429: too many (Retry-After: 1)" in text
    with stub(stubs.refuse(503, "draining")) as served:
        assert "FAILED 4 x HTTP 503: draining" in run("bench", "--url", served.url, *arguments, code=1).output
        warm = ("--requests", "4", "--repeats", "1")
        assert "HTTP 503: draining" in run("bench", "--url", served.url, *warm, code=1).output


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--rate", "5", "--concurrency", "3"], 2, "give one"),
        (["--work", "unifrom"], 2, "none of uniform"),
        (["--prompt", "9..5"], 2, "lower one first"),
        (["--prompt", "4000", "--output", "200"], 1, "context of 4096"),
        (["--bound", "itl=5"], 2, "ttft, tpot or e2e"),
        (["--bound", "ttft=fast"], 2, "no number"),
        (["--set", "sched.order"], 2, "FLAG=VALUE"),
        (["--set", "sched.order=prefix"], 1, "--engine"),
        (["--model", "other"], 1, "serves stub"),
        (["--endpoint", "chat"], 1, "trace whose lines have a prompt"),
    ],
)
def test_a_wrong_command_line_says_what_is_right(arguments: list[str], code: int, said: str) -> None:
    with stub() as served:
        assert said in run("bench", "--url", served.url, *arguments, code=code).output
        assert served.bodies == []


def test_no_endpoint_is_said_at_once() -> None:
    assert "no OpenAI endpoint" in run("bench", "--url", "http://127.0.0.1:9", code=1).output


def test_a_trace_with_times_is_sent_at_its_times(tmp_path: Path) -> None:
    lines = [{"timestamp": 300 * n, "input_length": 4, "output_length": 2} for n in range(4)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with stub() as served:
        arguments = ["--work", str(tmp_path / "t.jsonl"), "--repeats", "1", "--warmup", "0", "--json"]
        found = json.loads(run("bench", "--url", served.url, *arguments).output)
        assert len(served.bodies) == 4
    assert found["cells"][0]["passes"][0]["seconds"] >= 0.9
    assert found["command"]["concurrency"] is None and found["command"]["rate"] is None


def test_a_rate_that_is_asked_for_goes_before_a_trace_s_times(tmp_path: Path) -> None:
    """By its own times this trace would take hours."""
    lines = [{"timestamp": 3_600_000 * n, "input_length": 4, "output_length": 2} for n in range(4)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = [
        "--work",
        str(tmp_path / "t.jsonl"),
        "--repeats",
        "1",
        "--warmup",
        "0",
        "--rate",
        "1000",
        "--json",
    ]
    with stub() as served:
        found = json.loads(run("bench", "--url", served.url, *arguments).output)
    assert found["cells"][0]["passes"][0]["finished"] == 4 and found["command"]["rate"] == 1000


# -- real engines -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A real `arc serve` on a tiny random checkpoint."""
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, TINY, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        base = tmp_path_factory.mktemp("x", numbered=True)
        patch.setenv("XDG_RUNTIME_DIR", str(base))
        patch.setenv("XDG_STATE_HOME", str(base))
        flags = ("sched.max_running=9", "sched.max_waiting=64", "cpu.threads=1")
        with engines.started(str(folder), flags) as running:
            yield running


SMALL = ("--vocab", "300", "--repeats", "1")


def values(engine: Started) -> dict[str, Any]:
    with Client(engine.socket) as client:
        return {name: (flag.value, flag.origin.layer, flag.until) for name, flag in flags_of(client).items()}


def test_a_run_on_an_engine_has_its_provenance_and_puts_flags_back(engine: Started, tmp_path: Path) -> None:
    before, out = values(engine), tmp_path / "a.json"
    arguments = [
        "--requests",
        "8",
        "--concurrency",
        "4",
        "--prompt",
        "8",
        "--output",
        "12",
        "--out",
        str(out),
    ]
    text = run("bench", "-e", engine.socket.stem, *SMALL, *arguments, "--set", "sched.max_running=2").output
    assert values(engine) == before
    written = read(out)
    server, cell = written.server, written.cells[0]
    assert server is not None and server.device == "cpu" and server.pid == engine.pid
    assert server.differs is not None and server.differs["sched.max_running"] == 9
    assert server.dirty == str(server.revision).endswith("-dirty")
    counted = cell.passes[0].engine
    assert counted is not None and isinstance(counted.effective_batch, float)
    assert 1 <= counted.effective_batch <= 2, "the flag was in force"
    assert cell.passes[0].output_tokens == 8 * 12 and cell.flags == {"sched.max_running": "2"}
    assert "effective batch" in text


def test_a_refused_flag_changes_nothing_and_sends_nothing(engine: Started) -> None:
    before = values(engine)
    name = engine.socket.stem
    assert (
        "max_running" in run("bench", "-e", name, *SMALL, "--set", "sched.max_running=10000", code=4).output
    )
    assert "start only" in run("bench", "-e", name, *SMALL, "--set", "cache.page_size=16", code=1).output
    assert "no flag spec.depht" in run("bench", "-e", name, *SMALL, "--set", "spec.depht=1", code=1).output
    assert values(engine) == before


def test_the_admission_experiment_runs_and_puts_everything_back(engine: Started, tmp_path: Path) -> None:
    before, out = values(engine), tmp_path / "a.json"
    text = run(
        "bench", "admission", "-e", engine.socket.stem, *SMALL, "--sizes", "1,8", "--prompt", "8..160",
        "--output", "8..12", "--rounds", "3", "--out", str(out), "--plot",
    ).output  # fmt: skip
    assert values(engine) == before
    written = read(out)
    assert [cell.name for cell in written.cells] == [f"{arm} x {size}" for arm in "ABCD" for size in (1, 8)]
    assert written.verdict is not None and f"{written.verdict.word}: " in text
    batch = {
        cell.name: found.effective_batch
        for cell in written.cells
        if (found := cell.passes[0].engine) is not None
    }
    for arm in "ABCD":
        assert batch[f"{arm} x 1"] == 1.0
    mixed, ragged = batch["B x 8"], batch["D x 8"]
    assert isinstance(mixed, float) and isinstance(ragged, float)
    assert mixed < 0.7 * ragged, (
        "mixed lengths shatter the buckets: the fingerprint does not depend on the clock"
    )


def test_one_round_leaves_nothing_to_measure_and_is_refused(engine: Started) -> None:
    refused = run("bench", "admission", "-e", engine.socket.stem, *SMALL, "--rounds", "1", code=2)
    assert "--rounds" in refused.output and "x>=2" in refused.output


def test_an_experiment_on_live_traffic_finds_a_large_effect(engine: Started) -> None:
    """Rows of spread lengths, always more than may run: which of them a step takes changes at the very next step, so
    that the effect is there however slow the machine is."""
    before, over = values(engine), threading.Event()

    def load() -> None:
        jobs = Plan("spread", Lengths(8, 8), Lengths(40, 40), 6, 300, 512).jobs(5)
        endless = itertools.takewhile(lambda _: not over.is_set(), jobs)
        asyncio.run(Load(engine.site().target, Bounds()).closed(endless, 10**9, 12))

    loader = threading.Thread(target=load, daemon=True)
    loader.start()
    try:
        plan = Trial(
            flag="admission.policy", values=("ragged", "bucketed"), metric=METRICS["effective_batch"], seconds=16.0,
            block=2.0, washout=0.5, guards=(), alpha=0.05, margin=None, seed=3,
        )  # fmt: skip
        report = Experiment(plan, engine.socket).run()
    finally:
        over.set()
        loader.join(120)
    assert not loader.is_alive()
    assert isinstance(report.estimate, Estimate), report
    assert report.end == "decided" and report.estimate.high < 1, report
    assert report.restored is True and report.before == "ragged"
    assert values(engine) == before


def test_what_this_engine_lacks_is_refused_by_name(engine: Started) -> None:
    with Client(engine.socket) as client:
        has = flags_of(client)
    if "spec.depth" not in has:
        assert "no flag spec.depth" in run("bench", "spec", "-e", engine.socket.stem, code=1).output
    if "cache.layout" not in has:
        assert "no flag cache.layout" in run("bench", "layouts", code=1).output


def test_a_bench_that_is_terminated_leaves_no_engine(engine: Started) -> None:
    """`engine` is asked for its folders alone."""
    code = """
import sys, time
from arc.console.bench import engines
with engines.started(sys.argv[1], ("cpu.threads=1",)) as running:
    print(running.pid, flush=True)
    time.sleep(300)
"""
    with Client(engine.socket) as client:
        model = client.get("/v1/hello", p.Hello).model_path
    process = subprocess.Popen([sys.executable, "-c", code, model], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.terminate()
    assert process.wait(120) == 143
    assert not Path(f"/proc/{child}").exists()


def test_an_engine_that_does_not_start_says_why(engine: Started) -> None:
    began = time.monotonic()
    with (
        pytest.raises(Failure, match=r"did not start.*sched.max_runing"),
        engines.started(None, ("sched.max_runing=3",)),
    ):
        pass
    assert time.monotonic() - began < engines._STARTS_WITHIN
