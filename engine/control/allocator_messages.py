"""The allocator on the control socket: GET /v1/allocator. The console imports this module, as it does protocol.py."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .protocol import NA, AllocatorCounts


class AllocatorQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of GET /v1/allocator."""

    window: Annotated[float, Meta(gt=0, le=900)] = 10.0  # seconds that `window` counts over


class SizeClass(msgspec.Struct, frozen=True, kw_only=True):
    """The buffers of one size."""

    size: int  # bytes of one
    free: int  # buffers
    live: int  # buffers in use
    recency: int | NA  # 0: the class used last; eviction begins at the highest


class AllocatorState(msgspec.Struct, frozen=True, kw_only=True):
    """The allocator at one step border. Buffers that were taken = hits + misses = given + those in use.

    Counts are since the start. On a card it governs torch's own cache: `held` is what that reserves beyond what is in
    use, and it keeps no free lists, so there are no classes.
    """

    kind: str  # pool, or governor
    place: str  # "host", or the device's name
    enabled: bool
    cap: int | None  # bytes; None: unbounded, or off
    cap_from: str  # where the cap comes from, in words
    bound: int  # times that the cap had to be kept to since it was set; 0: not reached
    held: int  # bytes
    peak: int  # bytes, most that was ever held
    live: int  # bytes in use
    kept: int  # bytes in use that are meant to outlive their step
    overdue: int  # buffers in use after their step that nobody announced
    hits: int
    misses: int
    given: int  # buffers that came back
    allocated: int  # buffers had from the system
    freed: int  # buffers given back to the system
    evictions: int  # of those, to stay under the cap
    capture_misses: int
    bypassed: dict[str, int]  # why -> requests that were not taken
    classes: tuple[SizeClass, ...]  # by size


class Allocator(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/allocator: what happened in the last `seconds`, and how it stands now."""

    seconds: float
    steps: int  # in these seconds
    window: AllocatorCounts | None  # None: it is off
    now: AllocatorState | None  # None: this engine has no allocator of its own
