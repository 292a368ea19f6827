"""The statistics of an A/B in blocks of time: the ratio of two arms, its interval, and when looking at it may stop.

Pure: no clock, no engine, and no randomness but that of the generator it is given.

The unit is the pair: two neighbouring blocks, one of each arm, in random order. Its value is the logarithm of the ratio
of the two measurements: what drifts slowly (load, heat, the hour) falls out, and a ratio and its inverse weigh alike.

The estimate is looked at more than once, so each look spends a part of the error that the experiment may make in all
(alpha spending: Lan and DeMets, Biometrika 70, 1983), here alpha x t^2 after the share t of the pairs (power family of
Kim and DeMets, Biometrika 74, 1987). Look k has an interval of confidence 1 - (alpha(t_k) - alpha(t_{k-1})): a repeated
confidence interval (Jennison and Turnbull, J. R. Stat. Soc. B 51, 1989). By Bonferroni's inequality all of them hold
together with probability 1 - alpha at least, so the last one does too, whatever made the experiment stop. The looks are
correlated, hence the true error is smaller: the price of a rule that needs no numerical integration.

An interval is mean +- q x standard error over the pairs. q is the larger of Student's quantile and of the studentised
bootstrap over whole pairs (Hall, Annals of Statistics 16, 1988; Davison and Hinkley, Bootstrap Methods, 1997, 5.2.1;
the symmetric form). The bootstrap follows skewed and heavy-tailed blocks; alone, with few pairs, it is too narrow.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from operator import mul

import msgspec

LEAST_PAIRS = 4  # before the first look: a spread of fewer says nothing
LOOKS = 5
_RESAMPLES = 999  # (n + 1) x share is whole for the usual shares (Davison and Hinkley, 2.3)


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio of the second arm to the first. `low` and `high` bound it with `confidence`."""

    ratio: float
    low: float
    high: float
    confidence: float
    pairs: int

    @property
    def decided(self) -> bool:
        """Whether the interval excludes that the arms are equal."""
        return not self.low <= 1.0 <= self.high

    def within(self, margin: float) -> bool:
        """Whether the interval excludes every ratio further than `margin` from 1: 0.02 is two per cent."""
        return 1 / (1 + margin) <= self.low and self.high <= 1 + margin


def log_ratio(first: float, second: float) -> float:
    """Of one pair. Both must be above zero: of nothing there is no ratio."""
    return math.log(second / first)


def estimate(values: Sequence[float], alpha: float, rng: random.Random) -> Estimate:
    """From the pairs' logarithms, at least two of them."""
    count = len(values)
    mean, error = statistics.fmean(values), standard_error(values)
    quantile = max(t_quantile(1 - alpha / 2, count - 1), _bootstrap_quantile(values, alpha, rng))
    return Estimate(
        ratio=math.exp(mean),
        low=math.exp(mean - quantile * error),
        high=math.exp(mean + quantile * error),
        confidence=1 - alpha,
        pairs=count,
    )


def standard_error(values: Sequence[float]) -> float:
    return math.sqrt(statistics.variance(values) / len(values))


def _bootstrap_quantile(values: Sequence[float], alpha: float, rng: random.Random) -> float:
    """The quantile 1 - alpha of |mean* - mean| / error* over resamples of whole pairs.

    A resample of one pair alone, drawn count times, has no spread: it says that nothing is known about the tail, which
    Student's quantile covers, and is left out.
    """
    mean, count = statistics.fmean(values), len(values)
    found: list[float] = []
    for _ in range(_RESAMPLES):
        drawn = rng.choices(values, k=count)
        total = sum(drawn)
        spread = sum(map(mul, drawn, drawn)) - total * total / count
        if spread > 1e-12 * total * total:
            found.append(abs(total / count - mean) / math.sqrt(spread / (count - 1) / count))
    if not found:
        return 0.0
    found.sort()
    return found[min(len(found) - 1, math.ceil((1 - alpha) * (len(found) + 1)) - 1)]


# -- when to look -----------------------------------------------------------------------------------------------------


def looks(pairs: int) -> tuple[int, ...]:
    """After how many pairs an experiment of `pairs` is looked at: at most LOOKS times, evenly, and at the end."""
    if pairs < LEAST_PAIRS:
        raise ValueError(f"{pairs} pairs: an experiment has at least {LEAST_PAIRS}")
    at = {max(LEAST_PAIRS, math.ceil(pairs * look / LOOKS)) for look in range(1, LOOKS + 1)}
    return tuple(sorted(at))


def spent(alpha: float, pairs: int) -> dict[int, float]:
    """Look -> the error that it may spend; all together alpha."""
    spending: dict[int, float] = {}
    before = 0.0
    for look in looks(pairs):
        until = alpha * (look / pairs) ** 2
        spending[look] = until - before
        before = until
    return spending


def orders(pairs: int, rng: random.Random) -> list[tuple[int, int]]:
    """The arms of each pair in the order that they run: 0 and 1, or 1 and 0, by a fair coin."""
    return [(0, 1) if rng.random() < 0.5 else (1, 0) for _ in range(pairs)]


# -- Student's distribution -------------------------------------------------------------------------------------------


def t_quantile(share: float, freedom: int) -> float:
    """The value that Student's t with `freedom` degrees of freedom does not exceed with probability `share` > 0.5.

    Found by halving an interval: the distribution function rises, and 60 halvings leave no digit open.
    """
    low, high = 0.0, 1.0
    while _t_cdf(high, freedom) < share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, freedom) < share else (low, middle)
    return high


def _t_cdf(value: float, freedom: int) -> float:
    """For value >= 0 (Abramowitz and Stegun, 26.7.1 by the incomplete beta function)."""
    return 1 - 0.5 * _incomplete_beta(freedom / (freedom + value * value), freedom / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun, 26.5.8), evaluated as
    Lentz does (Applied Optics 15, 1976), on the side where it converges fast."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    value = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + numerator * d or tiny)
            c = 1 + numerator / c or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * value / a
