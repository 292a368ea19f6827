"""A table of any length: only the rows in sight become lines. Sorting, filtering and the cursor, free of Textual.

The cursor belongs to a row's key and not to its place: it stays with what the operator chose while the order moves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .lines import CURSOR, Line, Piece, Role, fit, left, right

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """`cell` gives text and role. Shown when the table is at least `least` wide; `grows` takes what is left over."""

    head: str
    width: int
    cell: Callable[[R], Piece]
    sort: Callable[[R], Any]
    is_right: bool = True
    least: int = 0
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """A regular expression, or its opposite: `!pattern`."""

    text: str
    pattern: re.Pattern[str]
    inverse: bool

    def __call__(self, text: str) -> bool:
        return (self.pattern.search(text) is not None) != self.inverse


def parse_filter(text: str) -> Filter | None:
    """None for nothing. Raises re.error for what is no regular expression."""
    inverse = text.startswith("!")
    pattern = text.removeprefix("!")
    return Filter(text, re.compile(pattern, re.IGNORECASE), inverse) if pattern else None


class Table(Generic[R]):
    """`sorted_by` is a column's index, or None for the order in which the rows come."""

    def __init__(
        self,
        columns: Sequence[Column[R]],
        key: Callable[[R], Hashable],
        *,
        text: Callable[[R], str],
        empty: str,
        follows_end: bool = False,
        has_cursor: bool = True,
    ) -> None:
        self.columns = columns
        self.sorted_by: int | None = None
        self.descending = False
        self.filter: Filter | None = None
        self.cursor: Hashable = None
        self.shown: list[R] = []  # what the last lines() had to show, in order
        self.lines_made = 0  # rows that became lines: the work that tests count
        self._key = key
        self._text = text
        self._empty = empty
        self._has_cursor = has_cursor
        self._follows_end = follows_end
        self._at_end = follows_end
        self._last_place = 0  # where the cursor was seen last
        self._top = 0
        self._height = 1
        self._arranged: tuple[Any, ...] = ()

    # -- order ----------------------------------------------------------------------------------------------------

    def arrange(self, rows: Sequence[R]) -> list[R]:
        """Filtered and sorted; done again only when the rows or the order are others."""
        asked = (rows, self.sorted_by, self.descending, self.filter)
        if not (self._arranged and self._arranged[0] is rows and self._arranged[1:] == asked[1:]):
            kept = [row for row in rows if self.filter is None or self.filter(self._text(row))]
            if self.sorted_by is not None:
                sort = self.columns[self.sorted_by].sort
                kept.sort(key=lambda row: _ordered(sort(row)), reverse=self.descending)
            self.shown = kept
            self._arranged = asked
        return self.shown

    def move_sort(self, by: int, width: int) -> None:
        """To the next column in sight, around through the rows' own order."""
        places: list[int | None] = [None, *self._visible(width)]
        at = places.index(self.sorted_by) if self.sorted_by in places else 0
        self.sorted_by = places[(at + by) % len(places)]
        self.descending = self.sorted_by is not None and self.columns[self.sorted_by].is_right

    def sort_at(self, x: int, width: int) -> None:
        """A click on the head: sort by that column, or the other way round."""
        start = 2
        for index, wide in self._widths(width):
            if start <= x < start + wide + 1:
                if self.sorted_by == index:
                    self.descending = not self.descending
                else:
                    self.sorted_by, self.descending = index, self.columns[index].is_right
            start += wide + 1

    # -- the cursor -----------------------------------------------------------------------------------------------

    @property
    def place(self) -> int:
        """The cursor's row among those shown. A row that went away leaves the cursor where it was."""
        if self._at_end and self.shown:
            return len(self.shown) - 1
        last = self._last_place
        if last < len(self.shown) and self._key(self.shown[last]) == self.cursor:
            return last  # where it was: the search below is for rows that moved
        for index, row in enumerate(self.shown if self.cursor is not None else ()):
            if self._key(row) == self.cursor:
                self._last_place = index
                return index
        return max(0, min(self._last_place, len(self.shown) - 1))

    @property
    def chosen(self) -> R | None:
        return self.shown[self.place] if self.shown else None

    def move(self, by: int) -> None:
        self.go(self.place + by)

    def page(self, by: int) -> None:
        self.move(by * max(1, self._height - 1))

    def go(self, place: int) -> None:
        """To this row; the ends hold. A table that follows its end does so again once the cursor is there."""
        if self.shown:
            place = max(0, min(place, len(self.shown) - 1))
            self.cursor = self._key(self.shown[place])
            self._last_place = place
            self._at_end = self._follows_end and place == len(self.shown) - 1

    def click(self, y: int) -> None:
        """`y` counts from the first row in sight."""
        if 0 <= y < self._height and self._top + y < len(self.shown):
            self.go(self._top + y)

    # -- lines ----------------------------------------------------------------------------------------------------

    def lines(self, rows: Sequence[R], width: int, height: int) -> list[Line]:
        """The head, and the rows in sight."""
        shown = self.arrange(rows)
        self._height = max(1, height - 1)
        place = self.place
        self._top = max(min(self._top, place), place - self._height + 1, 0)
        self._top = min(self._top, max(0, len(shown) - self._height))
        widths = self._widths(width)
        lines = [self._head(widths, width)]
        if not shown:
            why = f"  nothing matches /{self.filter.text}" if self.filter and rows else f"  {self._empty}"
            return [*lines, fit([(why, "dim")], width)]
        for index in range(self._top, min(self._top + self._height, len(shown))):
            lines.append(self._row(shown[index], widths, width, self._has_cursor and index == place))
        self.lines_made += len(lines) - 1
        return lines

    def position(self) -> str:
        """Which rows are in sight: 1–20 of 312."""
        if not self.shown:
            return "0"
        last = min(self._top + self._height, len(self.shown))
        return f"{self._top + 1}–{last} of {len(self.shown):,}"

    def cells(self, rows: Sequence[R]) -> tuple[list[str], list[list[str]]]:
        """Everything as text, for export: all columns and all rows that the filter leaves."""
        heads = [column.head for column in self.columns]
        return heads, [[column.cell(row)[0].strip() for column in self.columns] for row in self.arrange(rows)]

    def _head(self, widths: list[tuple[int, int]], width: int) -> Line:
        line: Line = [("  ", "dim")]
        for index, wide in widths:
            column = self.columns[index]
            arrow = ("↓" if self.descending else "↑") if index == self.sorted_by else ""
            role: Role = "here" if arrow else "dim"
            # The arrow stands in the cell between two columns: a head that fills its own moves nothing.
            head = (
                right(column.head, wide) + (arrow or " ")
                if column.is_right
                else left(column.head + arrow, wide + 1)
            )
            line.append((head, role))
        return fit(line, width)

    def _row(self, row: R, widths: list[tuple[int, int]], width: int, here: bool) -> Line:
        line: Line = [("▸ " if here else "  ", "here" if here else "text")]
        for index, wide in widths:
            column = self.columns[index]
            text, role = column.cell(row)
            line.append(((right(text, wide) if column.is_right else left(text, wide)) + " ", role))
        return [CURSOR, *fit(line, width)] if here else fit(line, width)

    def _visible(self, width: int) -> list[int]:
        return [index for index, column in enumerate(self.columns) if width >= column.least]

    def _widths(self, width: int) -> list[tuple[int, int]]:
        visible = self._visible(width)
        spare = width - 2 - sum(self.columns[index].width + 1 for index in visible)
        growing = [index for index in visible if self.columns[index].grows]
        widths: list[tuple[int, int]] = []
        for index in visible:
            extra = spare // len(growing) if index in growing else 0
            widths.append((index, max(4 if extra else 1, self.columns[index].width + extra)))
        return widths


def _ordered(value: Any) -> tuple[bool, Any]:
    """Unknown comes before everything else."""
    return (value is not None, value)
