"""Entries by arrival, which can be walked in pieces while they come and go.

A walk leaves a mark in the chain where it has come to. Whatever is removed around the mark, its neighbours are those
that come next, so going on costs what is taken and never a search.
"""

from __future__ import annotations

from collections.abc import Iterator

from .entry import Entry


class _Link:
    __slots__ = ("after", "before", "entry")

    def __init__(self, entry: Entry | None) -> None:
        self.entry = entry  # None: the chain's root, or a mark
        self.before = self.after = self

    def put_after(self, place: _Link) -> None:
        self.before, self.after = place, place.after
        place.after.before = self
        place.after = self

    def take_out(self) -> None:
        """It keeps its own pointers: pointing to itself, it would live on until the garbage collector comes."""
        self.before.after, self.after.before = self.after, self.before


class Arrivals:
    """Numbers ascend: what is pushed has a higher one than all before it."""

    __slots__ = ("_links", "_root")

    def __init__(self) -> None:
        self._root = _Link(None)
        self._links: dict[int, _Link] = {}

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[Entry]:
        link = self._root.after
        while link is not self._root:
            if link.entry is not None:
                yield link.entry
            link = link.after

    def push(self, entry: Entry) -> None:
        link = self._links[entry.seq.number] = _Link(entry)
        link.put_after(self._root.before)

    def remove(self, number: int) -> None:
        self._links.pop(number).take_out()

    def mark(self) -> Mark:
        return Mark(self._root)


class Mark:
    """How far one walk has come. Its owner takes it out when it is done with it."""

    __slots__ = ("_link", "_root")

    def __init__(self, root: _Link) -> None:
        self._root = root
        self._link = _Link(None)
        self._link.put_after(root)

    def next(self) -> Entry | None:
        """The next one, which the mark then has passed; None at the end."""
        place = self._link.after
        while place is not self._root and place.entry is None:  # another walk's mark
            place = place.after
        if place is self._root:
            return None
        self._link.take_out()
        self._link.put_after(place)
        return place.entry

    def take_out(self) -> None:
        self._link.take_out()
