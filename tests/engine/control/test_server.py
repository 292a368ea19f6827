"""What the socket answers, to whom, and what it does not take."""

from __future__ import annotations

import grp
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from arc.engine.control import connections, paths
from arc.engine.control import handlers as handlers_module
from arc.engine.control import protocol as p
from arc.engine.control import server as server_module
from arc.engine.control.endpoints import ENDPOINTS
from arc.engine.control.listening import Listening
from arc.engine.control.protocol import NA
from arc.engine.control.server import ControlServer
from arc.engine.flags import FLAGS

from .conftest import Running
from .simulated import PAGES, SimulatedEngine
from .wire import Wire

READS = [each for each in ENDPOINTS if each.method == "GET" and not each.stream and each.answer is not None]


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
    return found


def audit_lines() -> list[dict[str, Any]]:
    path = paths.audit_path("sim")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("endpoint", READS, ids=lambda each: each.path)
def test_every_read_is_of_its_declared_type(running: Running, endpoint: Any) -> None:
    running.engine.submit(5)
    status, answer = running.connect().ask("GET", endpoint.path)
    assert status == 200
    declared = NA if endpoint.or_na and set(answer) == {"na"} else endpoint.answer
    decoded = msgspec.convert(answer, declared)
    assert json.loads(msgspec.json.encode(decoded)) == answer, "no field that the type does not declare"


def test_hello_says_who_and_what(running: Running) -> None:
    hello = running.connect().get("/v1/hello")
    assert hello["protocol"] == p.PROTOCOL
    assert (hello["name"], hello["pid"], hello["role"], hello["uid"]) == (
        "sim",
        os.getpid(),
        "operator",
        os.getuid(),
    )
    assert "na" in hello["recorder"]


def test_a_snapshots_gauges_agree(running: Running) -> None:
    wire = running.connect()
    running.engine.step_seconds = 0.001
    for _ in range(90):
        running.engine.submit(40)
    for _ in range(20):
        shot = wire.get("/v1/snapshot?sequences=true")
        states = [each["status"] for each in shot["sequences"]]
        assert (states.count("running"), states.count("waiting")) == (shot["running"], shot["waiting"])
        assert sum(shot["waiting_by_reason"].values()) == shot["waiting"]
        assert shot["pages"]["used"] + shot["pages"]["free"] == PAGES
    assert running.engine.wait_finished(90)
    idle = until(lambda: (shot := wire.get("/v1/snapshot"))["running"] == 0 and shot)
    assert idle["life"]["generation_tokens"] == 90 * 40
    assert idle["life"]["finished"]["length"] == 90
    assert idle["step_open"] is None and idle["sequences"] is None


def test_an_idle_engine_is_woken_for_a_fresh_picture(running: Running) -> None:
    wire = running.connect()
    time.sleep(0.2)
    assert wire.get("/v1/snapshot")["age"] < 0.1


def test_nobody_asking_means_nothing_is_built(running: Running) -> None:
    running.engine.submit(50)
    assert running.engine.wait_finished(1)
    before = running.engine.published()
    time.sleep(0.3)  # the server ticks meanwhile
    assert running.engine.published() is before


def test_a_long_step_does_not_delay_reads_and_the_picture_says_its_age(running: Running) -> None:
    wire = running.connect()
    running.engine.step_seconds = 1.5
    running.engine.submit(1)
    until(lambda: running.engine.counters.step_open_since)
    shot = wire.get("/v1/snapshot")
    assert running.engine.counters.step_open_since, "it was answered while the step was under way"
    assert shot["step_open"] > 0
    wire.get("/v1/sequences")
    wire.get("/v1/flags")
    assert running.engine.counters.step_open_since


def test_na_is_not_zero(running: Running) -> None:
    wire = running.connect()
    assert set(wire.get("/v1/spans")) == {"na"}
    allocator = wire.get("/v1/allocator?window=5")
    assert allocator["now"] is allocator["window"] is None  # the simulated engine has none
    parts = {part["component"]: part["bytes"] for part in wire.get("/v1/memory")["parts"]}
    assert parts["weights"] == 2_000_000
    assert "na" in parts["graphs"]
    assert "na" in parts["rest"], "what is left of the process is not known when a part is not"
    assert wire.get("/v1/snapshot")["window"]["latency"] == {}


def test_flags_tell_value_source_bounds_and_reach(running: Running) -> None:
    wire = running.connect()
    wire.ask("PATCH", "/v1/flags", {"changes": {"sched.max_running": 7}, "reason": "why not", "ttl": 600})
    answer = wire.get("/v1/flags")
    assert [flag["name"] for flag in answer["flags"]] == list(FLAGS)
    flag = next(flag for flag in answer["flags"] if flag["name"] == "sched.max_running")
    assert (flag["value"], flag["then"], flag["changed"], flag["reach"]) == (7, 64, True, "live")
    assert (flag["origin"]["layer"], flag["origin"]["reason"]) == ("runtime", "why not")
    assert flag["origin"]["uid"] == os.getuid() and flag["origin"]["pid"] == os.getpid()
    assert flag["until"] == pytest.approx(time.time() + 600, abs=30)
    layers = wire.get("/v1/config")["values"]["sched.max_running"]["layers"]
    assert [each["layer"] for each in (layer["origin"] for layer in layers)][-1] == "runtime"


def test_a_change_names_its_step_and_is_in_events_and_audit(running: Running) -> None:
    wire = running.connect()
    for _ in range(20):
        running.engine.submit(10_000)
    until(lambda: running.engine.counters.running == 20)
    status, applied = wire.ask(
        "PATCH", "/v1/flags", {"changes": {"sched.max_running": 5}, "reason": "less", "expect_version": 0}
    )
    assert status == 200
    assert applied["changes"] == {"sched.max_running": {"old": 64, "new": 5}}
    assert applied["version"] == 1 and applied["step"] > 0
    assert applied["drains"] == ["15 running sequences above sched.max_running end first"]
    event = wire.get("/v1/events")["events"][-1]
    assert (event["kind"], event["step"], event["uid"]) == ("flags", applied["step"], os.getuid())
    assert event["data"]["changes"] == {"sched.max_running": {"old": 64, "new": 5}}
    line = until(audit_lines)[-1]
    assert (line["command"], line["result"], line["version"], line["reason"]) == ("set", "ok", 1, "less")
    assert line["difference"] == {"sched.max_running": [64, 5]}
    assert (line["uid"], line["gid"], line["pid"]) == (os.getuid(), os.getgid(), os.getpid())


def test_refused_means_nothing_was_applied_and_each_key_is_named(running: Running) -> None:
    wire = running.connect()
    changes = {"sched.max_running": 500, "model.path": "x", "sched.nope": 1, "sched.paused": True}
    status, problem = wire.ask("PATCH", "/v1/flags", {"changes": changes})
    assert status == 422
    reasons = {name: each["reason"] for name, each in problem["refused"].items()}
    assert reasons == {"sched.max_running": "bounds", "model.path": "restart", "sched.nope": "unknown"}
    assert running.engine.settings.version == 0
    assert until(audit_lines)[-1]["result"] == "refused"
    assert wire.get("/v1/events")["events"][-1]["kind"] == "refused"


def test_a_version_that_moved_on_is_409(running: Running) -> None:
    wire = running.connect()
    assert (
        wire.ask("PATCH", "/v1/flags", {"changes": {"sched.order": "prefix"}, "expect_version": 0})[0] == 200
    )
    status, problem = wire.ask(
        "PATCH", "/v1/flags", {"changes": {"sched.order": "fcfs"}, "expect_version": 0}
    )
    assert (status, problem["error"], problem["version"]) == (409, "stale version", 1)
    assert running.engine.settings["sched.order"] == "prefix"


def test_a_dry_run_leaves_no_trace_but_its_answer(running: Running) -> None:
    wire = running.connect()
    status, applied = wire.ask("PATCH", "/v1/flags", {"changes": {"sched.max_running": 5}, "dry_run": True})
    assert (
        status == 200
        and applied["dry_run"]
        and applied["changes"]["sched.max_running"] == {"old": 64, "new": 5}
    )
    assert running.engine.settings.version == 0
    assert wire.get("/v1/events")["events"] == []


def test_delete_uncovers_the_layer_below(running: Running) -> None:
    wire = running.connect()
    wire.ask("PATCH", "/v1/flags", {"changes": {"sched.order": "prefix"}})
    status, applied = wire.ask("DELETE", "/v1/flags/sched.order?reason=enough")
    assert status == 200 and applied["changes"] == {"sched.order": {"old": "prefix", "new": "fcfs"}}
    assert wire.ask("DELETE", "/v1/flags/sched.ordr")[0] == 422
    status, again = wire.ask("DELETE", "/v1/flags/sched.order")
    assert status == 200 and again["version"] == applied["version"]


def test_the_engine_itself_takes_a_limited_change_back_and_the_audit_says_so(running: Running) -> None:
    wire = running.connect()
    wire.ask("PATCH", "/v1/flags", {"changes": {"sched.max_running": 5}, "ttl": 0.05})
    wire.close()
    until(lambda: running.engine.settings["sched.max_running"] == 64)
    line = until(lambda: [each for each in audit_lines() if each["command"] == "reverted"])[0]
    assert line["uid"] is None and line["version"] == 2


def test_pause_and_resume(running: Running) -> None:
    wire = running.connect()
    assert wire.ask("POST", "/v1/actions/pause", {"reason": "hold"})[0] == 200
    running.engine.submit(1)
    shot = until(lambda: (each := wire.get("/v1/snapshot"))["waiting"] == 1 and each)
    assert shot["state"] == "paused" and shot["waiting_by_reason"] == {"paused": 1}
    assert wire.ask("POST", "/v1/actions/resume")[0] == 200
    assert running.engine.wait_finished(1)


def test_cancel_by_id_answers_when_it_is_done(running: Running) -> None:
    wire = running.connect()
    ids = [running.engine.submit(100_000) for _ in range(6)]
    until(lambda: wire.get("/v1/sequences")["total"] == 6)
    status, done = wire.ask(
        "POST", "/v1/actions/cancel", {"ids": [ids[1], ids[4], "ghost"], "reason": "stuck"}
    )
    assert status == 200
    assert (sorted(done["ended"]), done["unknown"], done["left"]) == (sorted([ids[1], ids[4]]), ["ghost"], 4)
    assert len(wire.get("/v1/sequences")["sequences"]) == 4, (
        "what is read after an answer is not from before it"
    )
    assert wire.ask("POST", "/v1/actions/cancel", {"all": True})[1]["left"] == 0
    for body in ({}, {"ids": ["x"], "all": True}):
        assert wire.ask("POST", "/v1/actions/cancel", body)[0] == 400


def test_the_other_actions(running: Running) -> None:
    wire = running.connect()
    assert wire.ask("POST", "/v1/actions/flush", {})[1]["why_kept"].startswith("1 page")
    status, problem = wire.ask("POST", "/v1/actions/trim")
    assert (status, problem["error"]) == (501, "unsupported")
    running.engine.submit(3)
    assert running.engine.wait_finished(1)
    assert wire.ask("POST", "/v1/actions/reset", {})[0] == 200
    assert wire.get("/v1/snapshot")["life"]["generation_tokens"] == 0
    assert running.engine.counters.generation_tokens == 3
    marked = wire.ask("POST", "/v1/actions/mark", {"text": "load begins"})[1]["event"]
    until(lambda: wire.get("/v1/history?step=0.1")["marks"] == [marked])
    status, started = wire.ask("POST", "/v1/actions/drain", {"deadline": 60})
    assert status == 200 and started["until"] > time.time()
    assert wire.get("/v1/snapshot")["state"] == "draining"
    kinds = [event["kind"] for event in wire.get("/v1/events")["events"]]
    assert kinds == ["flush", "refused", "reset", "mark", "drain"]
    until(lambda: [each["command"] for each in audit_lines()] == ["flush", "trim", "reset", "mark", "drain"])


def test_a_dump_needs_no_step_border(running: Running) -> None:
    wire = running.connect()
    running.engine.step_seconds = 1.5
    running.engine.submit(1)
    until(lambda: running.engine.counters.step_open_since)
    status, dumped = wire.ask("POST", "/v1/actions/dump", {"reason": "hangs"})
    assert status == 200 and running.engine.counters.step_open_since
    msgspec.convert(dumped, p.Dump)
    stacks = {thread["name"]: "\n".join(thread["stack"]) for thread in dumped["threads"]}
    assert "_step" in stacks["sim-engine"], "what the engine thread was doing"


def test_a_change_that_finds_no_step_border_is_taken_back_whole(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers_module, "COMMAND_WAIT", 0.1)
    wire = running.connect()
    running.engine.step_seconds = 1.0
    running.engine.submit(1)
    until(lambda: running.engine.counters.step_open_since)
    status, problem = wire.ask("PATCH", "/v1/flags", {"changes": {"sched.order": "prefix"}})
    assert (status, problem["error"]) == (504, "no step border")
    assert running.engine.wait_finished(1)
    assert wire.ask("POST", "/v1/actions/flush")[0] == 200  # a border has passed since
    assert running.engine.settings["sched.order"] == "fcfs"


def test_an_engine_that_has_stopped_is_said_to_have(running: Running) -> None:
    wire = running.connect()
    running.engine.stop()
    status, problem = wire.ask("PATCH", "/v1/flags", {"changes": {"sched.order": "prefix"}})
    assert status == 503 and "stopped" in problem["message"]
    wire = running.connect()
    assert wire.ask("GET", "/v1/snapshot")[0] == 200, "the last picture is still there"


# -- roles ------------------------------------------------------------------------------------------------------------

MUTATIONS: list[tuple[str, str, Any]] = [
    ("PATCH", "/v1/flags", {"changes": {"sched.paused": True}}),
    ("DELETE", "/v1/flags/sched.paused", None),
    *(
        ("POST", each.path, {"text": "x"} if each.handler == "mark" else {"all": True})
        for each in ENDPOINTS
        if each.method == "POST"
    ),
]


def viewer_refused(wire: Wire, engine: SimulatedEngine) -> None:
    engine.submit(100_000)
    for method, path, body in MUTATIONS:
        status, problem = wire.ask(method, path, body)
        assert (status, problem["error"]) == (403, "role"), path
    assert engine.settings.version == 0
    until(lambda: wire.get("/v1/sequences")["total"] == 1)
    assert wire.get("/v1/hello")["role"] == "viewer"


def test_a_session_may_lower_its_role_and_never_raise_it(running: Running) -> None:
    wire = running.connect()
    assert wire.get("/v1/hello")["role"] == "operator"
    assert wire.ask("GET", "/v1/hello", Arc_Role="viewer")[1]["role"] == "viewer"
    viewer_refused(wire, running.engine)
    assert wire.ask("GET", "/v1/hello", Arc_Role="operator")[0] == 403
    assert wire.ask("GET", "/v1/hello", Arc_Role="root")[0] == 400
    assert running.connect().get("/v1/hello")["role"] == "operator"


def test_the_groups_socket_is_for_viewers(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    listening = Listening("sim", grp.getgrgid(os.getgid()).gr_name)
    assert listening.watch_path is not None
    engine = SimulatedEngine("sim")
    server = ControlServer(engine, listening, NA("off"))
    engine.start()
    server.start()
    wire = Wire(listening.watch_path)
    viewer_refused(wire, engine)
    assert wire.ask("GET", "/v1/hello", Arc_Role="operator")[0] == 403
    assert Wire(listening.path).get("/v1/hello")["role"] == "operator"
    server.stop()
    engine.stop()


def test_a_strangers_uid_is_a_viewer_even_on_the_owners_socket(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder keeps strangers out; should it ever not, the kernel's word on the uid still does."""
    if os.getuid() == 0:
        monkeypatch.setattr(connections, "peer_of", lambda _: connections.Peer(1, 12345, 12345))
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert running.connect().get("/v1/hello")["role"] == "viewer"


# -- what is not taken ------------------------------------------------------------------------------------------------

BAD_BODIES: list[Any] = [
    b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000, {}, {"changes": {}}, {"changes": []},
    {"changes": {"sched.paused": None}}, {"changes": {"sched.paused": {"a": 1}}}, {"changes": {"sched.paused": [1]}},
    {"changes": {"sched.paused": True}, "ttl": 0}, {"changes": {"sched.paused": True}, "ttl": -1},
    {"changes": {"sched.paused": True}, "ttl": 1e300}, {"changes": {"sched.paused": True}, "ttl": "5m"},
    {"changes": {"sched.paused": True}, "expect_version": -1}, {"changes": {"sched.paused": True}, "dry_run": 1},
    {"changes": {"sched.paused": True}, "extra": 1}, {"changes": {"sched.paused": True}, "reason": "a\x1b[2Jb"},
    {"changes": {"sched.paused": True}, "reason": "x" * 501}, {"changes": {f"f{i}": 1 for i in range(101)}},
    b'{"changes": {"sched.max_running": 1e999}}', b'{"changes": {"sched.max_running": NaN}}',
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda each: repr(each)[:40])
def test_bad_bodies_are_refused_with_a_reason(running: Running, body: Any) -> None:
    status, problem = running.connect().ask("PATCH", "/v1/flags", body)
    assert status == 400 and problem["message"] and problem["hint"]
    assert running.engine.settings.version == 0


@pytest.mark.parametrize("text", ["a\nb", "a\n", "\x1b[2J", "\u2028", "", " ", "\t"])
def test_a_mark_or_a_reason_that_is_no_line_of_text_is_refused_in_one_sentence(
    running: Running, text: str
) -> None:
    wire = running.connect()
    status, problem = wire.ask("POST", "/v1/actions/mark", {"text": text})
    assert (status, problem["message"]) == (
        400,
        "in the body: text is one line of text that is not blank, without control characters",
    )
    change = {"changes": {"sched.paused": False}, "reason": text, "dry_run": True}
    status, problem = wire.ask("PATCH", "/v1/flags", change)
    if text.isprintable():  # a reason may be left out
        assert status == 200
    else:
        plain = "in the body: reason is one line of text, without control characters"
        assert (status, problem["message"]) == (400, plain)
    assert not running.engine.events.since(0)[1]


@pytest.mark.parametrize("value", [10**400, -(10**400), 2**63, 1.5, "9" * 5000, "1e9", "", "０"])
def test_huge_and_odd_numbers_are_refused_by_name(running: Running, value: Any) -> None:
    status, problem = running.connect().ask("PATCH", "/v1/flags", {"changes": {"sched.max_running": value}})
    assert status in (400, 422) and problem["message"]
    assert running.engine.settings.version == 0


@pytest.mark.parametrize(
    "path",
    [
        "/v1/snapshot?window=0", "/v1/snapshot?window=901", "/v1/snapshot?window=nan", "/v1/snapshot?windw=1",
        "/v1/snapshot?window=1&window=2", "/v1/history?step=2", "/v1/history?since=-1", "/v1/events?since=x",
        "/v1/events?limit=0", "/v1/stream?hz=1000", "/v1/stream?hz=-1", "/v1/hello?x=1", "/v1/sequences?limit=1e9",
    ],
)  # fmt: skip
def test_bad_queries_are_refused_with_a_reason(running: Running, path: str) -> None:
    status, problem = running.connect().ask("GET", path)
    assert (status, problem["error"]) == (400, "bad request"), problem


def test_unknown_paths_and_methods_say_what_there_is(running: Running) -> None:
    wire = running.connect()
    assert wire.ask("GET", "/")[0] == 404
    assert wire.ask("GET", "/v1/flags/sched.paused")[0] == 405
    status, problem = wire.ask("POST", "/v1/flags", {})
    assert status == 405 and "GET, PATCH" in problem["message"]
    assert wire.ask("GET", "/v1/actions/pause")[0] == 405, "GET never changes anything"
    assert running.engine.settings.version == 0


def test_a_body_that_is_too_large_is_refused_and_the_next_console_is_served(running: Running) -> None:
    wire = running.connect()
    status, problem = wire.ask(
        "PATCH", "/v1/flags", b'{"changes": "' + b"x" * (connections.LARGEST_BODY + 10) + b'"}'
    )
    assert (status, problem["error"]) == (413, "too large")
    assert running.connect().get("/v1/hello")


def test_half_a_body_is_given_up(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_WAIT", 0.2)
    with socket.socket(socket.AF_UNIX) as half:
        half.settimeout(10)
        half.connect(str(running.path))
        half.sendall(
            b'PATCH /v1/flags HTTP/1.1\r\nHost: arc\r\nContent-Length: 50\r\n\r\n{"changes": {"sched.'
        )
        answer = half.recv(4096)
    assert b" 408 " in answer.splitlines()[0] and b"half a message" in answer
    assert running.engine.settings.version == 0


def test_two_threads_of_one_console_do_not_mix_answers(running: Running) -> None:
    """Pipelined on one connection, answers come in order."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(str(running.path))
        raw.sendall(
            b"GET /v1/hello HTTP/1.1\r\nHost: arc\r\n\r\n"
            b"GET /v1/events HTTP/1.1\r\nHost: arc\r\nConnection: close\r\n\r\n"
        )
        received = b""
        while chunk := raw.recv(65536):
            received += chunk
    assert received.index(b'"protocol"') < received.index(b'"gap"')


def test_stopping_ends_streams_with_a_reason_and_frees_the_name(start: Callable[..., Running]) -> None:
    running = start()
    events: list[tuple[str, Any]] = []
    begun = threading.Event()

    def follow() -> None:
        for event, _, data in running.connect().stream("/v1/stream?hz=0&since=0"):
            events.append((event, data))
            begun.set()

    running.engine.events.add("mark", "x")
    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(10)
    running.server.stop("maintenance")
    thread.join(10)
    assert events[-1] == ("bye", {"reason": "maintenance"})
    assert not running.path.exists()
    start("sim")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/v1/flags", {"changes": {"x" * 100_000: 1}}),
        ("PATCH", "/v1/flags", {"changes": {"sched.max_running": "9" * 100_000}}),
        ("PATCH", "/v1/flags", {"y" * 100_000: 1, "changes": {"sched.max_running": 1}}),
        ("POST", "/v1/actions/mark", {"text": "a", "z" * 100_000: 1}),
        ("GET", "/v1/snapshot?" + "q" * 5000 + "=1", None),
        ("GET", "/v1/" + "p" * 5000, None),
    ],
    ids=["flag", "value", "field", "mark", "query", "path"],
)
def test_what_was_sent_is_not_echoed_whole(running: Running, method: str, path: str, body: Any) -> None:
    before = running.engine.events.last
    status, answer = running.connect().ask(method, path, body)
    assert 400 <= status < 500
    assert len(json.dumps(answer)) < 2000
    _, events = running.engine.events.since(before)
    assert all(len(event.text) < 1000 and len(json.dumps(event.data)) < 2000 for event in events)


@pytest.mark.parametrize(
    "number", ["1_2", "%201", "1%20", "%2B1", "0x10", "007", "%D9%A1", "nan", "-inf", ""]
)
def test_a_query_takes_plain_numbers_only(running: Running, number: str) -> None:
    for path in ("/v1/events?since=", "/v1/sequences?limit=", "/v1/snapshot?window=", "/v1/history?since="):
        status, answer = running.connect().ask("GET", path + number)
        assert (status, answer["error"]) == (400, "bad request"), path
    status, _ = running.connect().ask("DELETE", f"/v1/flags/sched.max_running?expect_version={number}")
    assert status == 400


def test_the_end_does_not_wait_for_consoles_that_do_not_read(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_STOP_WAIT", 0.3)
    running = start()
    console = socket.socket(socket.AF_UNIX)
    console.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    console.connect(str(running.path))
    console.sendall(b"GET /v1/schema HTTP/1.1\r\nHost: arc\r\n\r\n" * 40)  # far more than the socket holds
    until(lambda: running.server.open_connections == 1)
    time.sleep(0.5)  # until its answers are stuck
    running.server.stop()
    assert any("1 consoles were cut off" in each.getMessage() for each in caplog.records)
    console.close()
