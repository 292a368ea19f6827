"""Several engines at once: who they are, how each is, and which one is not like the others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ...engine.control import protocol as p
from .scene import Scene
from .store import Store

LEAST_TO_COMPARE = 3  # of two that differ neither is the odd one
FAR = 3.5  # scaled deviations from the median; Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993)
_MAD_TO_SIGMA = 1.4826  # of a normal distribution
_LEAST_SHARE = (
    0.1  # of the median: a spread under it counts as this much, so that equals with noise are equals
)
RESTARTED_FOR = 60.0  # seconds that a restart is shown


@dataclass(frozen=True, slots=True)
class Member:
    """One engine of the fleet. `path` is its control socket; None for one that is read through a page."""

    name: str
    where: str
    store: Store
    path: Path | None


class AnyReader(Protocol):
    """What fills a store, in a thread of its own. What is wanted of it may be changed at any time."""

    wants_sequences: bool
    wants_spans: float | None  # over so many seconds

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Source(Protocol):
    """What fills the stores of one or more members, in a thread of its own. Members may come, and none goes."""

    @property
    def members(self) -> tuple[Member, ...]: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def open(self, member: Member, hz: float) -> AnyReader:
        """`member` is looked at alone; what reads it meanwhile."""
        ...

    def close(self, member: Member) -> None: ...


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that engines are compared by. `least` is the smallest spread that means anything, in its own unit."""

    name: str
    value: Callable[[Row], float | None]
    least: float
    shown: Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Odd:
    """One number that is far from those of its like."""

    quantity: str
    value: str
    median: str

    def __str__(self) -> str:
        return f"{self.quantity} {self.value}, median {self.median}"


@dataclass(frozen=True, slots=True)
class Row:
    """One engine in the table, over the window. None is unknown; of one that is gone the numbers are its last."""

    member: Member
    kind: str
    model: str
    state: str
    gone: bool  # no number of it counts
    why: str  # it is gone, or never answered
    restarted: bool
    seconds: float  # of the window that there are numbers of
    running: float | None
    waiting: float | None
    kv: float | None  # share of the cache that running sequences hold
    output: float | None  # tokens a second
    prompt: float | None
    first_token: float | None  # p95, seconds
    between_tokens: float | None
    odd: tuple[Odd, ...] = field(default=())

    @property
    def key(self) -> Hashable:
        return (self.member.where, self.member.name)

    def is_odd(self, quantity: str) -> bool:
        return any(each.quantity == quantity for each in self.odd)


QUANTITIES = (
    Quantity("waiting", lambda row: row.waiting, 2.0, lambda value: f"{value:,.0f}"),
    Quantity("KV", lambda row: row.kv, 0.03, lambda value: f"{100 * value:.1f} %"),
    Quantity("output", lambda row: row.output, 2.0, lambda value: f"{value:,.0f} tok/s"),
    Quantity("first token p95", lambda row: row.first_token, 0.01, lambda value: f"{1000 * value:,.0f} ms"),
    Quantity(
        "between tokens p95", lambda row: row.between_tokens, 0.001, lambda value: f"{1000 * value:,.1f} ms"
    ),
)


class Fleet:
    """The sources' members as rows. Used on the screen's thread alone."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        self._scenes: dict[int, Scene] = {}

    def start(self) -> None:
        for source in self.sources:
            source.start()

    def stop(self) -> None:
        for source in self.sources:
            source.stop()

    def source_of(self, member: Member) -> Source:
        return next(source for source in self.sources if member in source.members)

    def rows(self, span: float, now: float) -> list[Row]:
        members = [member for source in self.sources for member in source.members]
        return with_odd([self._row(member, span, now) for member in members])

    def _row(self, member: Member, span: float, now: float) -> Row:
        key = id(member.store)
        scene = Scene(member.store.picture, span, None, now).carrying(self._scenes.get(key))
        self._scenes[key] = scene
        return row_of(member, scene)


def row_of(member: Member, scene: Scene) -> Row:
    picture, totals, gauges = scene.picture, scene.totals, scene.gauges
    link = picture.link
    kind, model = "", ""
    if picture.page is not None:
        kind, model = picture.page.reading.kind, picture.page.reading.model
    elif picture.hello is not None:
        kind, model = "arc", picture.hello.model
    return Row(
        member=member,
        kind=kind,
        model=model,
        state=_state(scene),
        gone=link.state != "attached",
        why=link.why if link.state != "attached" else "",
        restarted=link.restarted is not None and scene.now - link.restarted < RESTARTED_FOR,
        seconds=totals.seconds,
        running=gauges.running if gauges else None,
        waiting=gauges.waiting if gauges else None,
        kv=_kv(scene),
        output=totals.rate(totals.generation_tokens),
        prompt=totals.rate(totals.prompt_tokens),
        first_token=_p95(totals.latency.get("first_token")),
        between_tokens=_p95(totals.latency.get("between_tokens")),
    )


def _state(scene: Scene) -> str:
    picture = scene.picture
    if picture.link.state == "lost":
        return "gone"
    if picture.page is not None:
        return "asleep" if picture.page.reading.gauges.get("asleep") else "answers"
    if picture.snapshot is not None:
        return picture.snapshot.state
    return "no answer" if picture.link.why else "attaching"


def _kv(scene: Scene) -> float | None:
    if scene.picture.page is not None:
        return scene.picture.page.reading.gauges.get("share")
    snapshot = scene.picture.snapshot
    return snapshot.pages.used / snapshot.pages.total if snapshot and snapshot.pages.total else None


def _p95(found: p.Percentiles | None) -> float | None:
    return found.p95 if found is not None and not isinstance(found.p95, p.NA) else None


def with_odd(rows: Sequence[Row]) -> list[Row]:
    """Engines that answer are compared with those that serve the same model: by each quantity, one is odd that lies
    further than FAR scaled deviations from the median. The deviation is the median absolute one, in units of a standard
    deviation, but at the least a tenth of the median and the quantity's own least."""
    odd: dict[Hashable, list[Odd]] = {}
    for model in {row.model for row in rows}:
        like = [row for row in rows if row.model == model and not row.gone]
        for quantity in QUANTITIES:
            known = [(row, value) for row in like if (value := quantity.value(row)) is not None]
            if len(known) < LEAST_TO_COMPARE:
                continue
            median = statistics.median(value for _, value in known)
            spread = statistics.median(abs(value - median) for _, value in known)
            scale = max(_MAD_TO_SIGMA * spread, _LEAST_SHARE * median, quantity.least)
            for row, value in known:
                if abs(value - median) > FAR * scale:
                    said = Odd(quantity.name, quantity.shown(value), quantity.shown(median))
                    odd.setdefault(row.key, []).append(said)
    return [replace(row, odd=tuple(odd[row.key])) if row.key in odd else row for row in rows]
