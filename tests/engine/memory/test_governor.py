"""The governor's rules over a caching allocator that only counts: no card is needed to break them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from arc.engine.memory.allocator import CaptureMiss
from arc.engine.memory.cap import MIB
from arc.engine.memory.governor import CacheGovernor, CacheStatistics
from arc.engine.telemetry.records import AllocatorCounters
from hypothesis import given
from hypothesis import strategies as st


class CountingCache:
    """torch's caching allocator in numbers: a request takes from what is reserved, else a segment is made."""

    def __init__(self, free: int) -> None:
        self.total = free
        self.allocated = self.reserved = self.requests = self.returns = self.made = self.freed = 0
        self.trims = 0
        self.private = 0

    def free(self) -> int:
        return self.total - self.reserved

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            self.allocated, self.reserved, self.requests, self.returns, self.made, self.freed
        )

    def take(self, size: int) -> None:
        self.requests += 1
        if self.reserved - self.allocated < size:
            self.made += 1
            self.reserved += size
        self.allocated += size

    def give(self, size: int) -> None:
        self.returns += 1
        self.allocated -= size

    def trim(self) -> None:
        self.trims += 1
        self.freed += self.reserved > self.allocated
        self.reserved = self.allocated

    @contextlib.contextmanager
    def private_pool(self) -> Iterator[None]:
        self.private += 1
        yield


def governed(cap_mib: int | None, weights: int = 100) -> tuple[CacheGovernor, CountingCache]:
    cache = CountingCache(4096 * MIB)
    cache.take(weights * MIB)
    made = CacheGovernor(AllocatorCounters(), cache, "cpu")
    made.configure(True, cap_mib)
    return made, cache


def step(cache: CountingCache, *sizes: int) -> None:
    for size in sizes:
        cache.take(size * MIB)
    for size in sizes:
        cache.give(size * MIB)


def test_operations_get_torchs_own_memory() -> None:
    made, _ = governed(64)
    assert made.take((1 << 30,), torch.float32) is None


def test_what_was_before_it_was_armed_is_not_its_doing() -> None:
    made, _ = governed(64)
    assert (made.counters.misses, made.counters.allocated, made.counters.held) == (0, 0, 0)


def test_it_trims_at_the_border_when_the_rest_passes_the_cap() -> None:
    made, cache = governed(64)
    step(cache, 30, 20)
    made.end_step()
    assert cache.trims == 0 and made.counters.held == 50 * MIB and made.state().bound == 0
    step(cache, 60, 20)
    made.end_step()
    assert cache.trims == 1 and made.counters.held == 0
    assert made.counters.evictions == made.counters.freed == 1 and made.state().bound == 1
    assert made.counters.taken == 4 and made.counters.given == 4
    assert made.state().live == 100 * MIB


def test_the_cap_comes_from_what_is_free_beside_the_weights() -> None:
    made, _ = governed(None, weights=4096 - 262)  # where a fixed 1 GiB never bound
    assert made.cap is not None and made.cap.bytes == 64 * MIB


def test_a_lower_cap_trims_at_once_and_unbounded_never() -> None:
    made, cache = governed(0)
    step(cache, 500)
    made.end_step()
    assert cache.trims == 0
    made.configure(True, 100)
    assert cache.trims == 1 and made.counters.held == 0
    made.configure(False, 100)
    step(cache, 500)
    made.end_step()
    assert cache.trims == 1 and not made.counters.enabled


def test_trim_on_demand_is_no_eviction_and_measures_anew() -> None:
    made, cache = governed(None)
    step(cache, 300)
    made.end_step()
    cache.total = 700 * MIB
    assert made.trim() == 300 * MIB
    assert made.counters.evictions == 0 and made.counters.freed == 1
    assert made.cap is not None and made.cap.bytes == 75 * MIB


def test_a_capture_has_its_pool_and_a_miss_aborts_it() -> None:
    made, cache = governed(64)
    with made.capture([]):
        cache.reserved += 200 * MIB  # a step border inside it must not trim
        made.end_step()
        assert cache.trims == 0
    assert cache.private == 1 and made.counters.capture_misses == 0
    with pytest.raises(CaptureMiss, match="524,288,000 bytes"), made.capture([]):
        cache.take(500 * MIB)
    assert made.counters.capture_misses == 1


def test_a_capture_that_fails_closes_its_window() -> None:
    made, cache = governed(64)
    with pytest.raises(ZeroDivisionError), made.capture([]):
        raise ZeroDivisionError
    step(cache, 100)
    made.end_step()
    assert cache.trims == 1


@given(st.lists(st.lists(st.integers(1, 90), max_size=5), max_size=20), st.integers(1, 200))
def test_after_every_step_the_rest_is_under_the_cap(steps: list[list[int]], cap: int) -> None:
    made, cache = governed(cap)
    for sizes in steps:
        step(cache, *sizes)
        made.end_step()
        counters = made.counters
        assert counters.held <= cap * MIB
        assert counters.taken == counters.given
        assert counters.hits >= 0 and counters.allocated == counters.misses
    assert made.counters.taken == sum(map(len, steps))
