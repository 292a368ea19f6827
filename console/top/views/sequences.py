"""View 2: every sequence that runs or waits, why it waits, and one of them in full."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.control import protocol as p
from ... import shown
from .. import figures
from ..lines import Line, Piece, fit, left
from ..scene import Scene
from ..table import Column, Table
from .view import NO_REQUESTS, Exported, View, not_on_a_page

Row = p.SequenceView


def speed(row: Row) -> float | None:
    """Tokens a second from the first token on; None before there are two."""
    if row.first_token is None or row.since_token is None or row.output_tokens < 2:
        return None
    seconds = row.age - row.first_token - row.since_token
    return (row.output_tokens - 1) / seconds if seconds > 0 else None


def _state(row: Row) -> Piece:
    if row.status == "running":
        return ("◐ held", "need") if row.wait_reason else ("● running", "good")
    return (f"○ {row.status}", "text")


def _why(row: Row) -> Piece:
    return (row.wait_reason or "", "need" if row.wait_reason else "dim")


_COLUMNS: tuple[Column[Row], ...] = (
    Column("id", 12, lambda row: (shown.plain(row.id), "text"), lambda row: row.id, is_right=False, grows=True),
    Column("state", 9, _state, lambda row: row.status, is_right=False),
    Column("why it waits", 12, _why, lambda row: row.wait_reason or "", is_right=False),
    Column("prompt", 6, lambda row: (figures.count(row.prompt_tokens, 6), "text"), lambda row: row.prompt_tokens),
    Column("output", 6, lambda row: (figures.count(row.output_tokens, 6), "text"), lambda row: row.output_tokens),
    Column("of", 6, lambda row: (figures.count(row.max_tokens, 6), "dim"), lambda row: row.max_tokens, least=100),
    Column("KV", 6, lambda row: (figures.count(row.computed, 6), "text"), lambda row: row.computed),
    Column("cached", 6, lambda row: (figures.count(row.cached_prefix, 6), "text"), lambda row: row.cached_prefix,
           least=100),
    Column("pages", 6, lambda row: (figures.count(row.pages, 6), "text"), lambda row: row.pages, least=120),
    Column("age", 8, lambda row: (figures.age(row.age), "text"), lambda row: row.age),
    Column("queued", 8, lambda row: (figures.age(row.queued), "text"), lambda row: row.queued, least=120),
    Column("first", 8, lambda row: (figures.age(row.first_token), "text"), lambda row: row.first_token, least=120),
    Column("last", 8, lambda row: (figures.age(row.since_token), "text"), lambda row: row.since_token, least=150),
    Column("tok/s", 6, lambda row: (figures.decimal(speed(row), 6), "text"), speed),
    Column("preempted", 9, lambda row: (str(row.preemptions), "text"), lambda row: row.preemptions, least=150),
    Column("priority", 8, lambda row: (str(row.priority), "text"), lambda row: row.priority, least=150),
    Column("number", 7, lambda row: (str(row.number), "dim"), lambda row: row.number, least=170),
)  # fmt: skip


def make_table(*, has_cursor: bool = True) -> Table[Row]:
    return Table(
        _COLUMNS,
        lambda row: row.id,
        text=lambda row: f"{row.id} {row.status} {row.wait_reason or ''}".rstrip(),
        empty="nothing runs and nothing waits",
        has_cursor=has_cursor,
    )


class Sequences(View):
    name = "Sequences"
    short = "Seq"
    hints = (
        ("filter", "filter"), ("sort_next", "sort"), ("sort_turn", "turn"), ("enter", "open"), ("cancel", "cancel"),
        ("freeze", "freeze"), ("export", "export"), ("copy", "copy"), ("quit", "quit"),
    )  # fmt: skip

    def __init__(self) -> None:
        self._table = make_table()
        self._followed: Row | None = None  # opened, as it was last seen
        self._listed = self._total = 0

    @property
    def table(self) -> Table[Row]:
        return self._table

    def wants_sequences(self, width: int) -> bool:
        return True

    def lines(self, scene: Scene, width: int, height: int) -> list[Line]:
        answer = scene.picture.sequences
        if scene.picture.page is not None:
            return not_on_a_page(NO_REQUESTS, width)
        if scene.at is not None:
            return [fit([("  the engine keeps no past sequences: End goes back to now", "dim")], width)]
        if answer is None and scene.session.replaying:
            return [fit([("  this file keeps no sequences of this moment", "dim")], width)]
        if answer is None:
            return [fit([("  asking the engine", "dim")], width)]
        self._listed, self._total = answer.listed, answer.total
        detail = self._detail(answer.sequences, width)
        table = self._table.lines(answer.sequences, width, height - len(detail))
        table.extend([fit([], width)] * (height - len(detail) - len(table)))
        return [*table, *detail]

    def _detail(self, rows: Sequence[Row], width: int) -> list[Line]:
        """The one that is followed; once it has ended, what was last known of it."""
        if self._followed is None:
            return []
        now = next((row for row in rows if row.id == self._followed.id), None)
        row = self._followed = now or self._followed
        facts = (
            ("prompt", f"{row.prompt_tokens:,} tokens, {row.cached_prefix:,} of them from the prefix cache"),
            ("output", f"{row.output_tokens:,} of at most {row.max_tokens:,} tokens"),
            ("KV", f"{row.computed:,} tokens in {row.pages:,} pages"),
            ("arrived", f"{figures.age(row.age)} ago, admitted {figures.age(row.queued)} after that"),
            ("first token", f"{figures.age(row.first_token)} after it arrived"),
            ("last token", f"{figures.age(row.since_token)} ago"),
            ("speed", f"{figures.decimal(speed(row))} tok/s from the first token on"),
            ("preempted", f"{row.preemptions} times, priority {row.priority}, number {row.number}"),
        )
        state: Piece = _state(row) if now else ("✓ ended, as it was last seen", "need")
        lines: list[Line] = [
            [("─" * width, "rule")],
            [("  ", "text"), (f"{shown.plain(row.id)}  ", "here"), state, ("  ", "text"), _why(row)],
        ]
        lines.extend([[("  " + left(name, 13), "dim"), (text, "text")] for name, text in facts])
        return [fit(line, width) for line in lines]

    def note(self) -> str:
        """Which rows are in sight, and whether there are more sequences than rows."""
        missing = f", {self._listed:,} of {self._total:,} listed" if self._listed < self._total else ""
        return self._table.position() + missing

    def click(self, x: int, y: int, width: int) -> None:
        if y == 0:
            self._table.sort_at(x, width)
        else:
            self._table.click(y - 1)

    def enter(self) -> str | None:
        """Follow the one under the cursor, or no longer."""
        chosen = self._table.chosen
        known = self._followed.id if self._followed else None
        self._followed = None if chosen is None or chosen.id == known else chosen
        return None

    def back(self) -> bool:
        was, self._followed = self._followed, None
        return was is not None

    def copied(self, scene: Scene) -> str:
        chosen = self._table.chosen
        return chosen.id if chosen else ""

    def export(self, scene: Scene) -> Exported | None:
        answer = scene.picture.sequences
        return Exported("sequences", *self._table.cells(answer.sequences)) if answer else None
