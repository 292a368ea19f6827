"""One moment to draw: a picture, and the window of it that the views count over.

Rates and percentiles, live or past, are worked out in one way: from the samples of one second that the engine keeps.
All of a scene's numbers are over the same window, which ends at the newest sample or where the operator went back to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from operator import attrgetter

from ...engine.control import protocol as p
from .lines import Line
from .samples import Sample, added, ratio
from .session import NO_SESSION, Session
from .store import Picture

SPANS = (30.0, 60.0, 300.0, 900.0, 3600.0)
LEAST_FIT = 0.8  # R2 under which a step's time is not told by its rows
STALL = 3.0  # seconds without a step, while there is work, after which the console is loud


@dataclass(frozen=True, slots=True)
class Totals:
    """What happened in the window: counts, and latencies merged from the samples' buckets. None is unknown."""

    seconds: float
    steps: float | None
    rows: float | None
    admitted: float | None
    step_seconds: float | None
    forward_seconds: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    prefix_queries: float | None
    prefix_hits: float | None
    preemptions: float | None
    faults: float | None
    finished: float | None
    draft_rows: float | None
    drafted: tuple[int, ...]  # by place
    accepted: tuple[int, ...]
    latency: dict[str, p.Percentiles]
    allocator: p.AllocatorCounts | None  # None: nothing is known of it in the window

    def count(self, number: float | None) -> float | None:
        """Without samples nothing was counted: that is not zero."""
        return number if self.seconds else None

    def rate(self, number: float | None) -> float | None:
        return number / self.seconds if self.seconds and number is not None else None

    def per_step(self, number: float | None) -> float | None:
        return number / self.steps if self.steps and number is not None else None


def totals(
    samples: Sequence[Sample],
    bounds: Sequence[float],
    own: Mapping[str, Sequence[float]] | None = None,
    lacks: frozenset[str] = frozenset(),
) -> Totals:
    """`lacks`: counts that the samples do not tell."""

    def add(name: str) -> float | None:
        return added(samples, attrgetter(name))

    def known(name: str) -> float | None:
        return None if name in lacks else add(name)

    return Totals(
        seconds=sum(sample.seconds for sample in samples),
        steps=add("steps"),
        rows=add("rows"),
        admitted=add("admitted"),
        step_seconds=add("step_seconds"),
        forward_seconds=add("forward_seconds"),
        prompt_tokens=add("prompt_tokens"),
        generation_tokens=known("generation_tokens"),
        prefix_queries=known("prefix_queries"),
        prefix_hits=known("prefix_hits"),
        preemptions=add("preemptions"),
        faults=add("faults"),
        finished=add("finished"),
        draft_rows=add("draft_rows"),
        drafted=_by_place(sample.drafted for sample in samples),
        accepted=_by_place(sample.accepted for sample in samples),
        latency=latencies(samples, bounds, own or {}),
        allocator=allocator_counts(samples),
    )


def _by_place(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def allocator_counts(samples: Sequence[Sample]) -> p.AllocatorCounts | None:
    """Added up over the samples that have any; what is held and the cap are the last one's."""
    known = [sample.allocator for sample in samples if sample.allocator is not None]
    if not known:
        return None
    counted = ("hits", "misses", "allocated", "freed", "evictions", "bypassed")
    total = {name: sum(getattr(each, name) for each in known) for name in counted}
    return p.AllocatorCounts(**total, held=known[-1].held, cap=known[-1].cap)


def latencies(
    samples: Sequence[Sample], bounds: Sequence[float], own: Mapping[str, Sequence[float]]
) -> dict[str, p.Percentiles]:
    """`own` has the bounds of those latencies that do not have the common ones."""
    names = dict.fromkeys(name for sample in samples for name in sample.buckets)
    merged = {name: latency(samples, name, own.get(name, bounds)) for name in names}
    return {name: found for name, found in merged.items() if found is not None}


def latency(samples: Sequence[Sample], name: str, bounds: Sequence[float]) -> p.Percentiles | None:
    """One of them, from the samples' merged buckets; None where none was measured."""
    counts = [0] * (len(bounds) + 1)
    for sample in samples:
        for index, count in sample.buckets.get(name, {}).items():
            counts[index] += count
    return p.Percentiles.of(counts, bounds) if any(counts) else None


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of a step as `base` + `per_row` x rows, by least squares; `fit` is R2."""

    base: float
    per_row: float
    fit: float


def step_model(samples: Sequence[Sample]) -> StepModel | None:
    """From each sample's mean step, weighted by its steps. None where the rows hardly differ, or no line fits them."""
    points = [
        (s.rows / s.steps, s.step_seconds / s.steps, s.steps)
        for s in samples
        if s.steps and s.rows is not None and s.step_seconds is not None
    ]
    weight = sum(w for _, _, w in points)
    if len(points) < 8:
        return None
    mean_x = sum(x * w for x, _, w in points) / weight
    mean_y = sum(y * w for _, y, w in points) / weight
    xx = sum(w * (x - mean_x) ** 2 for x, _, w in points)
    xy = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points)
    yy = sum(w * (y - mean_y) ** 2 for _, y, w in points)
    if xx / weight < 1.0 or yy == 0:
        return None
    slope, fit = xy / xx, xy * xy / (xx * yy)
    base = mean_y - slope * mean_x
    return StepModel(base, slope, fit) if base >= 0 and slope >= 0 and fit >= LEAST_FIT else None


@dataclass(frozen=True, slots=True)
class Gauges:
    """The state at one moment, None where unknown. Live it is the newest snapshot's, in the past a sample's: that has
    no reasons."""

    running: float | None
    waiting: float | None
    reasons: Mapping[str, int] | None
    effective: float | None
    used: float | None
    cached: float | None
    free: float | None


@dataclass(frozen=True)
class Scene:
    picture: Picture
    span: float
    at: float | None  # time.time() that the operator went back to; None: live
    now: float  # time.time()
    ascii_dots: bool = False
    frozen: bool = False
    session: Session = NO_SESSION

    @property
    def end(self) -> float:
        """Where the window ends."""
        if self.at is not None:
            return self.at
        samples = self.picture.samples
        return samples[-1].time if samples else self.now

    @cached_property
    def window(self) -> tuple[Sample, ...]:
        return between(self.picture.samples, self.end - self.span, self.end)

    @cached_property
    def totals(self) -> Totals:
        return totals(self.window, self.picture.bounds, self.picture.own_bounds, self.picture.lacks)

    @cached_property
    def model(self) -> StepModel | None:
        return step_model(self.window)

    @cached_property
    def gauges(self) -> Gauges | None:
        if self.at is not None:
            if not self.window:
                return None
            sample = self.window[-1]
            effective = ratio(sample.rows, sample.steps)
            return Gauges(
                sample.running, sample.waiting, None, effective,
                sample.pages_used, sample.pages_cached, sample.pages_free,
            )  # fmt: skip
        if self.picture.page is not None:
            reading = self.picture.page.reading
            get = reading.gauges.get
            return Gauges(
                get("running"), get("waiting"), reading.reasons, get("effective"),
                get("used"), get("cached"), get("free"),
            )  # fmt: skip
        snapshot = self.picture.snapshot
        if snapshot is None:
            return None
        pages = snapshot.pages
        reasons = snapshot.waiting_by_reason if snapshot.waiting_by_reason or not snapshot.waiting else None
        return Gauges(
            snapshot.running, snapshot.waiting, reasons, float(snapshot.effective_batch),
            pages.used, pages.cached, pages.free,
        )  # fmt: skip

    @property
    def stale(self) -> bool:
        """What is shown is no longer what is."""
        return self.picture.link.state == "lost"

    @cached_property
    def changes(self) -> list[p.Event]:
        """What may have changed the curves, in the window: flags, marks and the like."""
        kinds = ("flags", "reverted", "mark", "reset", "drain")
        start = self.end - self.span
        return [
            event
            for event in self.picture.events
            if isinstance(event, p.Event) and event.kind in kinds and start < event.time <= self.end
        ]

    @cached_property
    def plots(self) -> dict[Hashable, list[Line]]:
        """What was drawn of this window over time, by what it shows and how large."""
        return {}

    def carrying(self, before: Scene | None) -> Scene:
        """This scene, with what need not be added up or drawn again: the samples change once a second, the screen more
        often."""
        if before is not None and before.window_key == self.window_key:
            names = ["window", "totals", "model"]
            if before.picture.events is self.picture.events:
                names += ["changes", "plots"]
            for name in names:
                if name in before.__dict__:
                    self.__dict__[name] = before.__dict__[name]
        return self

    @property
    def window_key(self) -> tuple[int, float, float]:
        return (id(self.picture.samples), self.end, self.span)


def between(samples: tuple[Sample, ...], start: float, end: float) -> tuple[Sample, ...]:
    """The samples that ended in (start, end]."""
    first = bisect_right(samples, start, key=lambda sample: sample.time)
    last = bisect_right(samples, end, key=lambda sample: sample.time)
    return samples[first:last]
