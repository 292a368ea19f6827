"""What an experiment is asked to do, and how it divides its time."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ...engine.flags import Value, show
from ..exits import Failure
from .metrics import Metric
from .statistics import LEAST_PAIRS, orders

BLOCK = 15.0  # seconds, wash-out included, when the time is long enough for LEAST_PAIRS such pairs
WASHOUT = 0.2  # of a block
LEAST_BLOCK = 1.0  # seconds: the history's finest samples are a tenth of it
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Guard:
    """A metric that may worsen by a factor of `limit` and no more."""

    metric: Metric
    limit: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One flag, two values, one metric."""

    flag: str
    values: tuple[Value, Value]  # as the engine reads them; text is taken too
    metric: Metric
    seconds: float
    block: float
    washout: float  # seconds at the start of each block that are not measured
    guards: tuple[Guard, ...]
    alpha: float
    margin: float | None  # an interval within it says that the arms are as good as equal
    seed: int

    @property
    def pairs(self) -> int:
        return int(self.seconds / (2 * self.block) + 1e-9)

    def orders(self) -> list[tuple[int, int]]:
        return orders(self.pairs, random.Random(self.seed))

    def shown(self, arm: int) -> str:
        return f"{self.flag}={show(self.values[arm])}"


def divided(seconds: float, block: float | None, washout: float | None) -> tuple[float, float]:
    """Block and wash-out, seconds. Raises Failure when the time is too short for an experiment."""
    if block is None:
        block = min(BLOCK, seconds / (2 * LEAST_PAIRS))
    if washout is None:
        washout = WASHOUT * block
    if block < LEAST_BLOCK:
        raise Failure(
            f"{seconds:g} s are too short: {2 * LEAST_PAIRS} blocks of {LEAST_BLOCK:g} s are the least, "
            f"--for {2 * LEAST_PAIRS * LEAST_BLOCK:g}s"
        )
    if not 0 <= washout <= 0.8 * block:
        raise Failure(f"a wash-out of {washout:g} s leaves too little of a block of {block:g} s")
    if int(seconds / (2 * block) + 1e-9) < LEAST_PAIRS:
        raise Failure(
            f"{seconds:g} s are {int(seconds / (2 * block))} pairs of {block:g} s blocks; {LEAST_PAIRS} pairs are the "
            f"least: a longer --for or a shorter --block"
        )
    return block, washout
