"""The fleet: one line an engine, the odd one out by name."""

from __future__ import annotations

from ... import shown
from .. import figures
from ..fleet import Fleet, Member, Row
from ..lines import Line, Piece, Role, clip, fit, spread
from ..scene import Scene
from ..table import Column, Table
from .view import Exported, View

_STATES: dict[str, tuple[str, Role]] = {
    "serving": ("●", "good"), "answers": ("●", "good"), "paused": ("◐", "need"), "draining": ("◐", "need"),
    "asleep": ("◐", "need"), "stalled": ("▲", "bad"), "gone": ("○", "bad"), "no answer": ("○", "bad"),
    "attaching": ("◌", "dim"),
}  # fmt: skip
_MOST_ODD = 3  # named over the table; the rest is counted


def _state(row: Row) -> Piece:
    if row.restarted and not row.gone:
        return ("▲ restarted", "need")
    glyph, role = _STATES[row.state]
    return (f"{glyph} {row.state}", role)


def _number(row: Row, text: str, quantity: str = "") -> Piece:
    """Marked where it is the odd one; of an engine that is gone it is over."""
    if row.gone:
        return (text, "off")
    return (f"◆{text}", "need") if quantity and row.is_odd(quantity) else (text, "text")


def _said(row: Row) -> Piece:
    if row.gone:
        return (shown.plain(row.why), "dim")
    return ("; ".join(map(str, row.odd)), "need")


_COLUMNS: tuple[Column[Row], ...] = (
    Column("engine", 16, lambda row: (shown.plain(row.member.name), "off" if row.gone else "text"),
           lambda row: row.member.name, is_right=False, grows=True),
    Column("state", 11, _state, lambda row: row.state, is_right=False),
    Column("kind", 6, lambda row: (row.kind, "dim"), lambda row: row.kind, is_right=False, least=100),
    Column("model", 16, lambda row: (clip(shown.plain(row.model), 16), "dim"), lambda row: row.model, is_right=False,
           least=150),
    Column("running", 7, lambda row: _number(row, figures.count(row.running, 7)), lambda row: row.running),
    Column("waiting", 8, lambda row: _number(row, figures.count(row.waiting, 7), "waiting"), lambda row: row.waiting),
    Column("KV %", 6, lambda row: _number(row, figures.percent(row.kv), "KV"), lambda row: row.kv),
    Column("tok/s", 7, lambda row: _number(row, figures.decimal(row.output, 6), "output"), lambda row: row.output),
    Column("prompt/s", 8, lambda row: _number(row, figures.decimal(row.prompt, 7)), lambda row: row.prompt, least=120),
    Column("TTFT p95", 8, lambda row: _number(row, figures.milliseconds(row.first_token), "first token p95"),
           lambda row: row.first_token),
    Column("ITL p95", 8, lambda row: _number(row, figures.milliseconds(row.between_tokens), "between tokens p95"),
           lambda row: row.between_tokens, least=100),
    Column("odd one out, or why it is gone", 30, _said, lambda row: str(_said(row)[0]), is_right=False, least=150,
           grows=True),
)  # fmt: skip


def make_table(*, has_cursor: bool = False) -> Table[Row]:
    return Table(
        _COLUMNS,
        lambda row: row.key,
        text=lambda row: f"{row.member.name} {row.kind} {row.model} {_state(row)[0]} {_said(row)[0]}",
        empty="no engine runs here yet: one that starts appears by itself",
        has_cursor=has_cursor,
    )


class FleetView(View):
    name = "Fleet"
    short = "Fleet"
    hints = (
        ("enter", "open"), ("sort_next", "sort"), ("sort_turn", "turn"), ("filter", "filter"),
        ("window_longer", "window"), ("freeze", "freeze"), ("export", "export"), ("copy", "copy"), ("help", "help"),
        ("quit", "quit"),
    )  # fmt: skip

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.rows: list[Row] = []
        self._table = make_table(has_cursor=True)

    @property
    def table(self) -> Table[Row]:
        return self._table

    @property
    def chosen(self) -> Member | None:
        return self._table.chosen.member if self._table.chosen else None

    def update(self, scene: Scene) -> None:
        """The rows of now, unless the view is frozen."""
        if not (scene.frozen and self.rows):
            self.rows = self._fleet.rows(scene.span, scene.now)

    def lines(self, scene: Scene, width: int, height: int) -> list[Line]:
        return self._table.lines(self.rows, width, height)

    def note(self) -> str:
        return self._table.position()

    def click(self, x: int, y: int, width: int) -> None:
        if y == 0:
            self._table.sort_at(x, width)
        else:
            self._table.click(y - 1)

    def copied(self, scene: Scene) -> str:
        return self.chosen.where if self.chosen else ""

    def export(self, scene: Scene) -> Exported:
        return Exported("fleet", *self._table.cells(self.rows))


def header(rows: list[Row], width: int) -> Line:
    here = [row for row in rows if not row.gone]
    gone = len(rows) - len(here)
    line: Line = [(" arc ", "here"), (f" fleet of {len(rows)}", "text"), (f"  ● {len(here)} answer", "good")]
    if gone:
        line.extend([("  ", "text"), (f"○ {gone} gone", "bad")])
    end: Line = []
    for label, value in (
        ("running", _sum([row.running for row in here])),
        ("waiting", _sum([row.waiting for row in here])),
        ("tok/s", _sum([row.output for row in here])),
    ):
        end.extend([(f"  {label} ", "dim"), (figures.count(value), "text")])
    return spread(line, [*end, (" ", "text")], width)


def _sum(values: list[float | None]) -> float | None:
    """Of what is known of all: with a part unknown the whole is."""
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def status(scene: Scene, rows: list[Row], hz: float, width: int) -> Line:
    """The second line: what is compared, and over which window."""
    shortest = min((row.seconds for row in rows if not row.gone), default=0.0)
    seen = f"{shortest:.0f} of " if shortest < 0.95 * scene.span else ""
    mode: Piece = ("◌ frozen", "need") if scene.frozen else (f"live {hz:g} Hz" if hz else "once", "dim")
    end: Line = [mode, (f"  {seen}{figures.span(scene.span)} window", "dim"), ("  ? help ", "dim")]
    return spread([(" [Fleet] ", "here"), ("Enter opens, Esc comes back", "dim")], end, width)


def alarms(rows: list[Row], width: int) -> list[Line]:
    """Who is gone, and who is the odd one out, by name."""
    lines: list[Line] = []
    gone = [row for row in rows if row.gone and row.state != "attaching"]
    for row in gone[:_MOST_ODD]:
        name = shown.plain(row.member.name)
        lines.append([(f" ○ {name} {row.state} ", "bad"), (f"  {shown.plain(row.why)}", "text")])
    odd = [row for row in rows if row.odd]
    for row in odd[:_MOST_ODD]:
        said = "; ".join(map(str, row.odd))
        lines.append([(f" ◆ odd one out: {shown.plain(row.member.name)} ", "need"), (f"  {said}", "text")])
    more = len(gone[_MOST_ODD:]) + len(odd[_MOST_ODD:])
    if more:
        lines.append([(f"   and {more} more, see the table", "dim")])
    return [fit(line, width) for line in lines]
