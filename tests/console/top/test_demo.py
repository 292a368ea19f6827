"""The demo load: against a real engine, and against servers that refuse it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from arc.console.top.app import Console, Options
from arc.console.top.canvas import Canvas
from arc.console.top.demo import CLIENTS, DemoLoad
from arc.console.top.store import Link, Picture, Store
from arc.engine.control import protocol as p
from textual.pilot import Pilot

from .real import Real
from .recorded import picture, recorded, snapshot
from .test_app import until

NOW = recorded().time
HELLO = msgspec.structs.replace(recorded().hello, api="http://127.0.0.1:9")


async def test_it_runs_shows_itself_and_stops(real: Real) -> None:
    app = Console(Options(real.socket, hz=10.0))

    def head() -> str:
        return app.main.query_one("#head", Canvas).text[0]

    def running() -> int:
        return app.store.picture.snapshot.running if app.store.picture.snapshot else -1

    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: running() == 0)
        assert "demo load" not in head()
        await pilot.press("L")
        await until(pilot, lambda: running() > 1)
        await until(pilot, lambda: "demo load" in head())
        await until(pilot, lambda: sum(sample.finished or 0 for sample in app.store.picture.samples) > 3)
        assert running() <= CLIENTS
        await pilot.press("L")
        await until(pilot, lambda: running() == 0)
        await until(pilot, lambda: "demo load" not in head())
        await pilot.press("L")  # and again
        await until(pilot, lambda: running() > 0)
        load = app.demo
        assert load is not None and load.running
    assert not load.running  # it ends with the console, and the engine cancels what it had asked
    watching = Console(Options(real.socket, hz=10.0))
    async with watching.run_test(size=(80, 24)) as pilot:
        await until(
            pilot, lambda: (seen := watching.store.picture.snapshot) and seen.running + seen.waiting == 0
        )


# -- refusals ---------------------------------------------------------------------------------------------------------


@contextmanager
def server(status: int, body: bytes) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Answers every POST so; gives its base and what was posted."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            posted.append({**sent, "key": self.headers.get("Authorization")})
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{serving.server_port}", posted
    finally:
        serving.shutdown()
        thread.join()
        serving.server_close()


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, b"", "set ARC_API_KEY"),
        (503, b'{"error": {"message": "the engine is draining"}}', "the engine is draining"),
        (400, b'{"error": {"message": "this model has no tokenizer"}}', "no tokenizer"),
        (500, b"<html>", "the API answered 500"),
    ],
)
def test_a_refusal_ends_all_of_it_and_is_told_once(status: int, body: bytes, says: str) -> None:
    told: list[str] = []
    with server(status, body) as (base, _):
        load = DemoLoad(base, "", 2048, told.append)
        load.start()
        wait(lambda: told)
        wait(lambda: load.under_way == 0)
    assert len(told) == 1 and says in told[0] and not load.running


def test_where_nobody_listens_it_ends_with_the_reason() -> None:
    told: list[str] = []
    load = DemoLoad("http://127.0.0.1:1", "", 2048, told.append)
    load.start()
    wait(lambda: told)
    assert "does not answer" in told[0] and not load.running


def test_a_full_queue_is_waited_for_and_a_stop_is_no_refusal() -> None:
    told: list[str] = []
    with server(429, b'{"error": {"message": "too many"}}') as (base, posted):
        load = DemoLoad(base, "", 2048, told.append)
        load.start()
        wait(lambda: len(posted) >= CLIENTS)
        assert load.running
        load.stop()
    assert told == []


@pytest.mark.parametrize("longest", [16, 64, 2048, 163_840])
def test_its_requests_fit_the_model_and_carry_the_key(longest: int) -> None:
    with server(200, b"{}") as (base, posted):
        load = DemoLoad(base, "secret", longest, lambda why: None)
        load.start()
        wait(lambda: len(posted) >= 10)
        load.stop()
    for each in posted:
        assert each["key"] == "Bearer secret"
        words = len(each["prompt"].split())
        assert words >= 1 and each["max_tokens"] >= 1
        assert 8 * words + each["max_tokens"] <= max(longest, 9)
    if longest > 1000:
        assert len({(len(each["prompt"].split()), each["max_tokens"]) for each in posted}) > 1


@pytest.mark.parametrize(
    ("changes", "viewer", "says"),
    [
        ({}, True, "read-only"),
        ({"snapshot": snapshot(state="draining")}, False, "draining"),
        (
            {"hello": msgspec.structs.replace(HELLO, api=p.NA("this engine serves no HTTP API"))},
            False,
            "no HTTP API",
        ),
        ({"hello": None}, False, "not attached"),
        ({"link": Link("lost", NOW, "it went away", heard=NOW)}, False, "the engine is gone"),
    ],
    ids=["viewer", "draining", "no API", "attaching", "lost"],
)
async def test_it_is_refused_with_a_reason(changes: dict[str, Any], viewer: bool, says: str) -> None:
    seen: Picture = replace(picture(), **{"hello": HELLO, **changes})
    store = Store()
    store.picture = seen
    app = Console(Options(Path("/nowhere"), viewer=viewer), store=store, clock=lambda: NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await press_and_pause(pilot)
        assert app.demo is None and any(says in note.message for note in app._notifications)


async def press_and_pause(pilot: Pilot[None]) -> None:
    await pilot.press("L")
    await pilot.pause()


async def test_its_end_is_told_in_the_console() -> None:
    store = Store()
    store.picture = replace(picture(), hello=HELLO)  # nobody listens on that port
    app = Console(Options(Path("/nowhere")), store=store, clock=lambda: NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await press_and_pause(pilot)
        await until(pilot, lambda: any("does not answer" in note.message for note in app._notifications))
        assert app.session.demo is None
