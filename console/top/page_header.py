"""The header's line for an engine that is read through its metrics page: who it is, how it is, how old the page is."""

from __future__ import annotations

from .. import shown
from .lines import Line, Piece, spread, width_of
from .scene import Scene
from .store import MetricsPage


def header(scene: Scene, page: MetricsPage, width: int) -> Line:
    reading = page.reading
    end: Line = [_state(scene, page)]
    if reading.started is not None:
        end.append((f" {shown.seconds(max(0.0, page.time - reading.started))}", "text"))
    age = max(0.0, scene.now - page.time)
    end.extend([("   page ", "dim"), (f"{shown.seconds(age):>6}", "text"), (" ago", "dim")])
    end.append(("   read only ", "dim"))
    start: Line = [
        (" arc ", "here"),
        (f" {page.reading.kind}", "text"),
        (f"  {shown.plain(reading.model)}", "text"),
    ]
    place = f" · {shown.plain(page.name)}"
    if width_of(start) + len(place) + width_of(end) + 2 <= width:
        start.append((place, "dim"))
    return spread(start, [("  ", "text"), *end], width)


def _state(scene: Scene, page: MetricsPage) -> Piece:
    if scene.stale:
        return ("○ gone", "bad")
    if page.reading.gauges.get("asleep"):
        return ("◐ asleep", "need")
    return ("● answers", "good")
