"""How much the allocator may hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MIB = 1 << 20
LOW, HIGH = 64 * MIB, 1024 * MIB
SHARE = 8  # one part in so many of the memory that is free


@dataclass(frozen=True, slots=True)
class Cap:
    bytes: int | None  # None: unbounded
    why: str  # for people


def derive(free: int) -> int:
    """Bytes to hold at most on a machine where `free` bytes are free: an eighth, between 64 MiB and 1 GiB.

    Never more than half of what is free: a cap above what there is would be none.
    """
    return min(HIGH, max(LOW, free // SHARE), free // 2)


def cap_of(setting: int | None, free: Callable[[], int]) -> Cap:
    """Of alloc.cap_mib: MiB, 0 for unbounded, or None for auto, which measures."""
    if setting is None:
        measured = free()
        return Cap(derive(measured), f"auto, of {measured // MIB:,} MiB measured free")
    if setting == 0:
        return Cap(None, "alloc.cap_mib = 0: unbounded, for comparison only")
    return Cap(setting * MIB, f"alloc.cap_mib = {setting}")
