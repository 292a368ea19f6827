"""From two readings of one engine to what happened in between. A counter only rises: one that fell began anew."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ...engine.control.protocol import AllocatorCounts
from .reading import Cumulative, Reading

COUNTS = (
    "steps", "rows", "admitted", "prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits", "preemptions",
    "finished", "faults", "drafted", "accepted",
)  # fmt: skip


class PageSample(msgspec.Struct, frozen=True, kw_only=True):
    """One interval between two pages, as a Sample of the control socket; None is unknown, see Reading.why."""

    time: float  # when it ended
    seconds: float
    running: int | None
    waiting: int | None
    pages_used: int | None
    pages_cached: int | None
    pages_free: int | None
    share: float | None  # of the KV cache in use
    steps: int | None
    rows: int | None
    admitted: int | None
    step_seconds: float | None
    forward_seconds: float | None
    prompt_tokens: int | None
    generation_tokens: int | None
    prefix_queries: int | None
    prefix_hits: int | None
    preemptions: int | None
    finished: int | None
    faults: int | None
    drafted: int | None
    accepted: int | None
    buckets: dict[str, dict[int, int]]
    allocator: AllocatorCounts | None = None  # not read off a page


@dataclass(frozen=True, slots=True)
class Interval:
    """Either what happened, or that the engine began anew in between: then nothing can be said of the interval."""

    sample: PageSample | None
    restarted: bool = False


class Differ:
    """Takes one engine's readings in order."""

    def __init__(self) -> None:
        self._before: Reading | None = None
        self._at = 0.0
        self._seen: set[str] = set()  # counters and histograms of this life
        self._gap = False

    def gap(self) -> None:
        """The page could not be had: what happened until the next one is not counted. A restart will still show."""
        self._gap = True

    def take(self, reading: Reading, at: float, wall: float) -> Interval:
        """`at` is time.monotonic(), `wall` time.time()."""
        before, seconds = self._before, at - self._at
        known, gap = self._seen, self._gap
        restarted = before is not None and _restarted(before, reading)
        self._before, self._at, self._gap = reading, at, False
        self._seen = {*reading.counters, *reading.histograms} | (set() if restarted else known)
        if before is None or restarted or gap or seconds <= 0:
            return Interval(None, restarted)
        return Interval(_sample(before, reading, known, seconds, wall))


def _restarted(before: Reading, after: Reading) -> bool:
    """By the start of the process, and by any counter that fell."""
    if before.started is not None and after.started is not None and before.started != after.started:
        return True
    if any(
        after.counters[name] < before.counters[name]
        for name in before.counters.keys() & after.counters.keys()
    ):
        return True
    pairs = (
        (before.histograms[name], after.histograms[name])
        for name in before.histograms
        if name in after.histograms
    )
    return any(_fell(old, new) for old, new in pairs)


def _fell(old: Cumulative, new: Cumulative) -> bool:
    return old.bounds != new.bounds or any(
        now < then for then, now in zip(old.counts, new.counts, strict=True)
    )


def _sample(before: Reading, after: Reading, known: set[str], seconds: float, wall: float) -> PageSample:
    def risen(name: str) -> float | None:
        """A page is whole: a counter that was not on it in this life had not counted yet. One that was there and is
        back after a page without it has counted for an unknown time."""
        now = after.counters.get(name)
        if now is None:
            return None
        if name in before.counters:
            return now - before.counters[name]
        return None if name in known else now

    def gauge(name: str) -> int | None:
        value = after.gauges.get(name)
        return None if value is None else round(value)

    counts = {name: None if (value := risen(name)) is None else round(value) for name in COUNTS}
    return PageSample(
        time=wall,
        seconds=seconds,
        running=gauge("running"),
        waiting=gauge("waiting"),
        pages_used=gauge("used"),
        pages_cached=gauge("cached"),
        pages_free=gauge("free"),
        share=after.gauges.get("share"),
        **counts,
        step_seconds=risen("step_seconds"),
        forward_seconds=risen("forward_seconds"),
        buckets=_buckets(before, after, known),
        allocator=None,
    )


def _buckets(before: Reading, after: Reading, known: set[str]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for name, new in after.histograms.items():
        old = before.histograms.get(name)
        if old is None and name in known:
            continue
        earlier = old.counts if old is not None else (0,) * len(new.counts)
        risen = (
            (index, now - then) for index, (then, now) in enumerate(zip(earlier, new.counts, strict=True))
        )
        found[name] = {index: count for index, count in risen if count}
    return found
