"""How a time grows with what was varied: a constant and a slope with its error, an exponent, and a word for it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Point = tuple[float, float]
Word = Literal["grows", "flat", "cannot be told"]

SHARE = 0.05  # of the first value's step: what a part that is flat may add over the whole sweep
ERRORS = 3  # standard errors on either side of the slope that a word must hold for
_EXPONENTS = [n / 100 for n in range(10, 301)]


@dataclass(frozen=True, slots=True)
class Line:
    """constant + slope * x, with the standard error of the slope."""

    constant: float
    slope: float
    error: float

    def at(self, x: float) -> float:
        return self.constant + self.slope * x


def line(points: Sequence[Point]) -> Line:
    """Least squares of the relative distances, so that the largest times do not rule alone.

    A distance is relative to the median at its x: relative to itself, a time would weigh more the lower it comes out.
    Raises ValueError for what is no time, and where there is too little for a slope with an error.
    """
    _check(points)
    weights = _weights(points)
    fitted, chi = _solve([x for x, _ in points], [y for _, y in points], weights)
    return Line(fitted[0], fitted[1], math.sqrt(chi / (len(points) - 2) * fitted[2]))


def exponent(points: Sequence[Point]) -> float | None:
    """The p of constant + factor * x ** p that fits best, in hundredths from 0.1 to 3.

    None where fewer than four x say anything of it, or the best one lies at an end of that range.
    """
    _check(points)
    if len({x for x, _ in points}) < 4:
        return None
    weights = _weights(points)
    most = max(x for x, _ in points)
    times = [y for _, y in points]
    squares = {p: _solve([(x / most) ** p for x, _ in points], times, weights)[1] for p in _EXPONENTS}
    best = min(squares, key=lambda p: squares[p])
    return None if best in (_EXPONENTS[0], _EXPONENTS[-1]) else best


def word(fitted: Line, reach: float, step: float) -> Word:
    """`reach`: from the first x to the last; `step`: the whole step's time at the first, that a growth is held against.

    It grows if the slope is above zero by ERRORS standard errors and adds more than SHARE of a step. It is flat if even
    so many errors more, up or down, would add no more than that. Anything else, such as a fall, is noise or too few
    visits.
    """
    adds, doubt, most = fitted.slope * reach, ERRORS * fitted.error * reach, SHARE * step
    if abs(adds) + doubt <= most:
        return "flat"
    return "grows" if adds > max(doubt, most) else "cannot be told"


def _check(points: Sequence[Point]) -> None:
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y) and x >= 0 and y > 0):
            raise ValueError(f"{y!r} at {x!r} is no time to fit: finite numbers, and times above zero")
    if len(points) < 3 or len({x for x, _ in points}) < 2:
        raise ValueError(
            f"{len(points)} points at {len({x for x, _ in points})} places have no slope to tell"
        )


def _weights(points: Sequence[Point]) -> list[float]:
    at: dict[float, list[float]] = {}
    for x, y in points:
        at.setdefault(x, []).append(y)
    middles = {x: statistics.median(times) for x, times in at.items()}
    return [middles[x] ** -2 for x, _ in points]


def _solve(
    xs: Sequence[float], ys: Sequence[float], weights: Sequence[float]
) -> tuple[tuple[float, float, float], float]:
    """(constant, slope, the slope's variance for residuals of variance 1), and the weighted sum of squares left."""
    total = math.fsum(weights)
    mean_x = math.fsum(w * x for w, x in zip(weights, xs, strict=True)) / total
    mean_y = math.fsum(w * y for w, y in zip(weights, ys, strict=True)) / total
    spread = math.fsum(w * (x - mean_x) ** 2 for w, x in zip(weights, xs, strict=True))
    together = math.fsum(w * (x - mean_x) * (y - mean_y) for w, x, y in zip(weights, xs, ys, strict=True))
    slope = together / spread
    constant = mean_y - slope * mean_x
    left = math.fsum(w * (y - constant - slope * x) ** 2 for w, x, y in zip(weights, xs, ys, strict=True))
    return (constant, slope, 1 / spread), left
