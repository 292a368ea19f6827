"""What came before: the counters sampled ten times a second, so that a console attached late sees the past.

Rates and percentiles over a window are differences of two readings of the cumulative counters, so every number of one
answer is over one stated window. Only the control thread touches this.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from ..telemetry.records import SECONDS, AllocatorCounters, Counters, Histogram, StepRecord
from .protocol import AllocatorCounts, Interval, Percentiles, Sample

TICK = 0.1  # seconds between readings
PER_SECOND = 10
FINE_KEPT = 600  # a minute of ticks
COARSE_KEPT = 3600  # an hour of seconds
LONGEST_WINDOW = 900.0  # seconds that a window may go back

# name on the wire -> the counters' histogram; all have the bounds SECONDS
_LATENCIES = {
    "first_token": "time_to_first_token",
    "between_tokens": "inter_token",
    "queue": "queue",
    "end_to_end": "end_to_end",
}
_COUNTED = (
    "prompt_tokens",
    "generation_tokens",
    "prefix_hits",  # before the queries: a reading between two writes never shows more hits than queries
    "prefix_queries",
    "preemptions",
    "recomputed_tokens",
    "faults",
)
_ALLOCATOR_COUNTED = ("hits", "misses", "allocated", "freed", "evictions", "bypassed")


@dataclass(frozen=True, slots=True)
class Reading:
    """The cumulative counters at one moment."""

    at: float  # time.monotonic()
    steps: int
    rows: int
    admitted: int
    step_seconds: float
    forward_seconds: float
    counted: dict[str, int]
    finished: dict[str, int]
    buckets: dict[str, array[int]]
    allocator: AllocatorCounts | None


class Reader:
    """Reads the counters, and adds up what only the step records say: rows and times."""

    def __init__(self, counters: Counters, steps: deque[StepRecord]) -> None:
        self._counters = counters
        self._ring = steps
        self._seen = -1  # index of the last step added up
        self._steps = 0
        self._rows = 0
        self._admitted = 0
        self._step_seconds = 0.0
        self._forward_seconds = 0.0

    def read(self) -> Reading:
        self._add_up()
        counters = self._counters
        return Reading(
            at=time.monotonic(),
            steps=self._steps,
            rows=self._rows,
            admitted=self._admitted,
            step_seconds=self._step_seconds,
            forward_seconds=self._forward_seconds,
            counted={name: getattr(counters, name) for name in _COUNTED},
            finished={reason.value: count for reason, count in counters.finished.items()},
            buckets={name: _counts(getattr(counters, field)) for name, field in _LATENCIES.items()},
            allocator=_allocator(counters.allocator),
        )

    def _add_up(self) -> None:
        ring = self._ring
        if not ring or ring[-1].index == self._seen:
            return
        records = list(ring)
        fresh = bisect_right(records, self._seen, key=lambda record: record.index)
        for record in islice(records, fresh, None):
            self._steps += 1
            self._rows += record.rows
            self._admitted += record.admitted
            self._step_seconds += record.wall
            self._forward_seconds += record.forward
        self._seen = records[-1].index


def _counts(histogram: Histogram) -> array[int]:
    return array("Q", histogram.counts)


def _allocator(counters: AllocatorCounters) -> AllocatorCounts | None:
    """The counts since the start."""
    if not counters.enabled:
        return None
    return AllocatorCounts(
        hits=counters.hits,
        misses=counters.misses,
        allocated=counters.allocated,
        freed=counters.freed,
        evictions=counters.evictions,
        bypassed=counters.bypassed,
        held=counters.held,
        cap=counters.cap,
    )


def _allocator_between(start: AllocatorCounts | None, end: AllocatorCounts | None) -> AllocatorCounts | None:
    """None as well for an interval in which it was armed: what it had counted before is not known here."""
    if start is None or end is None:
        return None
    return AllocatorCounts(
        **{name: getattr(end, name) - getattr(start, name) for name in _ALLOCATOR_COUNTED},
        held=end.held,
        cap=end.cap,
    )


def interval(start: Reading, end: Reading) -> Interval:
    """What happened between two readings."""
    latency: dict[str, Percentiles] = {}
    for name, counts in end.buckets.items():
        between = [now - before for now, before in zip(counts, start.buckets[name], strict=True)]
        if any(between):
            latency[name] = Percentiles.of(between, SECONDS)
    return Interval(
        seconds=end.at - start.at,
        steps=end.steps - start.steps,
        rows=end.rows - start.rows,
        admitted=end.admitted - start.admitted,
        step_seconds=end.step_seconds - start.step_seconds,
        forward_seconds=end.forward_seconds - start.forward_seconds,
        finished={name: count - start.finished[name] for name, count in end.finished.items()},
        latency=latency,
        allocator=_allocator_between(start.allocator, end.allocator),
        **{name: end.counted[name] - start.counted[name] for name in _COUNTED},
    )


class History:
    """Readings for windows, and finished samples for charts."""

    def __init__(self, counters: Counters, steps: deque[StepRecord]) -> None:
        self._counters = counters
        self._reader = Reader(counters, steps)
        first = self._reader.read()
        self._base = first  # where the shown counters begin
        self._fine: deque[Reading] = deque([first], maxlen=FINE_KEPT + 1)
        self._coarse: deque[Reading] = deque([first], maxlen=int(LONGEST_WINDOW) + 1)
        self._fine_samples: deque[Sample] = deque(maxlen=FINE_KEPT)
        self._coarse_samples: deque[Sample] = deque(maxlen=COARSE_KEPT)
        self._ticks = 0

    def tick(self) -> None:
        """Take a reading: every TICK."""
        reading = self._reader.read()
        self._ticks += 1
        self._fine_samples.append(_sample(self._fine[-1], reading, self._counters))
        self._fine.append(reading)
        if self._ticks % PER_SECOND == 0:
            self._coarse_samples.append(_sample(self._coarse[-1], reading, self._counters))
            self._coarse.append(reading)

    def window(self, seconds: float) -> tuple[Interval, Interval]:
        """The last `seconds` (as near as there are readings; the answer says how many) and life, both up to now."""
        now = self._reader.read()
        readings = self._fine if seconds <= FINE_KEPT * TICK else self._coarse
        place = bisect_right(readings, now.at - seconds, key=lambda reading: reading.at)
        return interval(readings[max(0, place - 1)], now), interval(self._base, now)

    def reset(self) -> None:
        """The life that is shown begins now. The engine's own counters go on."""
        self._base = self._reader.read()

    def samples(self, step: float, since: float) -> tuple[Sample, ...]:
        """The samples that ended after `since` (time.time()), oldest first."""
        kept = self._fine_samples if step < 1 else self._coarse_samples
        return tuple(_after(kept, since))


def _after(samples: Iterable[Sample], since: float) -> Iterable[Sample]:
    return (sample for sample in samples if sample.time > since)


def _sample(start: Reading, end: Reading, counters: Counters) -> Sample:
    buckets: dict[str, dict[int, int]] = {}
    for name, counts in end.buckets.items():
        before = start.buckets[name]
        if counts != before:
            buckets[name] = {
                index: now - then
                for index, (now, then) in enumerate(zip(counts, before, strict=True))
                if now != then
            }
    counted = end.counted
    then = start.counted
    return Sample(
        time=time.time(),
        seconds=end.at - start.at,
        running=counters.running,
        waiting=counters.waiting,
        pages_used=counters.pages_used,
        pages_cached=counters.pages_cached,
        pages_free=counters.pages_free,
        steps=end.steps - start.steps,
        rows=end.rows - start.rows,
        admitted=end.admitted - start.admitted,
        step_seconds=end.step_seconds - start.step_seconds,
        forward_seconds=end.forward_seconds - start.forward_seconds,
        prompt_tokens=counted["prompt_tokens"] - then["prompt_tokens"],
        generation_tokens=counted["generation_tokens"] - then["generation_tokens"],
        prefix_queries=counted["prefix_queries"] - then["prefix_queries"],
        prefix_hits=counted["prefix_hits"] - then["prefix_hits"],
        preemptions=counted["preemptions"] - then["preemptions"],
        finished=sum(end.finished.values()) - sum(start.finished.values()),
        faults=counted["faults"] - then["faults"],
        buckets=buckets,
        allocator=_allocator_between(start.allocator, end.allocator),
    )
