"""Plots over time in braille dots: two columns and four rows of dots a cell. Pure arithmetic, some 0.1 ms a plot.

A fill shows one quantity and a line a second one on the same axis: they differ by shape, not by colour alone. A column
without a value stays empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from .lines import Line, Piece, Role
from .samples import Sample

Values = Sequence[float | None]
T = TypeVar("T")

# The lowest 0 to 4 dots of a cell's left and right column (Unicode, block Braille Patterns).
_LEFT = (0, 0x40, 0x44, 0x46, 0x47)
_RIGHT = (0, 0x80, 0xA0, 0xB0, 0xB8)
_CELLS = " " + "".join(chr(0x2800 + dots) for dots in range(1, 256))


def top_of(*series: Values) -> float:
    """The axis's upper end: a round number, so that it seldom moves."""
    highest = max((value for values in series for value in values if value is not None), default=0.0)
    if highest < 1e-9:  # nothing that is measured here is as small
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(
        (step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8) if step * power >= highest * 0.999), 10 * power
    )


def columns(
    samples: Sequence[Sample],
    end: float,
    span: float,
    dots: int,
    value: Callable[[Sequence[Sample]], float | None],
) -> list[float | None]:
    """`value` of the samples that reach into each of `dots` equal parts of the `span` seconds before `end`. Neighbours
    that see the same samples share their value."""
    width = span / dots
    values: list[float | None] = []
    first = 0
    seen = (0, 0)
    for dot in range(dots):
        start = end - span + dot * width
        stop = start + width
        while first < len(samples) and samples[first].time <= start:
            first += 1
        last = first
        while last < len(samples) and samples[last].time - samples[last].seconds < stop:
            last += 1
        if last <= first:
            values.append(None)
        elif seen == (first, last):
            values.append(values[-1])
        else:
            values.append(value(samples[first:last]))
        seen = (first, last)
    return values


def plot(
    fill: Values, line: Values | None, rows: int, top: float, *, ascii_dots: bool = False
) -> list[list[Piece]]:
    """`rows` lines from the top down. `fill` and `line` have two values a cell, or one with `ascii_dots`."""
    if ascii_dots:
        return _ascii_plot(fill, line, rows, top)
    height = rows * 4
    filled = _pairs([_level(value, height, top) for value in fill])
    lined = _pairs(_strokes([_level(value, height, top) for value in line])) if line is not None else []
    # What a level leaves in a row is looked up by their difference, which lies between -height and height.
    lefts, rights = ([0] * height + [*dots] + [dots[4]] * height for dots in (_LEFT, _RIGHT))
    lines: list[list[Piece]] = []
    for shift in range(height - 4 * (rows - 1), height + 1, 4):
        fills = [lefts[left + shift] | rights[right + shift] for left, right in filled]
        strokes = [
            (lefts[left[1] + shift] ^ lefts[left[0] + shift])
            | (rights[right[1] + shift] ^ rights[right[0] + shift])
            for left, right in lined
        ]
        if any(strokes):
            both = zip(fills, strokes, strict=True)
            lines.append(_merged([(_CELLS[dots | line], "line" if line else "fill") for dots, line in both]))
        else:
            lines.append([("".join([_CELLS[dots] for dots in fills]), "fill")] if fills else [])
    return lines


def _pairs(columns: list[T]) -> list[tuple[T, T]]:
    """The left and the right column of each cell."""
    return list(zip(columns[::2], columns[1::2], strict=False))


def _level(value: float | None, dots: int, top: float) -> int:
    """Dots up from the bottom; a value above zero shows as one at the least."""
    if value is None or value <= 0:
        return 0
    return min(dots, max(1, round(dots * value / top)))


def _strokes(levels: list[int]) -> list[tuple[int, int]]:
    """For each column the dots of a line [from, to) that joins it to the column before."""
    strokes: list[tuple[int, int]] = []
    before = 0
    for level in levels:
        if level == 0:
            strokes.append((0, 0))
        elif before in (0, level):
            strokes.append((level - 1, level))
        else:
            strokes.append((min(before, level - 1), max(before - 1, level)))
        before = level
    return strokes


def _ascii_plot(fill: Values, line: Values | None, rows: int, top: float) -> list[list[Piece]]:
    lines: list[list[Piece]] = []
    levels = [_level(value, rows * 2, top) for value in fill]
    strokes = [_level(value, rows, top) for value in line] if line is not None else [0] * len(levels)
    for row in range(rows - 1, -1, -1):
        cells: list[Piece] = []
        for level, stroke in zip(levels, strokes, strict=True):
            if stroke == row + 1:
                cells.append(("=", "line"))
            else:
                cells.append(("#" if level > 2 * row + 1 else "." if level > 2 * row else " ", "fill"))
        lines.append(_merged(cells))
    return lines


def _merged(cells: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one role as one piece."""
    merged: list[Piece] = []
    run: list[str] = []
    now: Role | None = None
    for text, role in cells:
        if now is not None and role != now and text != " ":
            merged.append(("".join(run), now))
            run, now = [], role
        run.append(text)
        now = now or role
    return [*merged, ("".join(run), now)] if now is not None else merged


def bar(parts: Sequence[tuple[float, str, Role]], width: int) -> Line:
    """Parts of a whole as lengths of different glyphs; a part above zero shows as one cell at the least."""
    whole = sum(part for part, _, _ in parts)
    if whole <= 0 or width < len(parts):
        return []
    cells = [max(1 if part > 0 else 0, round(width * part / whole)) for part, _, _ in parts]
    while (excess := sum(cells) - width) != 0:
        largest = max(range(len(cells)), key=lambda index: cells[index])
        cells[largest] -= 1 if excess > 0 else -1
    return [(glyph * count, role) for count, (_, glyph, role) in zip(cells, parts, strict=True) if count]


def place(moment: float, end: float, span: float, width: int) -> int | None:
    """The cell of a moment on an axis of `width` cells; None outside of it."""
    cell = math.floor((moment - (end - span)) / span * width)
    return cell if 0 <= cell < width else None
