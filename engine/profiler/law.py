"""The law of a step: wall time = base + per_row x rows, by ordinary least squares over steps, from sums alone.

Standard errors are those of the textbook (Draper and Smith, Applied Regression Analysis, 1.3 and 1.4), which take the
steps' deviations as independent. Neighbouring steps are not quite, so the true errors are somewhat larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_STEPS = 16
_ROUNDING = 1e-9  # seconds: what sums of floats leave of a zero
LEAST_SPREAD = 0.5  # rows: standard deviation under which the rows hardly differ


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds; each with its standard error. `r2` is the share of the variance that the line explains."""

    base: float
    base_error: float
    per_row: float
    per_row_error: float
    r2: float

    @property
    def absurd(self) -> str | None:
        """Why it cannot be the law of a step: no step gets shorter by a row, and none begins below nothing."""
        for value, error, what in (
            (self.per_row, self.per_row_error, "one more row"),
            (self.base, self.base_error, "a step without rows"),
        ):
            if value < -_ROUNDING:
                return f"a line would make {what} cost {1e3 * value:.2f} ±{1e3 * error:.2f} ms: other things decided"
        return None


@dataclass(frozen=True, slots=True)
class Rows:
    """What all spans of the steps share: their number, and the sums of their rows and of the rows' squares."""

    steps: float
    rows: float
    squares: float

    @property
    def why_not(self) -> str | None:
        if self.steps < LEAST_STEPS:
            return f"{self.steps:.0f} decode steps in the window; a line needs {LEAST_STEPS}"
        if math.sqrt(max(0.0, self._sxx / self.steps)) < LEAST_SPREAD:
            return f"all decode steps in the window had about {self.rows / self.steps:.1f} rows"
        return None

    @property
    def mean(self) -> float:
        return self.rows / self.steps

    @property
    def _sxx(self) -> float:
        return self.squares - self.rows**2 / self.steps

    def line(self, wall: float, rows_wall: float, squared_wall: float) -> Line:
        """Through the steps whose walls, products of rows and wall, and squared walls add up to these."""
        n, mean_rows, mean_wall = self.steps, self.rows / self.steps, wall / self.steps
        sxx = self._sxx
        sxy = rows_wall - self.rows * wall / n
        syy = max(0.0, squared_wall - wall**2 / n)
        per_row = sxy / sxx
        left = max(0.0, syy - per_row * sxy)
        variance = left / (n - 2)
        return Line(
            base=mean_wall - per_row * mean_rows,
            base_error=math.sqrt(variance * (1 / n + mean_rows**2 / sxx)),
            per_row=per_row,
            per_row_error=math.sqrt(variance / sxx),
            r2=1 - left / syy if syy else 1.0,
        )
