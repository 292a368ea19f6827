"""View 3 while the engine has no such instrument: it says so and what it will show, never a zero."""

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


class Spans(_Unavailable):
    name = "Spans"
    short = "Spans"
    will_show = (
        "With it: the tree of spans of a step, decode and prompt apart; for each its calls, wall, device, sync and "
        "host-self time and its share of the step; and the proof that the numbers can be trusted."
    )

    def why(self, scene: Scene) -> str:
        return scene.picture.spans
