"""The one thread that listens to the engine: it follows the stream and asks for what the stream does not carry.

It never gives up: an engine that is gone is looked for until it is back, at the same socket.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from ...engine.control import allocator_messages as a
from ...engine.control import protocol as p
from ...engine.control import span_messages as s
from ..client import Client, NoEngine, Refused, StreamEvent
from .host import HostReader
from .store import Store, last_number

_PATIENCE = (
    15.0  # seconds without any word, after which the connection counts as lost; heartbeats come every 5
)
_RETRY = 0.5
_SAMPLES_EVERY = 1.0
_LONG_TABLE = 2000  # sequences; as many are asked for at each picture, more only
_LONG_TABLE_EVERY = 1.0  # so often: the engine writes them, and this process reads and sorts them
_MEMORY_EVERY = 5.0
_SPANS_EVERY = 1.0
FIRST_SPANS = 60.0  # seconds that the first picture's spans are over
MOST_SPANS = 900.0


class Reader:
    """Fills the store from the engine at `path`. What it wants may be changed at any time."""

    def __init__(
        self, path: Path, store: Store, *, hz: float, viewer: bool, keeps_sequences: bool = False
    ) -> None:
        """`keeps_sequences`: ask for them once a second also while no view shows them."""
        self.wants_sequences = False
        self.wants_spans: float | None = None  # over so many seconds
        self._keeps_sequences = keeps_sequences
        self._path = path
        self._store = store
        self._hz = hz
        self._viewer = viewer
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arc-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: the thread may be in a read, and ends at its next word."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._client() as ask, self._client() as follow:
                    self._follow(ask, follow)
                why = "it went without a word: see `arc dump --post-mortem`"
            except (NoEngine, Refused) as error:
                why = error.message
            except msgspec.DecodeError as error:
                why = f"it does not speak this console's protocol {p.PROTOCOL}: {error}"
            if not self._stopped.is_set():  # else another reader may have the store by now
                self._store.lost(why, time.time())
            self._stopped.wait(_RETRY)

    def _client(self) -> Client:
        return Client(self._path, timeout=_PATIENCE, viewer=self._viewer)

    def _follow(self, ask: Client, follow: Client) -> None:
        hello = attach(ask, self._store)
        session = _Session(ask, self._store, hello, self._keeps_sequences)
        for message in follow.stream(hz=self._hz, since=last_number(self._store.picture.events)):
            if self._stopped.is_set():
                return
            if message.event == "bye":
                raise NoEngine(msgspec.json.decode(message.data, type=p.Bye).reason)
            if self._take(message):
                session.ask_what_is_due(self.wants_sequences, self.wants_spans)

    def _take(self, message: StreamEvent) -> bool:
        """Whether it was a snapshot."""
        match message.event:
            case "snapshot":
                self._store.snapshot(msgspec.json.decode(message.data, type=p.Snapshot), time.time())
                return True
            case "event":
                self._store.entry(msgspec.json.decode(message.data, type=p.Event))
            case "gap":
                self._store.entry(msgspec.json.decode(message.data, type=p.Gap))
        return False


def attach(ask: Client, store: Store) -> p.Hello:
    """Everything that a first picture needs, except for the snapshot."""
    hello = ask.get("/v1/hello", p.Hello)
    known = store.picture
    same = known.hello is not None and known.hello.started == hello.started
    events = ask.get("/v1/events", p.Events, since=last_number(known.events) if same else 0, limit=4096)
    store.attached(hello, ask.get("/v1/history", p.History), events, time.time())
    store.put(
        flags=ask.get("/v1/flags", p.Flags),
        spans=spans_of(ask, FIRST_SPANS),
        allocator=ask.get("/v1/allocator", a.Allocator),
    )
    return hello


def spans_of(ask: Client, window: float) -> s.SpanReport | p.NA:
    """Where the steps of the last `window` seconds went, or why nobody knows."""
    raw = ask.raw("GET", "/v1/spans", query={"window": min(window, MOST_SPANS)})
    answer: dict[str, Any] = msgspec.json.decode(raw, type=dict)
    if set(answer) == {"na"}:
        return msgspec.convert(answer, p.NA)
    try:
        return msgspec.convert(answer, s.SpanReport)
    except (
        msgspec.ValidationError
    ) as error:  # another version's: the rest of the console is of use all the same
        return p.NA(f"this console cannot show what the engine answers: {error}")


class _Session:
    """What is asked beside the stream, each at its own pace."""

    def __init__(self, ask: Client, store: Store, hello: p.Hello, keeps_sequences: bool) -> None:
        self._keeps_sequences = keeps_sequences
        self._ask = ask
        self._store = store
        self._host = HostReader(hello.pid, hello.device)
        self._sequences_due = 0.0
        self._samples_due = self._memory_due = self._spans_due = 0.0
        self._spans_over: float | None = None

    def ask_what_is_due(self, sequences: bool, spans: float | None) -> None:
        store, now = self._store, time.monotonic()
        if (sequences and now >= self._sequences_due) or (self._keeps_sequences and now >= self._samples_due):
            answer = self._ask.get("/v1/sequences", p.Sequences)
            self._sequences_due = now + (_LONG_TABLE_EVERY if answer.listed > _LONG_TABLE else 0.0)
            store.put(sequences=answer)
        if spans is not None and (now >= self._spans_due or spans != self._spans_over):
            self._spans_due, self._spans_over = now + _SPANS_EVERY, spans
            store.put(spans=spans_of(self._ask, spans))
        if now >= self._samples_due:
            self._samples_due = now + _SAMPLES_EVERY
            samples = store.picture.samples
            store.history(
                self._ask.get("/v1/history", p.History, since=samples[-1].time if samples else None)
            )
            store.put(host=self._host.read(), allocator=self._ask.get("/v1/allocator", a.Allocator))
        if now >= self._memory_due:
            self._memory_due = now + _MEMORY_EVERY
            store.put(memory=self._ask.get("/v1/memory", p.Memory))
        snapshot, flags = store.picture.snapshot, store.picture.flags
        if snapshot is not None and (flags is None or flags.version != snapshot.config_version):
            store.put(flags=self._ask.get("/v1/flags", p.Flags))
