"""What a sample is to the views: arc's own engine has every field, a page of another engine leaves some unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ...engine.control.protocol import AllocatorCounts


class Sample(Protocol):
    """One interval, as control.protocol.Sample; None is unknown and never a zero."""

    @property
    def time(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def running(self) -> int | None: ...
    @property
    def waiting(self) -> int | None: ...
    @property
    def pages_used(self) -> int | None: ...
    @property
    def pages_cached(self) -> int | None: ...
    @property
    def pages_free(self) -> int | None: ...
    @property
    def steps(self) -> int | None: ...
    @property
    def rows(self) -> int | None: ...
    @property
    def admitted(self) -> int | None: ...
    @property
    def step_seconds(self) -> float | None: ...
    @property
    def forward_seconds(self) -> float | None: ...
    @property
    def prompt_tokens(self) -> int | None: ...
    @property
    def generation_tokens(self) -> int | None: ...
    @property
    def prefix_queries(self) -> int | None: ...
    @property
    def prefix_hits(self) -> int | None: ...
    @property
    def preemptions(self) -> int | None: ...
    @property
    def finished(self) -> int | None: ...
    @property
    def faults(self) -> int | None: ...
    @property
    def buckets(self) -> Mapping[str, Mapping[int, int]]: ...
    @property
    def allocator(self) -> AllocatorCounts | None: ...


def added(samples: Iterable[Sample], value: Callable[[Sample], float | None]) -> float | None:
    """The sum, unknown as soon as one part is. Of no samples it is 0."""
    total: float = 0
    for sample in samples:
        part = value(sample)
        if part is None:
            return None
        total += part
    return total


def ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
