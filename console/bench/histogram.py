"""Latencies in bounded memory: counts in buckets 1 % wide. A run of a day takes no more room than one of a minute.

The idea is that of HDR histograms (Tene): percentiles are read off merged counts, never averaged.
"""

from __future__ import annotations

import math
from array import array

import msgspec

LEAST = 1e-5  # seconds; shorter ones count as this
MOST = 1e4
_WIDTH = 1.01
_LOG = math.log(_WIDTH)
_BUCKETS = math.ceil(math.log(MOST / LEAST) / _LOG) + 1


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. Percentiles are right within 1 %; the mean and the extremes are exact."""

    count: int
    mean: float
    least: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float
    curve: tuple[float, ...]  # the percentiles 0, 5, 10 ... 100


class LatencyHistogram:
    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * _BUCKETS))
        self._sum = 0.0
        self._least = math.inf
        self._most = 0.0
        self.count = 0

    def add(self, seconds: float) -> None:
        self._counts[_bucket(seconds)] += 1
        self.count += 1
        self._sum += seconds
        self._least = min(self._least, seconds)
        self._most = max(self._most, seconds)

    def percentile(self, share: float) -> float:
        """The value that at least `share` of all do not exceed, within the bucket's 1 %."""
        rank = max(1, math.ceil(share * self.count))
        below = 0
        for index, count in enumerate(self._counts):
            below += count
            if below >= rank:
                middle = LEAST * _WIDTH ** (index + 0.5)
                return min(max(middle, self._least), self._most)
        raise ValueError("no values were added")

    def summary(self) -> Latency | None:
        """None while nothing was added: there is no percentile of nothing."""
        if not self.count:
            return None
        return Latency(
            count=self.count,
            mean=self._sum / self.count,
            least=self._least,
            p50=self.percentile(0.5),
            p90=self.percentile(0.9),
            p95=self.percentile(0.95),
            p99=self.percentile(0.99),
            most=self._most,
            curve=tuple(self.percentile(share / 100) for share in range(0, 101, 5)),
        )


def _bucket(seconds: float) -> int:
    if seconds <= LEAST:
        return 0
    return min(int(math.log(seconds / LEAST) / _LOG), _BUCKETS - 1)
