"""Cutting rows of different lengths into groups that are padded to their longest."""

from __future__ import annotations

from collections.abc import Callable

_MOST_CUTS = 32


def cut(rows: int, cost: Callable[[int, int], float]) -> list[tuple[int, int]]:
    """The consecutive [start, end) ranges of `rows` sorted rows with the least total `cost(start, end)`.

    Dynamic programming over where the last range starts. Past 32 rows, only every second, third, ... row may start a
    range, so that planning a step never takes more than about 500 calls of `cost`.
    """
    stride = -(-rows // _MOST_CUTS)
    borders = [*range(0, rows, stride), rows]
    best = [0.0]
    last = [0]
    for end in range(1, len(borders)):
        totals = [best[start] + cost(borders[start], borders[end]) for start in range(end)]
        least = min(totals)
        best.append(least)
        last.append(totals.index(least))
    ranges: list[tuple[int, int]] = []
    end = len(borders) - 1
    while end > 0:
        ranges.append((borders[last[end]], borders[end]))
        end = last[end]
    return ranges[::-1]
