"""The reader against a real control server: it attaches, follows, and comes back by itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from arc.console.client import Client
from arc.console.commands.top import top
from arc.console.top import once
from arc.console.top.reader import Reader, attach
from arc.console.top.sources import FLEET_HZ
from arc.console.top.store import Store
from arc.engine.control import connections
from arc.engine.control import protocol as p

from .conftest import Engine
from .recorded import span_report


@pytest.fixture
def reader(engine: Engine) -> Iterator[tuple[Reader, Store]]:
    store = Store()
    reading = Reader(engine.path, store, hz=20.0, viewer=False)
    reading.start()
    yield reading, store
    reading.stop()


def test_the_slowest_console_asks_long_before_the_server_takes_it_for_idle() -> None:
    """The reader asks with each picture, so that the server never closes its connection under it."""
    slowest = next(each.type for each in top.params if each.name == "hz")
    assert isinstance(slowest, click.FloatRange) and slowest.min is not None
    assert max(1 / slowest.min, 1 / FLEET_HZ) < connections.IDLE / 5


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def test_the_picture_fills_and_follows(engine: Engine, reader: tuple[Reader, Store]) -> None:
    reading, store = reader
    until(lambda: store.picture.snapshot and store.picture.host and store.picture.memory)
    assert store.picture.hello is not None and store.picture.hello.name == "sim"
    assert store.picture.spans == p.NA("nothing was recorded yet")
    assert store.picture.sequences is None  # nobody looks at them
    engine.engine.submit(1_000_000, "long")
    until(lambda: store.picture.snapshot and store.picture.snapshot.running == 1)
    reading.wants_sequences = True
    until(
        lambda: (
            store.picture.sequences and [each.id for each in store.picture.sequences.sequences] == ["long"]
        )
    )
    engine.engine.span_report = span_report()
    time.sleep(1.5)
    assert store.picture.spans == p.NA("nothing was recorded yet"), "nobody looks at them"
    reading.wants_spans = 3600.0
    until(lambda: store.picture.spans == engine.engine.span_report)
    until(lambda: store.picture.samples and (store.picture.samples[-1].steps or 0) > 0)
    times = [sample.time for sample in store.picture.samples]
    assert times == sorted(set(times))


def test_a_change_by_another_arrives_with_its_event_and_the_new_flags(
    engine: Engine, reader: tuple[Reader, Store]
) -> None:
    _, store = reader
    until(lambda: store.picture.snapshot)
    with Client(engine.path) as other:
        other.patch("/v1/flags", p.FlagsPatch(changes={"sched.max_running": 5}, reason="why"), p.Applied)

    def value() -> object:
        flags = store.picture.flags
        return flags and next(each.value for each in flags.flags if each.name == "sched.max_running")

    until(lambda: value() == 5)
    until(lambda: any(isinstance(each, p.Event) and '"why"' in each.text for each in store.picture.events))


def test_an_engine_that_goes_is_lost_and_one_that_comes_is_found(
    engine: Engine, reader: tuple[Reader, Store]
) -> None:
    _, store = reader
    until(lambda: store.picture.snapshot)
    snapshot = store.picture.snapshot
    engine.end()
    until(lambda: store.picture.link.state == "lost")
    assert store.picture.link.why and store.picture.snapshot is not None and snapshot is not None
    engine.begin()
    until(lambda: store.picture.link.state == "attached" and store.picture.snapshot)
    assert store.picture.link.restarted is not None


def test_a_viewer_is_one_to_the_engine(engine: Engine) -> None:
    with Client(engine.path, viewer=True) as client:
        assert client.get("/v1/hello", p.Hello).role == "viewer"
        with pytest.raises(Exception, match="viewer"):
            client.post("/v1/actions/mark", p.MarkBody(text="no"), p.Marked)


def test_one_screen_as_text_and_as_data(engine: Engine) -> None:
    engine.engine.submit(1_000_000, "long")
    with Client(engine.path) as client:  # until it is published, which a read does not wait long for
        until(lambda: client.get("/v1/snapshot", p.Snapshot).running == 1)
    lines = once.screen(engine.path, 0, (80, 24), False).splitlines()
    assert lines[0].startswith(" arc  sim  sim-1M") and len(lines) == 23
    assert any(line.startswith(" running        1") for line in lines)
    assert once.screen(engine.path, 1, (80, 24), True).isascii()
    data = json.loads(once.data(engine.path))
    assert data["snapshot"]["running"] == 1 and data["snapshot"]["sequences"][0]["id"] == "long"
    assert {"hello", "flags", "memory", "host", "events"} <= set(data)


def test_an_engine_with_instruments_is_attached_all_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer engine answers with more than a reason."""
    plain = Client.raw
    monkeypatch.setattr(
        Client, "raw", lambda self, method, path, *rest, **query: (
            b'{"spans": [], "window": 3}' if path == "/v1/spans" else plain(self, method, path, *rest, **query)
        ),
    )  # fmt: skip
    store = Store()
    with Client(engine.path) as client:
        attach(client, store)
    assert isinstance(store.picture.spans, p.NA) and "this console cannot show" in store.picture.spans.na
    assert store.picture.allocator is not None and store.picture.allocator.now is None
    assert store.picture.hello is not None and store.picture.flags is not None, "all else is there"


def test_what_is_no_engine_is_not_attached(tmp_path: Path) -> None:
    store = Store()
    reading = Reader(tmp_path / "none.sock", store, hz=4.0, viewer=False)
    reading.start()
    until(lambda: store.picture.link.why)
    reading.stop()
    assert store.picture.link.state == "attaching" and "no engine answers" in store.picture.link.why
