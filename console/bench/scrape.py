"""What the engine counted during a pass, read off its cumulative counters at both ends: one window for all numbers."""

from __future__ import annotations

from pathlib import Path

from ...engine.control import protocol as p
from ...engine.control.protocol import NA
from ..client import Client
from .result import Engine


def life(path: Path) -> p.Interval:
    """Over a connection of its own: the engine closes those that ask nothing for a minute."""
    with Client(path) as control:
        return control.get("/v1/snapshot", p.Snapshot, window=1.0).life


def between(start: p.Interval, end: p.Interval) -> Engine | NA:
    """NA when the counters began anew in between. Means over no steps are NA, never 0."""
    seconds, steps = end.seconds - start.seconds, end.steps - start.steps
    if seconds <= 0 or steps < 0:
        return NA("the engine's shown counters were reset, or it was started anew, during the pass")
    none = NA(f"no step ran in these {seconds:.1f} s: nothing was logged")
    return Engine(
        seconds=seconds,
        steps=steps,
        effective_batch=(end.rows - start.rows) / steps if steps else none,
        admitted=(end.admitted - start.admitted) / steps if steps else none,
        step_ms=1000 * (end.step_seconds - start.step_seconds) / steps if steps else none,
        output_rate=(end.generation_tokens - start.generation_tokens) / seconds if steps else none,
        preemptions=end.preemptions - start.preemptions,
        recomputed_tokens=end.recomputed_tokens - start.recomputed_tokens,
    )
