"""View 5: every flag with its source, bounds and reach; edits are collected here and applied together."""

from __future__ import annotations

import textwrap

from ....engine.control import protocol as p
from ....engine.flags import Flag, Reach, Value, parse, show
from ... import shown
from .. import figures
from ..lines import Line, Piece, Role, clip, fit, left
from ..scene import Scene
from ..store import MetricsPage
from ..table import Column, Table
from .view import Exported, View, not_on_a_page

Row = p.FlagView


def declaration(row: Row) -> Flag:
    """The engine's own declaration, so that a value is checked as that engine will: it may be another version's."""
    return Flag(
        name=row.name,
        kind=row.kind,  # pyright: ignore[reportArgumentType]  (text on the wire; an unknown kind is checked as text)
        default=row.default,
        meaning=row.meaning,
        reach=Reach(row.reach),
        unit=row.unit,
        low=row.low,
        high=row.high,
        choices=row.choices,
        words=row.words,
    )


def checked(row: Row, text: str) -> Value:
    """What `text` means for this flag. Raises FlagError."""
    return parse(declaration(row), text)


class Flags(View):
    name = "Flags"
    short = "Flags"
    hints = (
        ("edit", "edit"), ("apply", "apply"), ("drop", "drop"), ("undo", "undo"), ("unset", "unset"),
        ("experiment", "A/B"), ("profile", "profile"), ("filter", "filter"), ("export", "export"), ("quit", "quit"),
    )  # fmt: skip

    def __init__(self) -> None:
        self.edits: dict[str, Value] = {}
        self._rows: tuple[Row, ...] = ()
        self._changed_from = "the profile"
        columns: tuple[Column[Row], ...] = (
            Column("group", 9, self._group, lambda row: row.name, is_right=False),
            Column("flag", 15, lambda row: (row.name.partition(".")[2], "text"), _tail, is_right=False),
            Column("value", 16, self._value, lambda row: show(row.value)),
            Column("", 1, self._mark, lambda row: not row.changed, is_right=False),
            Column("source", 12, lambda row: (row.origin.layer, "dim"), lambda row: row.origin.layer, is_right=False),
            Column("reach", 7, lambda row: (row.reach, "dim"), lambda row: row.reach, is_right=False),
            Column("default", 10, lambda row: (show(row.default), "dim"), lambda row: show(row.default), least=80),
            Column("allowed", 18, lambda row: (row.allowed, "dim"), lambda row: row.allowed, is_right=False, least=110,
                   grows=True),
            Column("meaning", 40, lambda row: (row.meaning, "dim"), lambda row: row.meaning, is_right=False, least=150,
                   grows=True),
        )  # fmt: skip
        self._table: Table[Row] = Table(
            columns,
            lambda row: row.name,
            text=lambda row: f"{row.name} {row.origin.layer} {row.reach} {row.meaning}",
            empty="asking the engine",
        )

    @property
    def table(self) -> Table[Row]:
        return self._table

    @property
    def chosen(self) -> Row | None:
        return self._table.chosen

    def find(self, name: str) -> Row | None:
        return next((row for row in self._rows if row.name == name), None)

    def choose(self, name: str) -> None:
        """Put the cursor there, whatever the filter hid."""
        self._table.filter = None
        for index, row in enumerate(self._table.arrange(self._rows)):
            if row.name == name:
                self._table.go(index)

    def edit(self, row: Row, value: Value) -> None:
        """Collect an edit; one back to the value in force is none."""
        if value == row.value:
            self.edits.pop(row.name, None)
        else:
            self.edits[row.name] = value

    def drop(self) -> None:
        """Drop the edit under the cursor, or all where there is none."""
        chosen = self._table.chosen
        if chosen is not None and chosen.name in self.edits:
            del self.edits[chosen.name]
        else:
            self.edits.clear()

    def update(self, flags: p.Flags | None) -> None:
        """The newest flags, whether or not this view is in sight. Edits that somebody else made real are none."""
        if flags is not None and flags.flags is not self._rows:
            self._rows = flags.flags
            self._table.arrange(self._rows)  # what is chosen is the newest too, before it is drawn
            for row in self._rows:
                if self.edits.get(row.name) == row.value:
                    del self.edits[row.name]

    def lines(self, scene: Scene, width: int, height: int) -> list[Line]:
        if scene.picture.page is not None:
            return _of_a_page(scene.picture.page, width)[:height]
        self.update(scene.picture.flags)
        self._table.arrange(self._rows)
        hello = scene.picture.hello
        if hello is not None and hello.profile == figures.UNKNOWN:  # a flight recorder's file
            self._changed_from = "the start"
        detail = self._detail(width)
        table = self._table.lines(self._rows, width, height - len(detail))
        table += [fit([], width)] * (height - len(detail) - len(table))
        return [*table, *detail]

    def _group(self, row: Row) -> Piece:
        """A group's name stands once, at its first row, while the rows are in their own order."""
        group = row.name.partition(".")[0]
        if self._table.sorted_by is None:
            shown_rows = self._table.shown
            first = next((each for each in shown_rows if each.name.partition(".")[0] == group), row)
            return (group if first is row else "", "dim")
        return (group, "dim")

    def _value(self, row: Row) -> Piece:
        if row.name in self.edits:
            return (clip(f"{show(row.value)}→{show(self.edits[row.name])}", 16), "need")
        return (clip(show(row.value), 16), "text")

    def _mark(self, row: Row) -> Piece:
        if row.until is not None:
            return ("◐", "need")
        return ("◆", "need") if row.changed else (" ", "text")

    def _detail(self, width: int) -> list[Line]:
        """Always the same number of lines, so that nothing jumps as the cursor moves."""
        row = self._table.chosen
        lines: list[Line] = [[("─" * width, "rule")]]
        rows = 1 if width >= 120 else 2  # for what is a sentence
        if row is None:
            lines += [[]] * (1 + 2 * rows)
        else:
            lines += _wrapped(row.meaning, "text", width, rows, name=row.name)
            where = shown.plain(row.origin.where)
            facts = f"  {row.allowed} · default {show(row.default)} · {row.reach} · from {where}"
            lines.append([(facts, "dim")])
            lines += _wrapped(_warning(row), "need", width, rows)
        edits = ", ".join(f"{name} {self._before(name)}→{show(value)}" for name, value in self.edits.items())
        lines.append(
            [(f"  {len(self.edits)} to apply: {edits}", "need")] if edits else [("  no edits", "dim")]
        )
        return [fit(line, width) for line in lines]

    def _before(self, name: str) -> str:
        row = self.find(name)
        return show(row.value) if row else "?"

    def note(self) -> str:
        changed = sum(row.changed for row in self._rows)
        return f"◆ {changed} differ from {self._changed_from}   {self._table.position()}"

    def click(self, x: int, y: int, width: int) -> None:
        if y == 0:
            self._table.sort_at(x, width)
        else:
            self._table.click(y - 1)

    def copied(self, scene: Scene) -> str:
        chosen = self._table.chosen
        return f"{chosen.name}={show(chosen.value)}" if chosen else ""

    def export(self, scene: Scene) -> Exported:
        heads = ["flag", "value", "source", "where", "reach", "default", "allowed", "meaning"]
        rows = [
            [row.name, show(row.value), row.origin.layer, row.origin.where, row.reach, show(row.default), row.allowed,
             row.meaning]
            for row in self._table.arrange(self._rows)
        ]  # fmt: skip
        return Exported("flags", heads, rows)


def _tail(row: Row) -> str:
    return row.name.partition(".")[2]


def _warning(row: Row) -> str:
    back = ""
    if row.until is not None and row.then is not None:
        back = f"◐ goes back to {show(row.then)} at {shown.clock(row.until)}  "
    return back + (f"▲ {row.danger}" if row.danger else "")


def _wrapped(text: str, role: Role, width: int, rows: int, *, name: str = "") -> list[Line]:
    """`rows` lines, with `name` in front; what does not fit is clipped at the end of the last."""
    head = f"{name}  " if name else ""
    found = textwrap.wrap(text, width - 2, initial_indent="x" * len(head)) or [head]
    found[rows - 1 :] = [" ".join(found[rows - 1 :])] if len(found) >= rows else []
    rest: list[Line] = [[(f"  {line}", role)] for line in found[1:]]
    lines: list[Line] = [[("  ", "text"), (head, "here"), (found[0][len(head) :], role)], *rest]
    return lines + [[] for _ in range(rows - len(lines))]


def _of_a_page(page: MetricsPage, width: int) -> list[Line]:
    """No flags, but what the page says of how the cache was set up."""
    lines = not_on_a_page("a metrics page has no flags, and nothing can be changed over it", width)
    info = page.reading.info
    if info:
        lines.append(fit([("  What it says of the KV cache:", "dim")], width))
    for name, value in sorted(info.items()):
        lines.append(
            fit([("    " + left(shown.plain(name), 42), "dim"), (shown.plain(value), "text")], width)
        )
    return lines
