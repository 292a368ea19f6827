"""The waiting line: who is next under each order, without ever walking the line in a step."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import chain, islice
from typing import Literal

from .arrivals import Arrivals, Mark
from .entry import Entry


class _Class:
    """Sequences of one priority: those that were preempted, by arrival, then those never admitted, by
    arrival.
    """

    __slots__ = ("fresh", "returned")

    def __init__(self) -> None:
        self.returned: list[Entry] = []  # at most as many as ever ran at once
        self.fresh = Arrivals()

    def __len__(self) -> int:
        return len(self.returned) + len(self.fresh)

    def __iter__(self) -> Iterator[Entry]:
        return chain(self.returned, self.fresh)


class WaitingQueue:
    """First come, first served within a priority, lower priorities first when `by_priority`, else all as one
    class.

    No call but iteration walks the line: the cost is that of the distinct priorities present and, for a
    preempted sequence, of the preempted ones.
    """

    def __init__(self, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._classes: dict[int, _Class] = {}
        self._order: list[int] = []  # the priorities present, ascending
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        """In order of admission, were nothing else to arrive and the order not `prefix`."""
        return chain.from_iterable(self._classes[priority] for priority in self._order)

    def push(self, entry: Entry) -> None:
        """Numbers ascend by arrival, so a sequence that was never admitted goes to the end of its class."""
        home = self._class_of(entry)
        if entry.seq.preemptions:
            insort(home.returned, entry, key=lambda other: other.seq.number)
        else:
            home.fresh.push(entry)
        self._size += 1

    def remove(self, entry: Entry) -> None:
        priority = self.priority(entry)
        home = self._classes[priority]
        if entry.seq.preemptions:
            home.returned.remove(entry)
        else:
            home.fresh.remove(entry.seq.number)
        self._size -= 1
        if not home:
            del self._classes[priority]
            del self._order[bisect_left(self._order, priority)]

    def window(self, count: int) -> list[Entry]:
        """The first `count` of the first class."""
        return list(islice(self._classes[self._order[0]], count))

    def head(self) -> Entry:
        return self.window(1)[0]

    def returned(self) -> list[Entry]:
        """Those that were preempted, at most as many as ever ran at once; in the line's order."""
        return [entry for priority in self._order for entry in self._classes[priority].returned]

    def walk(self) -> Walk:
        return Walk(self)

    def class_after(self, priority: int | None) -> tuple[int, Mark] | None:
        """The first class behind `priority`, None: the very first; with a mark at the first of its fresh ones."""
        place = 0 if priority is None else bisect_right(self._order, priority)
        if place == len(self._order):
            return None
        found = self._order[place]
        return found, self._classes[found].fresh.mark()

    def priority(self, entry: Entry) -> int:
        """Of its class."""
        return entry.seq.request.priority if self._by_priority else 0

    def _class_of(self, entry: Entry) -> _Class:
        priority = self.priority(entry)
        home = self._classes.get(priority)
        if home is None:
            home = self._classes[priority] = _Class()
            insort(self._order, priority)
        return home


class Walk:
    """Goes once over those that were never admitted, in the line's order, in pieces between which the line may change.

    It meets whoever was in line at its beginning and still is when it comes by; `last` is the highest number that it
    goes to, so that arrivals never keep it going.
    """

    def __init__(self, queue: WaitingQueue) -> None:
        self._queue = queue
        self._priority: int | None = None
        self._mark: Mark | None = None

    def next(self, last: int) -> Entry | Literal["on"] | None:
        """The next one; "on" when a class has come to its end, which is work as well; None at the end of all."""
        if self._mark is not None:
            entry = self._mark.next()
            if entry is not None and entry.seq.number <= last:
                return entry
            self.close()
        found = self._queue.class_after(self._priority)
        if found is None:
            return None
        self._priority, self._mark = found
        return "on"

    def close(self) -> None:
        """Leave no mark behind."""
        if self._mark is not None:
            self._mark.take_out()
            self._mark = None
