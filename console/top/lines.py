"""Lines of text in pieces: what every view is made of, before any terminal is involved.

A piece is text and a role; a theme turns roles into styles. A line is a list of pieces. Widths are terminal cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rich.cells import cell_len, set_cell_size

Role = Literal[
    "text", "dim", "rule", "title", "here", "good", "need", "bad", "fill", "line", "mark", "cursor", "off"
]  # fmt: skip
Piece = tuple[str, Role]
Line = list[Piece]

ELLIPSIS = "…"
CURSOR: Piece = ("", "cursor")  # at the start of a line: all of it stands on the cursor's background


def text_of(line: Iterable[Piece]) -> str:
    return "".join(text for text, _ in line)


def width_of(line: Iterable[Piece]) -> int:
    return sum(cell_len(text) for text, _ in line)


def clip(text: str, width: int) -> str:
    """`text` in at most `width` cells. What was cut off shows as an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + ELLIPSIS if width > 0 else ""


def left(text: str, width: int) -> str:
    return set_cell_size(clip(text, width), width)


def right(text: str, width: int) -> str:
    """Right-aligned. A number too long for its place is a fault of the layout: it is shown whole."""
    return text.rjust(width)


def fit(line: Line, width: int) -> Line:
    """The line in exactly `width` cells."""
    room = width
    fitted: Line = []
    for text, role in line:
        length = cell_len(text)
        if length > room:
            if room > 0:
                fitted.append((clip(text, room), role))
            return fitted
        fitted.append((text, role))
        room -= length
    if room:
        fitted.append((" " * room, "text"))
    return fitted


def spread(start: Line, end: Line, width: int) -> Line:
    """`start` at the left and `end` at the right; `end` stays whole."""
    room = max(0, width - width_of(end))
    return [*fit(start, room), *end]


def beside(columns: Sequence[tuple[list[Line], int]], height: int, between: Line) -> list[Line]:
    """Blocks next to each other, each in its width, all `height` lines high."""
    joined: list[Line] = []
    for row in range(height):
        line: Line = []
        for index, (block, width) in enumerate(columns):
            if index:
                line += between
            line += fit(block[row] if row < len(block) else [], width)
        joined.append(line)
    return joined


def rule(title: str, width: int, *, here: bool = False, tail: Line | None = None) -> Line:
    """A panel's head: its title in a line that fills the width, and `tail` at its right end."""
    tail = tail or []
    head: Line = [("── ", "rule"), (title, "here" if here else "title"), (" ", "rule")]
    rest = width - width_of(head) - width_of(tail)
    return fit([*head, ("─" * max(0, rest), "rule"), *tail], width)


_ASCII = str.maketrans(
    {
        "●": "*", "○": "o", "◐": "%", "◌": ".", "▲": "!", "▼": "v", "◆": "#", "▸": ">", "◀": "<", "▶": ">", "→": ">",
        "←": "<", "│": "|", "─": "-", "┬": "+", "┼": "+", "┴": "+", "├": "+", "┤": "+", "┊": ":", "█": "#", "▓": "+",
        "▒": "=", "░": ".", "…": "~", "·": ".", "↑": "^", "↓": "v", "×": "x", "━": "=", "²": "2", "✓": "+", "–": "-",
        "‖": "=", "±": "~",
    }
)  # fmt: skip


def ascii_only(text: str) -> str:
    """For terminals without Unicode: our own glyphs by their stand-ins, anything else by `?`."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()
