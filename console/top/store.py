"""What the console knows of the engine: one picture, replaced whole. The reader's thread writes, the screen reads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ...engine.control import allocator_messages as a
from ...engine.control import protocol as p
from ...engine.control import span_messages as s
from .host import Host
from .samples import Sample

if TYPE_CHECKING:
    from ..metrics.reading import Reading

KEPT_SAMPLES = 3600  # an hour of seconds, as the engine keeps
KEPT_EVENTS = 4096

Entry = p.Event | p.Gap


@dataclass(frozen=True, slots=True)
class Link:
    """The connection to the engine. `since` and `heard` are time.time()."""

    state: Literal["attaching", "attached", "lost"] = "attaching"
    since: float = 0.0
    why: str = ""
    heard: float | None = None  # when the newest snapshot came
    restarted: float | None = None  # when another life of the engine was first seen


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Another engine's metrics page as it was read last: what stands in the place of hello and snapshot."""

    url: str
    name: str  # how the console calls the engine
    reading: Reading
    time: float  # when it was read
    answered: float  # seconds that the server took


@dataclass(frozen=True, slots=True)
class Picture:
    """All that can be shown, at one moment. It never changes, so keeping it is freezing the view."""

    number: int = 0  # rises with every change
    link: Link = field(default_factory=Link)
    hello: p.Hello | None = None
    snapshot: p.Snapshot | None = None
    sequences: p.Sequences | None = None
    page: MetricsPage | None = None  # of another engine: then hello and snapshot stay None
    samples: tuple[Sample, ...] = ()  # one a second, oldest first
    bounds: tuple[float, ...] = ()  # of the samples' latency buckets
    own_bounds: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict
    )  # of a page, where they differ by latency
    events: tuple[Entry, ...] = ()  # oldest first
    flags: p.Flags | None = None
    memory: p.Memory | None = None
    host: Host | None = None
    spans: s.SpanReport | p.NA | None = None  # None until asked
    lacks: frozenset[str] = frozenset()  # what the samples do not tell, though they have a number for it
    allocator: a.Allocator | None = None


class Store:
    """Holds the newest picture. Reading `picture` is one attribute: it needs no lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.picture = Picture()

    def _put(self, **changes: Any) -> None:
        with self._lock:
            self.picture = replace(self.picture, number=self.picture.number + 1, **changes)

    def put(self, **parts: Any) -> None:
        """Replace whole parts of the picture: flags, memory, host, sequences, spans, allocator."""
        self._put(**parts)

    def show(self, picture: Picture) -> None:
        """Put a picture of a replay in the place of the one before: its number rises all the same."""
        with self._lock:
            self.picture = replace(picture, number=self.picture.number + 1)

    def attached(self, hello: p.Hello, history: p.History, events: p.Events, now: float) -> None:
        """A connection stands. What is known of an earlier life of the engine goes: its counters were others."""
        before = self.picture
        other = before.hello is not None and (before.hello.started, before.hello.pid) != (
            hello.started,
            hello.pid,
        )
        link = Link(
            "attached", now, heard=before.link.heard, restarted=now if other else before.link.restarted
        )
        self._put(
            link=link,
            hello=hello,
            snapshot=None if other else before.snapshot,
            sequences=None if other else before.sequences,
            samples=history.samples[-KEPT_SAMPLES:],
            bounds=history.bounds,
            events=_entries(() if other else before.events, events),
        )

    def snapshot(self, snapshot: p.Snapshot, now: float) -> None:
        self._put(snapshot=snapshot, link=replace(self.picture.link, heard=now))

    def history(self, history: p.History) -> None:
        """Samples after the newest that is here."""
        samples = self.picture.samples
        last = samples[-1].time if samples else 0.0
        fresh = tuple(sample for sample in history.samples if sample.time > last)
        if fresh:
            self._put(samples=(samples + fresh)[-KEPT_SAMPLES:], bounds=history.bounds)

    def read(self, page: MetricsPage, sample: Sample | None, now: float) -> None:
        """Another engine's page, and what happened since the one before it. Samples of other buckets go."""
        before = self.picture
        own = {name: each.bounds for name, each in page.reading.histograms.items()}
        kept = (
            before.samples if all(before.own_bounds.get(name, own[name]) == own[name] for name in own) else ()
        )
        link = before.link
        self._put(
            link=replace(
                link,
                state="attached",
                since=link.since if link.state == "attached" else now,
                why="",
                heard=now,
            ),
            page=page,
            samples=(*kept, sample)[-KEPT_SAMPLES:] if sample is not None else kept,
            own_bounds={**before.own_bounds, **own},
        )

    def entry(self, entry: Entry) -> None:
        """One event or gap off the stream."""
        if isinstance(entry, p.Event) and entry.kind == "reset":
            self._put(link=replace(self.picture.link, restarted=entry.time))
        self._put(events=(*self.picture.events, entry)[-KEPT_EVENTS:])

    def lost(self, why: str, now: float) -> None:
        """The last picture stays; it only says that it is no longer true."""
        link = self.picture.link
        if link.state != "lost":
            self._put(
                link=replace(
                    link,
                    state="lost" if self.picture.hello or self.picture.page else "attaching",
                    since=now,
                    why=why,
                )
            )


def last_number(events: Sequence[Entry]) -> int:
    """The number to go on after."""
    if not events:
        return 0
    newest = events[-1]
    return newest.number if isinstance(newest, p.Event) else newest.last


def _entries(before: tuple[Entry, ...], answer: p.Events) -> tuple[Entry, ...]:
    known = last_number(before)
    fresh: Iterable[Entry] = (event for event in answer.events if event.number > known)
    gap = (answer.gap,) if answer.gap is not None and answer.gap.last > known else ()
    return (*before, *gap, *fresh)[-KEPT_EVENTS:]
