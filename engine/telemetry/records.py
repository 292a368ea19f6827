"""What a step was, in numbers: one record a step, and the engine's cumulative counters.

Counters only rise; whoever shows a rate takes the difference over the window that it states. They are plain attributes
written by the engine thread alone and read by others without a lock: one read is one number, and no two numbers that
must agree are read apart (take them from one StepRecord).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import msgspec

from ..sequence import FinishReason, WaitReason


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step as it ran. Times in seconds; `started` is time.monotonic()."""

    index: int
    started: float
    wall: float
    schedule: float  # forming the step and laying out its batch
    forward: float
    sample: float
    publish: float  # the rest: commit, ends, counters, sending the results out
    admitted: int  # sequences that hold KV
    rows: int  # the effective batch: rows in the forward
    decode_rows: int
    prompt_rows: int
    prompt_tokens: int
    waiting: int
    finished: int
    preempted: int
    pages_used: int
    pages_cached: int
    pages_free: int


class Histogram:
    """Counts by upper bound over the engine's life; the last bucket is unbounded. Merged by adding, never averaged."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75,
           1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
LENGTHS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
TOKENS = tuple(float(2**e) for e in range(14))


def _seconds() -> Histogram:
    return Histogram(SECONDS)


@dataclass(slots=True)
class AllocatorCounters:
    """The allocator's life in numbers. Buffers that were taken = hits + misses = given back + in use."""

    hits: int = 0  # taken, and one was free
    misses: int = 0  # taken, and memory had to be had from the system
    given: int = 0  # came back
    allocated: int = 0  # had from the system, in a step or before a capture
    freed: int = 0  # given back to the system, whatever for
    evictions: int = 0  # of those, to stay under the cap
    # bypassed: asked for and not taken, by why
    small: int = 0  # below the least class
    large: int = 0  # larger than the cap
    full: int = 0  # the cap was full of buffers in use
    own: int = 0  # the operation makes its own result and cannot be given a place
    capture_misses: int = 0
    # gauges of now; sizes in bytes
    enabled: bool = False
    cap: int | None = None  # None: unbounded, or off
    held: int = 0
    peak: int = 0  # most that was ever held
    bound: int = 0  # times that the cap had to be kept to since it was set; 0: not reached
    overdue: int = 0  # buffers in use after their step that nobody announced

    @property
    def taken(self) -> int:
        return self.hits + self.misses

    @property
    def bypassed(self) -> int:
        return self.small + self.large + self.full + self.own


@dataclass(slots=True)
class Counters:
    """The engine's life in numbers. A sequence counts once: retries and preemptions do not count its prompt again."""

    steps: int = 0
    prompt_tokens: int = 0  # counted at a sequence's first admission, cached part included
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up, at first admission
    prefix_hits: int = 0  # tokens found
    preemptions: int = 0
    recomputed_tokens: int = 0  # tokens computed again after a preemption
    faults: int = 0  # steps that failed
    # seconds of all steps by part; they add up to the steps' wall time
    step_seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("schedule", "forward", "sample", "publish"), 0.0)
    )
    finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))
    # gauges of now, refreshed when idle too
    running: int = 0
    waiting: int = 0
    waiting_by_reason: dict[WaitReason, int] = field(default_factory=lambda: dict.fromkeys(WaitReason, 0))
    effective_batch: int = 0  # rows of the last step; 0 when idle
    pages_total: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    pages_free: int = 0
    last_step_at: float | None = None  # time.monotonic()
    step_open_since: float | None = None  # a step is under way since; None between steps
    work_since: float | None = None  # work came to an idle engine; None while idle
    # span and channel -> seconds since the start, while profiling was on; replaced whole
    span_seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    # histograms, seconds unless named otherwise
    time_to_first_token: Histogram = field(default_factory=_seconds)
    inter_token: Histogram = field(default_factory=_seconds)
    time_per_output_token: Histogram = field(default_factory=_seconds)  # one value a request
    end_to_end: Histogram = field(default_factory=_seconds)
    queue: Histogram = field(default_factory=_seconds)
    prefill: Histogram = field(default_factory=_seconds)
    decode: Histogram = field(default_factory=_seconds)
    inference: Histogram = field(default_factory=_seconds)
    prompt_length: Histogram = field(default_factory=lambda: Histogram(LENGTHS))
    generation_length: Histogram = field(default_factory=lambda: Histogram(LENGTHS))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    allocator: AllocatorCounters = field(default_factory=AllocatorCounters)

    def set_span_seconds(self, seconds: dict[tuple[str, str], float]) -> None:
        self.span_seconds = seconds
