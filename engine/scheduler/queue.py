"""The waiting line: who is next under each order, without ever walking the line in a step."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice

from .entry import Entry


class _Class:
    """Sequences of one priority: those that were preempted, by arrival, then those never admitted, by
    arrival.
    """

    __slots__ = ("fresh", "returned")

    def __init__(self) -> None:
        self.returned: list[Entry] = []  # at most as many as ever ran at once
        self.fresh: OrderedDict[int, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self.returned) + len(self.fresh)

    def __iter__(self) -> Iterator[Entry]:
        return chain(self.returned, self.fresh.values())


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
            home.fresh[entry.seq.number] = entry
        self._size += 1

    def remove(self, entry: Entry) -> None:
        priority = self._priority(entry)
        home = self._classes[priority]
        if entry.seq.preemptions:
            home.returned.remove(entry)
        else:
            del home.fresh[entry.seq.number]
        self._size -= 1
        if not home:
            del self._classes[priority]
            del self._order[bisect_left(self._order, priority)]

    def window(self, count: int) -> list[Entry]:
        """The first `count` of the first class."""
        return list(islice(self._classes[self._order[0]], count))

    def head(self) -> Entry:
        return self.window(1)[0]

    def _priority(self, entry: Entry) -> int:
        return entry.seq.request.priority if self._by_priority else 0

    def _class_of(self, entry: Entry) -> _Class:
        priority = self._priority(entry)
        home = self._classes.get(priority)
        if home is None:
            home = self._classes[priority] = _Class()
            insort(self._order, priority)
        return home
