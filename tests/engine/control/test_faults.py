"""What goes wrong in operation. After each the engine serves, no request is lost, the flags are as last accepted."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from arc.engine.control import paths, recording

from .conftest import Running
from .test_server import audit_lines, until
from .wire import Wire


class Processes:
    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def engine(self, name: str = "main", requests: int = 3) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.engine.control.process", name, str(requests)]
        engine = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ)
        self.started.append(engine)
        assert engine.stdout is not None and engine.stdout.readline() == b"up\n"
        return engine


@pytest.fixture
def processes(folders: Path) -> Iterator[Processes]:
    processes = Processes()
    yield processes
    for each in processes.started:
        each.kill()
        each.wait()
        assert each.stdout is not None
        each.stdout.close()


def socket_of(name: str) -> Path:
    return paths.socket_path(paths.runtime_folder(), name)


def intact(running: Running, **flags: Any) -> None:
    """The engine serves and finishes what it gets, and the flags are these."""
    shown = {flag["name"]: flag["value"] for flag in running.connect().get("/v1/flags")["flags"]}
    assert {name: shown[name] for name in (each.replace("__", ".") for each in flags)} == {
        name.replace("__", "."): value for name, value in flags.items()
    }
    done = len(running.engine.finished)
    running.engine.submit(3)
    assert running.engine.wait_finished(done + 1)


def test_kill_9_and_a_start_on_the_same_socket(processes: Processes) -> None:
    first = processes.engine()
    wire = Wire(socket_of("main"))
    assert wire.ask("PATCH", "/v1/flags", {"changes": {"sched.max_running": 9}, "reason": "tight"})[0] == 200
    pid = wire.get("/v1/hello")["pid"]
    until(lambda: wire.get("/v1/snapshot")["step"] > 10)
    first.send_signal(signal.SIGKILL)
    first.wait()
    with pytest.raises((ConnectionError, OSError)):
        Wire(socket_of("main")).get("/v1/hello")
    found = recording.read(paths.recording_path("main"))
    assert found.ended is None and len(found.steps) > 10
    assert found.header.pid == pid == first.pid
    assert found.values["sched.max_running"] == 9
    assert [event.text for event in found.flags] == ['sched.max_running 64→9 "tight"']
    second = processes.engine()
    wire = Wire(socket_of("main"))
    assert wire.get("/v1/hello")["pid"] == second.pid
    assert wire.get("/v1/flags")["version"] == 0, "what was set at runtime ended with the engine"
    assert recording.read(paths.recording_path("main").with_name("main.rec.prev")).header.pid == first.pid
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0
    assert not socket_of("main").exists()
    assert recording.read(paths.recording_path("main")).ended is not None


def test_the_console_is_killed_after_a_for(processes: Processes) -> None:
    """The engine itself takes the change back."""
    processes.engine()
    console = subprocess.Popen(
        [
            sys.executable, "-c", "from arc.console.main import main; main()",
            "set", "sched.max_running=2", "--for", "1s", "--why", "a moment",
        ],
        env=os.environ,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wire = Wire(socket_of("main"))

    def value() -> Any:
        flags = wire.get("/v1/flags")["flags"]
        return next(flag["value"] for flag in flags if flag["name"] == "sched.max_running")

    until(lambda: value() == 2)
    console.kill()
    console.wait()
    until(lambda: value() == 64)
    assert [event["kind"] for event in wire.get("/v1/events")["events"]] == ["flags", "reverted"]


def test_two_operators_change_one_flag(running: Running) -> None:
    """With expect_version one of two at the same moment wins and the other is told; nothing is half-applied."""
    for _ in range(20):
        running.engine.submit(50)
    outcomes: list[int] = []
    barrier = threading.Barrier(2)

    def operate(seed: int) -> None:
        wire = running.connect()
        rng = random.Random(seed)
        for _ in range(25):
            version = wire.get("/v1/flags")["version"]
            barrier.wait()
            changes = {
                "sched.max_running": rng.randint(1, 100),
                "sched.order": rng.choice(["fcfs", "prefix"]),
            }
            outcomes.append(
                wire.ask("PATCH", "/v1/flags", {"changes": changes, "expect_version": version})[0]
            )
            barrier.wait()

    operators = [threading.Thread(target=operate, args=(seed,)) for seed in (1, 2)]
    for each in operators:
        each.start()
    for each in operators:
        each.join()
    assert outcomes.count(200) == 25 and outcomes.count(409) == 25
    assert running.engine.settings.version == 25
    accepted = [event for event in running.engine.events.since(0)[1] if event.kind == "flags"]
    last = {name: change["new"] for name, change in accepted[-1].data["changes"].items()}
    assert running.engine.wait_finished(20)
    intact(running, sched__max_running=last["sched.max_running"], sched__order=last["sched.order"])
    until(lambda: len(audit_lines()) == 50)


def test_a_change_during_a_long_step_waits_for_its_border_and_loses_nothing(running: Running) -> None:
    """A long prefill is one long step, seen from here."""
    engine = running.engine
    engine.step_seconds = 0.6
    ids = [engine.submit(1) for _ in range(5)]
    until(lambda: engine.counters.step_open_since)
    wire = running.connect()
    status, applied = wire.ask("PATCH", "/v1/flags", {"changes": {"sched.max_running": 4}})
    assert status == 200
    record = engine.step_ring[-1]
    assert applied["step"] == record.index + 1, "the first step that runs with it"
    engine.step_seconds = 0.001
    assert engine.wait_finished(5) and sorted(engine.finished) == sorted(ids)
    intact(running, sched__max_running=4)


def test_changes_and_time_limits_go_on_while_draining(running: Running) -> None:
    engine = running.engine
    ids = [engine.submit(400) for _ in range(10)]
    until(lambda: engine.counters.running == 10)
    wire = running.connect()
    assert wire.ask("POST", "/v1/actions/drain", {})[0] == 200
    assert wire.ask("PATCH", "/v1/flags", {"changes": {"sched.order": "prefix"}})[0] == 200
    assert wire.ask("PATCH", "/v1/flags", {"changes": {"sched.max_running": 3}, "ttl": 0.1})[0] == 200
    until(lambda: engine.settings["sched.max_running"] == 64)
    assert len(engine.finished) < 10, "the time ran out while it drained"
    assert engine.wait_finished(10) and sorted(engine.finished) == sorted(ids)
    intact(running, sched__max_running=64, sched__order="prefix")


def noise(running: Running, data: bytes) -> None:
    """Sent whole, or as far as the server lets it; what comes back is an error or the end of the connection."""
    with socket.socket(socket.AF_UNIX) as console:
        console.settimeout(10)
        console.connect(str(running.path))
        try:
            console.sendall(data)
            console.shutdown(socket.SHUT_WR)
            answer = console.recv(4096)
        except (BrokenPipeError, ConnectionResetError):
            return
        assert answer == b"" or (answer.startswith(b"HTTP/1.") and b" 4" in answer.splitlines()[0]), answer[
            :100
        ]


NOISE: dict[str, Callable[[], bytes]] = {
    "random": lambda: random.Random(1).randbytes(10_000_000),
    "zeros": lambda: bytes(10_000_000),
    "one long line": lambda: b"GET /" + b"a" * 10_000_000,
    "endless headers": lambda: b"GET /v1/hello HTTP/1.1\r\n" + b"X-A: b\r\n" * 1_000_000,
    "a long header": lambda: b"GET /v1/hello HTTP/1.1\r\nX: " + b"a" * 10_000_000,
    "newlines": lambda: b"\r\n" * 5_000_000,
    "a long body": lambda: (
        b"PATCH /v1/flags HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n" + b"[" * 10_000_000
    ),
    "endless chunks": lambda: (
        b"PATCH /v1/flags HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"5\r\n[[[[[\r\n" * 1_000_000
    ),
    "TLS": lambda: bytes.fromhex("16030100a5010000a10303") + random.Random(2).randbytes(500),
    "two lengths": lambda: (
        b"PATCH /v1/flags HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x"
    ),
    "HTTP/2": lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(1000),
}


@pytest.mark.parametrize("kind", NOISE)
def test_noise(running: Running, kind: str) -> None:
    ids = [running.engine.submit(20) for _ in range(5)]
    noise(running, NOISE[kind]())
    assert running.engine.wait_finished(5) and sorted(running.engine.finished) == sorted(ids)
    intact(running, sched__max_running=64)
    assert running.engine.settings.version == 0


HALVES = [
    b"G", b"GET /v1/hel", b"GET /v1/hello HTTP/1.1\r\n", b"GET /v1/hello HTTP/1.1\r\nHost: arc\r\n",
    b"PATCH /v1/flags HTTP/1.1\r\nHost: arc\r\nContent-Length: 60\r\n\r\n",
    b'PATCH /v1/flags HTTP/1.1\r\nHost: arc\r\nContent-Length: 60\r\n\r\n{"changes": {"sched.max_runn',
    b"PATCH /v1/flags HTTP/1.1\r\nHost: arc\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{",
]  # fmt: skip


@pytest.mark.parametrize("half", HALVES, ids=range(len(HALVES)))
def test_half_a_message_and_gone(running: Running, half: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as console:
        console.connect(str(running.path))
        console.sendall(half)
    intact(running, sched__max_running=64)
    assert running.engine.settings.version == 0
    until(lambda: running.server.open_connections <= 2)


def test_a_console_that_goes_away_while_its_change_waits(running: Running) -> None:
    """What was asked for completely is carried out, and audited, though nobody waits for the answer."""
    engine = running.engine
    engine.step_seconds = 0.4
    engine.submit(1)
    until(lambda: engine.counters.step_open_since)
    body = b'{"changes": {"sched.order": "prefix"}}'
    with socket.socket(socket.AF_UNIX) as console:
        console.connect(str(running.path))
        console.sendall(
            b"PATCH /v1/flags HTTP/1.1\r\nHost: arc\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        time.sleep(0.05)
    until(lambda: engine.settings["sched.order"] == "prefix")
    engine.step_seconds = 0.001
    until(lambda: [line["result"] for line in audit_lines()] == ["ok"])
    intact(running, sched__order="prefix")


def test_an_audit_log_that_cannot_be_written_is_announced_once_and_stops_nobody(running: Running) -> None:
    path = paths.audit_path("sim")
    path.mkdir()
    wire = running.connect()
    for order in ("prefix", "priority", "fcfs"):
        assert wire.ask("PATCH", "/v1/flags", {"changes": {"sched.order": order}})[0] == 200
    kinds = until(
        lambda: "audit failed" in (k := [e["kind"] for e in wire.get("/v1/events")["events"]]) and k
    )
    assert kinds.count("audit failed") == 1
    path.rmdir()
    assert wire.ask("PATCH", "/v1/flags", {"changes": {"sched.order": "prefix"}})[0] == 200
    until(lambda: wire.get("/v1/events")["events"][-1]["kind"] == "audit works")
    until(lambda: (lines := audit_lines()) and lines[-1]["difference"] == {"sched.order": ["fcfs", "prefix"]})
    intact(running, sched__order="prefix")
