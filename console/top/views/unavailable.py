"""View 4 while the engine has no such instrument: it says so and what it will show, never a zero."""

from __future__ import annotations

import textwrap

from ..lines import Line, fit
from ..scene import Scene
from .view import View


class _Unavailable(View):
    hints = (("view_next", "view"), ("quit", "quit"))
    will_show = ""

    def why(self, scene: Scene) -> str:
        raise NotImplementedError

    def lines(self, scene: Scene, width: int, height: int) -> list[Line]:
        why = self.why(scene) or "asking the engine"
        lines: list[Line] = [[], [("  NA", "here"), (f"  {why}", "text")], []]
        lines.extend([[(f"  {text}", "dim")] for text in textwrap.wrap(self.will_show, min(width, 100) - 4)])
        return [fit(line, width) for line in lines]


class Allocator(_Unavailable):
    name = "Allocator"
    short = "Alloc"
    will_show = (
        "With it: held against cap, allocations and frees per step, hit rate, evictions, and size classes."
    )

    def why(self, scene: Scene) -> str:
        return scene.picture.allocator
