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
        self._base = Style()  # under every piece
        self._laid: dict[Role, Style] = {}  # a piece's style over it
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

    def render_lines(self, crop: Region) -> list[Strip]:
        """Styles are added up once for all lines of a paint."""
        self._base = self.rich_style
        self._laid = self._over(self._base)
        return super().render_lines(crop)

    def _over(self, base: Style) -> dict[Role, Style]:
        return {role: base + self._styles["off" if self._faded else role] for role in self._styles}

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self._base
        if y >= len(self._lines) or not self._styles:
            return Strip.blank(width, base)
        laid = self._laid
        if self._lines[y][:1] == [CURSOR]:
            base += self._styles["cursor"]
            laid = self._over(base)
        segments = [
            Segment(ascii_only(text) if self._ascii else text, laid[role])
            for text, role in self._lines[y]
            if text
        ]
        return Strip(segments).adjust_cell_length(width, base)
