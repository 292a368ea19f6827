"""The sums of the last quarter of an hour, a second at a time: any window of it is a sum of its seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .fold import Part, nothing

KEPT = 900  # seconds


@dataclass(frozen=True, slots=True)
class Second:
    at: int  # on the profiler's clock
    part: Part


@dataclass(frozen=True, slots=True)
class Window:
    """`seconds` is how far back it really goes: whole seconds are counted, and no further than profiling does."""

    seconds: float
    part: Part


class Windows:
    """The engine thread adds; anyone may read: a second that is still added to is replaced whole."""

    def __init__(self, since: int) -> None:
        """`since`: when profiling began, ns."""
        self._since = since
        self._seconds: deque[Second] = deque(maxlen=KEPT)

    def add(self, part: Part, now: int) -> None:
        at = now // 1_000_000_000
        if self._seconds and self._seconds[-1].at == at:
            self._seconds[-1] = Second(at, self._seconds[-1].part + part)
        else:
            self._seconds.append(Second(at, part))

    def last(self, seconds: float, now: int) -> Window:
        first = (now - round(seconds * 1e9)) // 1_000_000_000
        part = nothing()
        for each in self._seconds.copy():
            if each.at >= first:
                part += each.part
        began = max(self._since, first * 1_000_000_000)
        return Window(max(0.0, (now - began) * 1e-9), part)
