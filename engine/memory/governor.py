"""On a card: torch's own caching allocator, governed. No second cache lies on top of it.

It keeps what tensors gave back and hands it out again; what it never does by itself is give it back to the driver. So
its rest, reserved minus allocated, is measured at each step border, and trimmed when it passes the cap. It cannot be
trimmed in part: all that is free goes, and the next steps ask the driver anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..control.allocator_messages import AllocatorState
from ..telemetry.records import AllocatorCounters
from .allocator import CaptureMiss, Wanted
from .cap import Cap, cap_of


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Of torch's caching allocator since the process began."""

    allocated: int  # bytes in tensors
    reserved: int  # bytes had from the driver
    requests: int  # times that memory was asked for
    returns: int  # times that it came back
    segments_made: int  # times that the driver was asked
    segments_freed: int


class CachingAllocator(Protocol):
    """What the governor needs of torch.cuda, so that its rules are tested without a card."""

    def free(self) -> int:
        """Bytes free on the card."""
        ...

    def statistics(self) -> CacheStatistics: ...

    def trim(self) -> None:
        """Give all that is free back to the driver."""
        ...

    def private_pool(self) -> AbstractContextManager[None]:
        """Inside, allocations come from the pool that is kept for graphs."""
        ...


class TorchCuda:
    """torch.cuda's caching allocator of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.MemPool()

    def free(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]

    def statistics(self) -> CacheStatistics:
        of = torch.cuda.memory_stats(self._device)
        return CacheStatistics(
            allocated=of.get("allocated_bytes.all.current", 0),
            reserved=of.get("reserved_bytes.all.current", 0),
            requests=of.get("allocation.all.allocated", 0),
            returns=of.get("allocation.all.freed", 0),
            segments_made=of.get("segment.all.allocated", 0),
            segments_freed=of.get("segment.all.freed", 0),
        )

    def trim(self) -> None:
        torch.cuda.empty_cache()

    def private_pool(self) -> AbstractContextManager[None]:
        return torch.cuda.use_mem_pool(self._pool, self._device)


class CacheGovernor:
    """An Allocator over torch's cache of a card. `held` is the cache's rest: reserved minus allocated."""

    def __init__(self, counters: AllocatorCounters, cache: CachingAllocator, place: str) -> None:
        self.counters = counters
        self._cache = cache
        self._place = place
        self._cap: Cap | None = None  # None: off
        self._settings: tuple[bool, int | None] = (False, None)
        self._seen = cache.statistics()
        self._capturing = False

    # -- what operations ask: the cache serves them --------------------------------------------------------------------

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        return None

    def keep(self, tensor: Tensor) -> None:
        return

    def bypass(self) -> None:
        return

    # -- what the engine asks ------------------------------------------------------------------------------------------

    @property
    def cap(self) -> Cap | None:
        return self._cap

    def configure(self, enabled: bool, cap_mib: int | None) -> None:
        if (enabled, cap_mib) != self._settings:
            self._settings = (enabled, cap_mib)
            self._set_cap(cap_of(cap_mib, self._cache.free) if enabled else None)

    def _set_cap(self, cap: Cap | None) -> None:
        counters = self.counters
        if self._cap is None:
            self._seen = self._cache.statistics()  # what was before it was armed is not its doing
        self._cap = cap
        counters.enabled, counters.cap, counters.bound = (
            cap is not None,
            None if cap is None else cap.bytes,
            0,
        )
        self.end_step()

    def end_step(self) -> None:
        if self._cap is None or self._capturing:
            return
        now = self._read()
        if self._cap.bytes is not None and now.reserved - now.allocated > self._cap.bytes:
            self.counters.bound += 1
            self._trim(evicts=True)

    def trim(self) -> int:
        before = self._cache.statistics().reserved
        self._trim(evicts=False)
        freed = before - self._cache.statistics().reserved
        if self._settings == (True, None):
            self._set_cap(cap_of(None, self._cache.free))
        return freed

    @contextmanager
    def capture(self, wanted: Iterable[Wanted]) -> Iterator[None]:
        """Inside, allocations come from the private pool. `wanted` is allocated there once before, and given back."""
        with self._cache.private_pool():
            warm = [torch.empty(tuple(shape), dtype=dtype, device=self._place) for shape, dtype in wanted]
            del warm
            before = self._cache.statistics()
            self._capturing = True
            try:
                yield
            finally:
                self._capturing = False
        now = self._cache.statistics()
        if now.segments_made > before.segments_made:
            self.counters.capture_misses += 1
            grown = now.reserved - before.reserved
            raise CaptureMiss(f"{grown:,} bytes were had from the driver inside the capture window")

    def state(self) -> AllocatorState:
        counters, cap = self.counters, self._cap
        return AllocatorState(
            kind="governor",
            place=self._place,
            enabled=cap is not None,
            cap=None if cap is None else cap.bytes,
            cap_from="alloc.enabled is off" if cap is None else cap.why,
            bound=counters.bound,
            held=counters.held,
            peak=counters.peak,
            live=self._seen.allocated,
            kept=0,
            overdue=0,
            hits=counters.hits,
            misses=counters.misses,
            given=counters.given,
            allocated=counters.allocated,
            freed=counters.freed,
            evictions=counters.evictions,
            capture_misses=counters.capture_misses,
            bypassed={},
            classes=(),
        )

    # -- statistics ----------------------------------------------------------------------------------------------------

    def _trim(self, *, evicts: bool) -> None:
        self._read()
        freed = self.counters.freed
        self._cache.trim()
        self._read()
        if evicts:
            self.counters.evictions += self.counters.freed - freed

    def _read(self) -> CacheStatistics:
        """Count what happened since the last reading."""
        before, now = self._seen, self._cache.statistics()
        counters = self.counters
        made = now.segments_made - before.segments_made
        counters.misses += made
        counters.hits += now.requests - before.requests - made
        counters.given += now.returns - before.returns
        counters.allocated += made
        counters.freed += now.segments_freed - before.segments_freed
        counters.held = now.reserved - now.allocated
        counters.peak = max(counters.peak, counters.held)
        self._seen = now
        return now
