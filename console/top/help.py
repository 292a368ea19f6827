"""The help, made from the table of keys: groups side by side, on one screen from the smallest terminal on."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll

from .canvas import Canvas
from .dialogs import Dialog
from .keys import KEYS, Key
from .lines import Line, Role, beside, fit, left

_COLUMNS = 3
_GAP = 2
_FRAME = 4  # cells of border and padding, left and right; the border takes two lines as well
_NOTE = (
    "Every number is over the window at the top right, which ends now or where you went back to. -- is unknown, NA "
    "cannot be had, 0 is a measured zero."
)
_VIEWER = "This console is a viewer: keys that change the engine are left out."


class Help(Dialog[None]):
    AUTO_FOCUS = "VerticalScroll"
    BINDINGS = [Binding("question_mark,q", "leave", "back")]  # noqa: RUF012  (Textual's own form)

    def __init__(
        self, keymap: Mapping[str, str], styles: Mapping[Role, Style], *, viewer: bool, ascii_text: bool
    ) -> None:
        super().__init__()
        self._keymap, self._styles, self._viewer, self._ascii = keymap, styles, viewer, ascii_text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog help") as box:
            box.border_title = Text("Keys")
            yield Canvas(id="keys", ascii_text=self._ascii)

    def on_mount(self) -> None:
        self.query_one(Canvas).dress(self._styles)

    def on_resize(self, event: events.Resize) -> None:
        canvas, box = self.query_one(Canvas), self.query_one(VerticalScroll)
        assert box.styles.max_width is not None
        width = min(event.size.width, round(box.styles.max_width.value)) - _FRAME
        lines = page(self._keymap, width, event.size.height - 2, viewer=self._viewer)
        canvas.styles.height = len(lines)
        canvas.show(lines)


def page(keymap: Mapping[str, str], width: int, height: int, *, viewer: bool) -> list[Line]:
    """All keys explained at length where that has room, else in a word or two."""
    lines = _page(keymap, width, viewer=viewer, long=True)
    return lines if len(lines) <= height else _page(keymap, width, viewer=viewer, long=False)


def _page(keymap: Mapping[str, str], width: int, *, viewer: bool, long: bool) -> list[Line]:
    room = (width - _GAP * (_COLUMNS - 1)) // _COLUMNS
    keys = [key for key in KEYS if not (viewer and key.changes_engine)]
    columns = [(column, room) for column in _packed(_blocks(keys, keymap, room, long=long))]
    height = max(len(column) for column, _ in columns)
    notes = [_NOTE, _VIEWER] if viewer else [_NOTE]
    below: list[Line] = [[(text, "dim")] for note in notes for text in textwrap.wrap(note, width)]
    lines = beside(columns, height, [(" " * _GAP, "text")])
    if long:
        lines.append([])
    lines += below
    return [fit(line, width) for line in lines]


def _blocks(keys: list[Key], keymap: Mapping[str, str], room: int, *, long: bool) -> list[list[Line]]:
    """Each group's lines: its name, then its keys."""
    blocks: list[list[Line]] = []
    for group in dict.fromkeys(key.group for key in keys):
        block: list[Line] = [[(group, "title")]]
        members = [key for key in keys if key.group == group]
        wide = max(len(keymap.get(key.id, key.shown)) for key in members) + 1
        for key in members:
            texts = textwrap.wrap(key.explained if long else key.what, room - wide)
            block.append([(left(keymap.get(key.id, key.shown), wide), "need"), (texts[0], "text")])
            rest: list[Line] = [[(" " * wide, "text"), (text, "text")] for text in texts[1:]]
            block += rest
        blocks.append(block)
    return blocks


def _packed(blocks: list[list[Line]]) -> list[list[Line]]:
    """The blocks in columns about equally long: the longest first, each into the shortest column so far."""
    chosen: list[list[int]] = [[] for _ in range(_COLUMNS)]

    def length(column: list[int]) -> int:
        return sum(len(blocks[index]) + 1 for index in column)

    for index in sorted(range(len(blocks)), key=lambda index: -len(blocks[index])):
        min(chosen, key=length).append(index)
    columns: list[list[Line]] = []
    for column in sorted(map(sorted, chosen)):
        lines: list[Line] = []
        for index in column:
            if lines:
                lines.append([])
            lines += blocks[index]
        columns.append(lines)
    return columns
