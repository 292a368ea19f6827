"""The one widget that draws lines, on Textual's line API: a tick that changes one line repaints one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from .lines import CURSOR, Line, Role, ascii_only


class Canvas(Widget):
    """Shows the lines that it was given last."""

    def __init__(self, *, id: str, ascii_text: bool) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._styles: Mapping[Role, Style] = {}
        self._faded = False
        self._ascii = ascii_text
        self.repainted = 0  # lines that were painted again: the work that tests count

    def dress(self, styles: Mapping[Role, Style]) -> None:
        self._styles = styles
        self.refresh()

    def show(self, lines: Sequence[Line], *, faded: bool = False) -> None:
        """Repaint what differs. `faded`: all in the colour of what is over."""
        height = max(len(lines), len(self._lines))
        every = faded != self._faded
        before, self._lines, self._faded = self._lines, list(lines), faded
        changed = [
            Region(0, y, self.size.width, 1)
            for y in range(height)
            if every or (before[y] if y < len(before) else None) != (lines[y] if y < len(lines) else None)
        ]
        if changed:
            self.repainted += len(changed)
            self.refresh(*changed)

    @property
    def text(self) -> list[str]:
        """What stands there, for tests."""
        return ["".join(text for text, _ in line) for line in self._lines]

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.rich_style
        if y >= len(self._lines) or not self._styles:
            return Strip.blank(width, base)
        off = self._styles["off"]
        if self._lines[y][:1] == [CURSOR]:
            base += self._styles["cursor"]
        segments = [
            Segment(
                ascii_only(text) if self._ascii else text, base + (off if self._faded else self._styles[role])
            )
            for text, role in self._lines[y]
            if text
        ]
        return Strip(segments).adjust_cell_length(width, base)
