"""A real `arc serve` for the time of a measurement: that of `arc bench`, with what is read off it here."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from arc.console.bench import engines
from arc.console.bench.runner import Site


@dataclass(frozen=True, slots=True)
class Server:
    engine: engines.Started
    site: Site

    def step_seconds(self) -> dict[str, float]:
        """Seconds spent in each part of all steps so far, from /metrics."""
        with urllib.request.urlopen(f"{self.engine.url}/metrics", timeout=10) as page:
            text = page.read().decode()
        return {
            part: float(value)
            for part, value in re.findall(
                r'^arc:step_seconds_total\{[^}]*part="(\w+)"[^}]*\} (\S+)$', text, re.M
            )
        }


@contextmanager
def serve(model: Path | None, *flags: str) -> Iterator[Server]:
    """None: the carried model."""
    with engines.started(None if model is None else str(model), flags) as engine:
        yield Server(engine, engine.site(timeout=1800))
