"""Server-sent events: conflated snapshots, numbered events, gaps that are told, and readers that stall."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from arc.console.client import Client, Refused, connected
from arc.engine.control import connections
from arc.engine.control import stream as stream_module
from arc.engine.control.events import EventLog

from .conftest import Running
from .test_server import until


def test_a_snapshot_comes_at_once_and_then_at_its_rate(running: Running) -> None:
    began = time.monotonic()
    shots = list(islice(running.connect().stream("/v1/stream?hz=20&window=5&sequences=true"), 5))
    assert time.monotonic() - began > 3 / 20, "five of them lie four periods apart, less the phase"
    assert {event for event, _, _ in shots} == {"snapshot"}
    times = [shot["time"] for _, _, shot in shots]
    assert times == sorted(set(times)), "each is newer than the one before"
    assert shots[0][2]["sequences"] == []


def test_events_are_numbered_and_come_in_order(running: Running) -> None:
    log = running.engine.events
    for number in range(5):
        log.add("mark", f"before {number}")
    stream = running.connect().stream("/v1/stream?hz=0&since=2")
    assert [number for _, number, _ in islice(stream, 3)] == [3, 4, 5]
    log.add("mark", "now")
    event, number, data = next(stream)
    assert (event, number, data["text"]) == ("event", 6, "now")


def test_without_since_only_new_events_come(running: Running) -> None:
    running.engine.events.add("mark", "old")
    stream = running.connect().stream("/v1/stream?hz=20")
    assert next(stream)[0] == "snapshot"
    running.engine.events.add("mark", "new")
    event = next(each for each in stream if each[0] == "event")
    assert event[2]["text"] == "new"


def test_last_event_id_resumes_and_tells_the_gap(running: Running) -> None:
    running.engine.events = log = EventLog(kept=10)
    running.server._streams._port = running.engine  # pyright: ignore[reportPrivateUsage]
    for number in range(40):
        log.add("mark", str(number))
    stream = running.connect().stream("/v1/stream?hz=0", Last_Event_ID="12")
    event, number, gap = next(stream)
    assert (event, number, gap) == ("gap", 30, {"dropped": 18, "first": 13, "last": 30})
    assert [number for _, number, _ in islice(stream, 10)] == list(range(31, 41))


def test_a_far_behind_reader_gets_everything_in_pieces(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_MOST_EVENTS", 7)
    for number in range(100):
        running.engine.events.add("mark", str(number))
    stream = running.connect().stream("/v1/stream?hz=0&since=0")
    assert [number for _, number, _ in islice(stream, 100)] == list(range(1, 101))


@pytest.mark.parametrize("given", ["x", "-1", "1.5", "9" * 30, "²"])
def test_an_odd_last_event_id_is_refused(running: Running, given: str) -> None:
    wire = running.connect()
    wire.putrequest("GET", "/v1/stream")
    wire.putheader("Last-Event-ID", given.encode())
    wire.endheaders()
    response = wire.getresponse()
    assert response.status == 400
    assert json.loads(response.read())["error"] == "bad request"


def test_silence_is_broken_by_heartbeats(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "HEARTBEAT", 0.05)
    events = list(islice(running.connect().stream("/v1/stream?hz=0"), 3))
    assert [event for event, _, _ in events] == ["heartbeat"] * 3


def deaf(running: Running, request: str) -> socket.socket:
    """A console that asks and then never reads."""
    console = socket.socket(socket.AF_UNIX)
    console.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    console.settimeout(20)
    console.connect(str(running.path))
    console.sendall(f"GET {request} HTTP/1.1\r\nHost: arc\r\n\r\n".encode())
    return console


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALL", 0.5)


def test_a_console_that_stops_reading_is_cut_off_with_a_reason(running: Running, impatient: None) -> None:
    for _ in range(50):
        running.engine.submit(1_000_000)
    console = deaf(running, "/v1/stream?hz=20&sequences=true")
    reader = running.connect()
    shots = reader.stream("/v1/stream?hz=20")
    found: list[Any] = []

    def cut_off() -> bool:
        found.extend(islice(shots, 1))
        return any(event.kind == "cut off" for event in running.engine.events.since(0)[1])

    until(cut_off, 30.0)
    assert len(found) > 5, "the other console was served meanwhile"
    received = b""
    while chunk := console.recv(65536):
        received += chunk
    assert not received.endswith(b"0\r\n\r\n"), "it was cut off, not ended"
    console.close()
    assert until(lambda: running.engine.counters.steps)


def test_a_deaf_console_costs_no_backlog(running: Running) -> None:
    """What waits for it stays within what socket and transport hold, however long it goes on."""
    for _ in range(200):
        running.engine.submit(1_000_000)
    console = deaf(running, "/v1/stream?hz=20&sequences=true")
    time.sleep(1.5)  # 30 snapshots of about 40 KB
    newest = running.engine.counters.steps
    received = b""
    console.settimeout(0.3)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        received += console.recv(1 << 20)
    shots = [
        json.loads(line[6:])
        for line in received.split(b"\n")
        if line.startswith(b"data: ") and line.endswith(b"}")
    ]
    steps = [shot["step"] for shot in shots]
    assert steps == sorted(steps)
    assert steps[-1] > newest, "after the pause comes the newest, not the next"
    console.close()


def test_a_large_answer_that_nobody_reads_is_cut_off_too(running: Running, impatient: None) -> None:
    console = deaf(running, "/v1/schema")
    for _ in range(20):  # pipelined: far more than the socket holds
        console.sendall(b"GET /v1/schema HTTP/1.1\r\nHost: arc\r\n\r\n")
    until(lambda: any(event.kind == "cut off" for event in running.engine.events.since(0)[1]), 30.0)
    console.close()


def test_a_slow_console_that_does_read_is_left_alone(running: Running, impatient: None) -> None:
    for _ in range(50):
        running.engine.submit(1_000_000)
    console = deaf(running, "/v1/stream?hz=20&sequences=true")
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        assert console.recv(4096)
        time.sleep(0.02)
    assert not [event for event in running.engine.events.since(0)[1] if event.kind == "cut off"]
    console.close()


def test_sixty_four_consoles_and_the_next_is_told_why(start: Callable[..., Running]) -> None:
    running = start()
    running.engine.submit(1_000_000)
    wires = [running.connect() for _ in range(connections.MOST_CONNECTIONS)]
    streams = [wire.stream("/v1/stream?hz=2") for wire in wires]
    assert {next(stream)[0] for stream in streams} == {"snapshot"}
    status, problem = running.connect().ask("GET", "/v1/hello")
    assert (status, problem["error"]) == (503, "too many connections")
    assert {next(stream)[0] for stream in streams} == {"snapshot"}, "they are all served"
    assert running.engine.counters.steps > 0
    wires[0].close()
    del streams[0]
    until(lambda: running.connect().ask("GET", "/v1/hello")[0] == 200)


def test_all_past_the_cap_are_told_why_those_too_that_ask_late(running: Running) -> None:
    """They have connected, and some of them are cut off before they say a word."""
    held = [connected(running.path) for _ in range(connections.MOST_CONNECTIONS)]
    until(lambda: running.server.open_connections == len(held))
    late = [Client(running.path) for _ in range(2 * connections.MOST_CONNECTIONS)]
    for client in late:
        client._connection.connect()
    until(lambda: running.server.open_connections == 2 * connections.MOST_CONNECTIONS)
    for client in late:
        with client, pytest.raises(Refused) as refused:
            client.raw("POST", "/v1/actions/mark", b'{"text": "late"}')
        assert (refused.value.status, refused.value.problem.error) == (503, "too many connections")
    for each in held:
        each.close()


def test_a_flood_of_silent_connections_is_bounded(running: Running) -> None:
    silent: list[socket.socket] = []
    for _ in range(400):
        silent.append(connected(running.path))
    server = running.server
    until(lambda: server.open_connections <= 2 * connections.MOST_CONNECTIONS)
    for console in silent:
        console.close()
    until(lambda: served(running))


def served(running: Running) -> bool:
    """Whether a new console is; while the flood lasts it may be cut off, or told 503."""
    try:
        return running.connect().ask("GET", "/v1/hello")[0] == 200
    except ConnectionError:
        return False
