"""The numbers that an experiment may be about, each from the engine's own history over one block's window.

Counts and buckets of the samples inside the window are added up first: a percentile is read off merged buckets, and a
rate is a sum over a sum. Nothing is averaged over samples. What had no events in the window is NA, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...engine.control.protocol import NA, Percentiles, Sample
from ...engine.flags import did_you_mean
from ..exits import Failure

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Window:
    """The history's samples of one block."""

    samples: tuple[Sample, ...]
    bounds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return sum(sample.seconds for sample in self.samples)

    def total(self, name: str) -> float:
        return sum(getattr(sample, name) for sample in self.samples)


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a window. `value` gives NA with the reason where the window cannot say."""

    name: str
    better: Better
    unit: str
    meaning: str
    value: Callable[[Window], float | NA]

    def worsened(self, ratio: float) -> float:
        """How much worse a ratio is, as a factor: above 1 is worse, whichever way is better."""
        return ratio if self.better == "lower" else 1 / ratio


def _percentile(latency: str, name: str) -> Callable[[Window], float | NA]:
    def value(window: Window) -> float | NA:
        counts = [0] * (len(window.bounds) + 1)
        for sample in window.samples:
            for index, count in sample.buckets.get(latency, {}).items():
                counts[index] += count
        if not any(counts):
            return NA("no events of it in the block")
        found = getattr(Percentiles.of(counts, window.bounds), name)
        return found if isinstance(found, NA) else 1000 * found

    return value


def _rate(name: str) -> Callable[[Window], float | NA]:
    def value(window: Window) -> float | NA:
        total = window.total(name)
        return total / window.seconds if total and window.seconds else NA("no events of it in the block")

    return value


def _per_step(name: str, factor: float = 1.0) -> Callable[[Window], float | NA]:
    def value(window: Window) -> float | NA:
        steps = window.total("steps")
        return factor * window.total(name) / steps if steps else NA("no step in the block")

    return value


def _latencies() -> list[Metric]:
    found = []
    for short, name, meaning in (
        ("itl", "between_tokens", "time between tokens"),
        ("ttft", "first_token", "time to the first token"),
        ("queue", "queue", "time until admission"),
        ("e2e", "end_to_end", "time of a whole request"),
    ):
        for percentile in ("p50", "p95", "p99"):
            value = _percentile(name, percentile)
            found.append(Metric(f"{short}_{percentile}", "lower", "ms", f"{meaning}, {percentile}", value))
    return found


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *_latencies(),
        Metric("output_tok_s", "higher", "tok/s", "output tokens a second", _rate("generation_tokens")),
        Metric("prompt_tok_s", "higher", "tok/s", "prompt tokens a second", _rate("prompt_tokens")),
        Metric("requests_s", "higher", "1/s", "requests that ended a second", _rate("finished")),
        Metric("step_ms", "lower", "ms", "time of a step", _per_step("step_seconds", 1000)),
        Metric("effective_batch", "higher", "rows", "rows in a step's forward", _per_step("rows")),
    )
}


def metric_of(name: str) -> Metric:
    """Raises Failure with the nearest name."""
    if name not in METRICS:
        raise Failure(
            f"there is no metric {name!r}{did_you_mean(name, METRICS)}; there are {', '.join(METRICS)}"
        )
    return METRICS[name]


def inside(samples: Sequence[Sample], bounds: tuple[float, ...], start: float, end: float) -> Window:
    """The samples that lie wholly between two moments of the engine's clock (time.time() there)."""
    slack = 1e-3  # a sample's end is noted just after its reading was taken
    chosen = [
        each for each in samples if each.time - each.seconds >= start - slack and each.time <= end + slack
    ]
    return Window(tuple(chosen), bounds)
