"""View 1: the whole engine at a glance. Panels in bands; what is looked at most stands at the top left."""

from __future__ import annotations

from dataclasses import dataclass

from ..lines import Line, beside, fit, rule
from ..scene import Scene
from . import panels
from .view import Exported, View


@dataclass(frozen=True, slots=True)
class Band:
    """Panels side by side. `least` lines with its head; `share` of the lines that are left over."""

    names: tuple[str, ...]
    least: int
    share: int = 0


_PANELS: dict[str, tuple[str, panels.Panel]] = {
    "batch": ("Batch", panels.batch),
    "rate": ("Rate", panels.rate),
    "latency": ("Latency", panels.latency),
    "between": ("Between tokens", panels.between_tokens),
    "cache": ("KV and prefix", panels.cache),
    "speculation": ("Speculation", panels.speculation),
    "allocator": ("Allocator", panels.allocator),
    "host": ("Host", panels.host),
    "oldest": ("Oldest sequences", panels.oldest),
    "events": ("Events", panels.events),
}

TWO_COLUMNS = (
    Band(("batch", "rate"), 9, 3),
    Band(("latency", "cache"), 5, 3),
    Band(("speculation", "allocator"), 2),
    Band(("host", "events"), 5, 2),
)
THREE_COLUMNS = (
    Band(("batch", "rate", "cache"), 9, 3),
    Band(("latency", "between", "host"), 5, 3),
    Band(("speculation", "allocator"), 2),
    Band(("oldest", "events"), 5, 3),
)
WIDE = 160  # cells from which three columns stand side by side

DRILLS = {
    "batch": "Sequences",
    "oldest": "Sequences",
    "rate": "Sequences",
    "allocator": "Allocator",
    "events": "Events",
    "cache": "Sequences",
}


class Overview(View):
    name = "Overview"
    short = "Over"
    hints = (
        ("view_next", "view"), ("window_longer", "window"), ("freeze", "freeze"), ("history_back", "history"),
        ("mark", "mark"), ("edit", "flags"), ("sort_next", "panel"), ("maximise", "maximise"), ("palette", "palette"),
        ("quit", "quit"),
    )  # fmt: skip

    def __init__(self) -> None:
        self._panel = 0
        self._alone = False  # the chosen panel has the whole place
        self._places: list[tuple[str, int, int, int, int]] = []  # panel, left, top, right, bottom

    def wants_sequences(self, width: int) -> bool:
        return width >= WIDE

    def lines(self, scene: Scene, width: int, height: int) -> list[Line]:
        bands = THREE_COLUMNS if width >= WIDE else TWO_COLUMNS
        self._order = [name for band in bands for name in band.names]
        self._panel %= len(self._order)
        if self._alone:
            self._places = [(self._order[self._panel], 0, 0, width, height)]
            return [fit(line, width) for line in self._draw(self._order[self._panel], scene, width, height)]
        lines: list[Line] = []
        self._places = []
        for band, tall in zip(bands, _heights(bands, height), strict=True):
            widths = _split(width, len(band.names))
            across = 0
            for name, wide in zip(band.names, widths, strict=True):
                self._places.append((name, across, len(lines), across + wide, len(lines) + tall))
                across += wide + 1
            blocks = [
                (self._draw(name, scene, wide, tall), wide)
                for name, wide in zip(band.names, widths, strict=True)
            ]
            lines += beside(blocks, tall, [("│", "rule")])
        return lines

    def _draw(self, name: str, scene: Scene, width: int, height: int) -> list[Line]:
        title, panel = _PANELS[name]
        tail: Line = []
        if name == "latency":
            tail = panels.latency_tail(width)
        elif name == "cache":
            tail = panels.cache_tail(scene)
        elif name == "allocator":
            tail = panels.allocator_tail(scene)
        if scene.picture.page is not None:
            from . import page_panels

            panel = page_panels.PANELS.get(name, panel)
            tail = page_panels.cache_tail(scene, width) if name == "cache" else tail
        head = rule(title, width, here=name == self.panel, tail=tail)
        return [head, *panel(scene, width, height - 1)[: height - 1]]

    @property
    def panel(self) -> str:
        return self._order[self._panel]

    def step(self, by: int, width: int) -> None:
        self._panel += by

    def click(self, x: int, y: int, width: int) -> None:
        for name, left, top, right, bottom in self._places:
            if left <= x < right and top <= y < bottom:
                self._panel = self._order.index(name)

    def enter(self) -> str | None:
        return DRILLS.get(self.panel)

    def maximise(self) -> bool:
        self._alone = not self._alone
        return True

    def back(self) -> bool:
        was, self._alone = self._alone, False
        return was

    def export(self, scene: Scene) -> Exported | None:
        totals, gauges = scene.totals, scene.gauges
        return Exported(
            "overview", value={"window": totals, "now": gauges, "step_model": scene.model, "end": scene.end}
        )


def _heights(bands: tuple[Band, ...], height: int) -> list[int]:
    """Each band's lines: the least, and its share of the rest."""
    rest = max(0, height - sum(band.least for band in bands))
    shares = sum(band.share for band in bands)
    heights = [band.least + rest * band.share // shares for band in bands]
    heights[0] += max(0, height - sum(heights)) if rest else 0
    return heights


def _split(width: int, count: int) -> list[int]:
    """Widths of `count` blocks with one cell between them."""
    room = width - (count - 1)
    return [room // count + (1 if index < room % count else 0) for index in range(count)]
