"""What happened, numbered: flag changes, refusals, cancels, preemptions, faults, marks.

The log is a ring. A reader keeps the number of the last event it saw and asks for what came after; whatever the ring
has lost by then is stated as a Gap, so that nothing is ever missing in silence. A slow reader costs no memory: it is
one number.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .protocol import Event, Gap

KEPT = 4096


class EventLog:
    """Appended to from any thread; `add` takes a lock for the time of a deque append."""

    def __init__(self, kept: int = KEPT, sink: Callable[[Event], None] | None = None) -> None:
        """`sink` gets each event in order, under the lock: the flight recorder. It must be quick and must not raise."""
        self._lock = threading.Lock()
        self._ring: deque[Event] = deque(maxlen=kept)
        self._sink = sink
        self._last = 0

    def add(
        self,
        kind: str,
        text: str,
        *,
        step: int | None = None,
        uid: int | None = None,
        pid: int | None = None,
        **data: Any,
    ) -> Event:
        """Note that something happened. `data` holds JSON values."""
        with self._lock:
            event = Event(
                number=self._last + 1,
                time=time.time(),
                kind=kind,
                text=text,
                step=step,
                uid=uid,
                pid=pid,
                data=data,
            )
            self._ring.append(event)
            self._last = event.number
            if self._sink is not None:
                self._sink(event)
        return event

    @property
    def last(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._last

    def since(self, number: int, limit: int | None = None) -> tuple[Gap | None, list[Event]]:
        """The events after `number`, oldest first, at most `limit` of them, and what of them is lost.

        A number past the last one is another life of the engine, or invented: the reader gets all there is.
        """
        with self._lock:
            events = list(self._ring)
            last = self._last
        if number > last:
            number = 0
        first = events[0].number if events else last + 1
        gap = Gap(first - number - 1, number + 1, first - 1) if number + 1 < first else None
        wanted = events[max(0, number + 1 - first) :]
        return gap, wanted if limit is None else wanted[:limit]
