"""Pools to test with: what comes back is poisoned, so that whoever still reads it reads NaN."""

from __future__ import annotations

import ctypes

from arc.engine.memory.blocks import Block
from arc.engine.memory.cap import MIB
from arc.engine.memory.pool import HostPool
from arc.engine.telemetry.records import AllocatorCounters

PLENTY = 1 << 33


def poison(block: Block) -> None:
    """All bits set: NaN in every float format, -1 in every integer one."""
    ctypes.memset(block.address, 0xFF, block.size)


def pool(cap_mib: int | None = 64, free: int = PLENTY) -> HostPool:
    made = HostPool(AllocatorCounters(), lambda: free, on_return=poison)
    made.configure(True, cap_mib)
    return made


def check(made: HostPool) -> None:
    """What holds at any time."""
    counters, state = made.counters, made.state()
    live = sum(each.live for each in state.classes)
    free = sum(each.free for each in state.classes)
    assert counters.taken == counters.given + live
    assert counters.allocated == counters.freed + live + free
    assert counters.held == sum(each.size * (each.live + each.free) for each in state.classes)
    assert state.live == sum(each.size * each.live for each in state.classes)
    assert counters.evictions <= counters.freed
    assert counters.held <= counters.peak
    if state.cap is not None:
        assert counters.held <= max(state.cap, state.live)
    if not state.enabled:
        assert free == 0
    assert state.cap is None or state.cap % MIB == 0 or state.cap_from.startswith("auto")
