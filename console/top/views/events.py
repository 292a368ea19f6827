"""View 6: what happened, numbered, newest at the end; a change says who made it and why."""

from __future__ import annotations

import msgspec

from ....engine.control import protocol as p
from ... import shown
from ..lines import Line, Role, clip, fit, left
from ..scene import Scene
from ..store import Entry
from ..table import Column, Table
from .view import Exported, View

_ROLES: dict[str, Role] = {
    "flags": "mark", "mark": "mark", "reverted": "mark", "refused": "need", "preempted": "need", "fault": "bad",
    "audit failed": "bad", "revert refused": "need", "drain": "need", "cancel": "need",
}  # fmt: skip


def role_of(kind: str) -> Role:
    return _ROLES.get(kind, "text")


def entry_line(entry: Entry, width: int) -> Line:
    """One line of a list in another view."""
    if isinstance(entry, p.Gap):
        return fit([(f" -- {entry.dropped} events lost ({entry.first} to {entry.last})", "need")], width)
    return fit(
        [
            (f" {shown.clock(entry.time)[-8:]} ", "dim"),
            (f"{entry.kind} ", role_of(entry.kind)),
            (shown.plain(entry.text), "text"),
        ],
        width,
    )


def _text(entry: Entry) -> str:
    if isinstance(entry, p.Gap):
        return f"{entry.dropped} events are no longer kept (numbers {entry.first} to {entry.last})"
    return shown.plain(entry.text)


def _who(entry: Entry) -> str:
    return "" if isinstance(entry, p.Gap) or entry.uid is None else f"uid {entry.uid} pid {entry.pid}"


def _kind(entry: Entry) -> str:
    return "gap" if isinstance(entry, p.Gap) else entry.kind


def _number(entry: Entry) -> int:
    return entry.last if isinstance(entry, p.Gap) else entry.number


def _time(entry: Entry) -> float | None:
    return None if isinstance(entry, p.Gap) else entry.time


def _step(entry: Entry) -> int | None:
    return None if isinstance(entry, p.Gap) else entry.step


def _clock(entry: Entry) -> str:
    return "--" if isinstance(entry, p.Gap) else shown.clock(entry.time)[-8:]


def _step_text(entry: Entry) -> str:
    step = _step(entry)
    return "--" if step is None else f"{step:,}"


_COLUMNS: tuple[Column[Entry], ...] = (
    Column("number", 7, lambda entry: (f"{_number(entry):,}", "dim"), _number),
    Column("time", 8, lambda entry: (_clock(entry), "dim"), _time),
    Column("kind", 12, lambda entry: (_kind(entry), role_of(_kind(entry))), _kind, is_right=False),
    Column("what", 20, lambda entry: (_text(entry), "text"), _text, is_right=False, grows=True),
    Column("step", 10, lambda entry: (_step_text(entry), "dim"), _step, least=100),
    Column("who", 20, lambda entry: (_who(entry), "dim"), _who, is_right=False, least=120),
)


class Events(View):
    name = "Events"
    short = "Ev"
    hints = (
        ("filter", "filter"), ("enter", "open"), ("mark", "mark"), ("copy", "copy"), ("export", "export"),
        ("sort_next", "sort"), ("freeze", "freeze"), ("quit", "quit"),
    )  # fmt: skip

    def __init__(self) -> None:
        self._table: Table[Entry] = Table(
            _COLUMNS,
            _number,
            text=lambda entry: f"{_kind(entry)} {_text(entry)} {_who(entry)}",
            empty="nothing happened yet",
            follows_end=True,
        )
        self._opened = False

    @property
    def table(self) -> Table[Entry]:
        return self._table

    def lines(self, scene: Scene, width: int, height: int) -> list[Line]:
        rows = scene.picture.events
        if scene.at is not None:
            rows = tuple(each for each in rows if isinstance(each, p.Event) and each.time <= scene.end)
        if not self._opened:
            return self._table.lines(rows, width, height)
        self._table.arrange(rows)
        detail = self._detail(width)[: height // 2]
        return [*self._table.lines(rows, width, height - len(detail)), *detail]

    def _detail(self, width: int) -> list[Line]:
        chosen = self._table.chosen
        if chosen is None:
            return []
        lines: list[Line] = [[("─" * width, "rule")], [("  " + _text(chosen), "text")]]
        if isinstance(chosen, p.Event):
            facts = [
                ("when", shown.clock(chosen.time)),
                ("step", _step_text(chosen)),
                ("who", _who(chosen) or "the engine"),
            ]
            facts += [
                (name, _data(value)) for name, value in chosen.data.items() if value not in (None, "", {})
            ]
            lines.extend([[("  " + left(clip(name, 12), 13), "dim"), (text, "text")] for name, text in facts])
        return [fit(line, width) for line in lines]

    def note(self) -> str:
        return self._table.position()

    def click(self, x: int, y: int, width: int) -> None:
        if y == 0:
            self._table.sort_at(x, width)
        else:
            self._table.click(y - 1)

    def enter(self) -> str | None:
        self._opened = not self._opened
        return None

    def back(self) -> bool:
        was, self._opened = self._opened, False
        return was

    def copied(self, scene: Scene) -> str:
        chosen = self._table.chosen
        return (
            ""
            if chosen is None
            else f"{_clock(chosen)} {_kind(chosen)} {_text(chosen)} {_who(chosen)}".strip()
        )

    def export(self, scene: Scene) -> Exported:
        return Exported("events", *self._table.cells(scene.picture.events))


def _data(value: object) -> str:
    return shown.plain(value if isinstance(value, str) else msgspec.json.encode(value).decode())
