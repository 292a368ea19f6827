"""View 3: where a step's time goes, as a tree for each kind of step, with the proof that it can be trusted."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.control import protocol as p
from ....engine.control import span_messages as s
from ... import shown
from ...span_compare import differences
from ...span_tree import Node, Number, SortKey, arranged, build_line, nodes, proof_line
from .. import figures
from ..lines import Line, Piece, Role, fit
from ..scene import Scene
from ..table import Column, Table
from .view import Exported, View, not_on_a_page

_BAR = 12  # cells


def _ms(number: Number | None) -> Piece:
    if isinstance(number, p.NA):
        return ("NA", "dim")
    return (figures.milliseconds(number), "text")


class _Tree(Table[Node]):
    """A table whose rows are a tree: siblings are sorted among each other, and folded ones hide what is under them."""

    def __init__(self, columns: Sequence[Column[Node]], keys: Sequence[SortKey], empty: str) -> None:
        super().__init__(columns, lambda node: node.key, text=lambda node: node.path, empty=empty)
        self.folded: set[str] = set()
        self._keys = keys
        self._asked: tuple[object, ...] = ()

    def arrange(self, rows: Sequence[Node]) -> list[Node]:
        """A filter shows what it matches, wherever it is in the tree and whatever is folded."""
        key = self._keys[self.sorted_by] if self.sorted_by is not None else "tree"
        asked = (key, self.descending, self.filter, frozenset(self.folded))
        if self._arranged and self._arranged[0] is rows and self._asked == asked:
            return self.shown
        # A table's order begins with the largest in a column of numbers, and a tree's with the largest always.
        turned = self.sorted_by is not None and self.descending != self.columns[self.sorted_by].is_right
        ordered = arranged(rows, key, turned=turned)
        if self.filter is not None:
            self.shown = [node for node in ordered if self.filter(node.path)]
        else:
            self.shown = [node for node in ordered if not self._hidden(node)]
        self._arranged, self._asked = (rows,), asked
        return self.shown

    def _hidden(self, node: Node) -> bool:
        parent = node.key.rpartition("/")[0]
        while parent:
            if parent in self.folded:
                return True
            parent = parent.rpartition("/")[0]
        return False

    def fold(self) -> bool:
        """Fold or unfold what is under the cursor; whether there is anything."""
        node = self.chosen
        if node is None or node.leaf:
            return False
        self.folded ^= {node.key}
        return True


class Spans(View):
    name = "Spans"
    short = "Spans"
    wants_spans = True
    hints = (
        ("enter", "fold"), ("pin", "pin"), ("freeze", "freeze"), ("sort_next", "sort"), ("filter", "filter"),
        ("window_longer", "window"), ("export", "export"), ("quit", "quit"),
    )  # fmt: skip

    def __init__(self) -> None:
        columns: tuple[tuple[SortKey, Column[Node]], ...] = (
            ("name", Column("span", 18, self._name, lambda node: node.name, is_right=False, grows=True)),
            ("calls", Column("calls", 6, lambda node: (figures.decimal(node.calls, 6), "dim"), lambda n: n.calls)),
            ("wall", Column("wall ms", 7, lambda node: _ms(node.wall), lambda node: node.wall)),
            ("device", Column("device", 7, lambda node: _ms(node.device), lambda node: node.wall)),
            ("sync", Column("sync", 7, lambda node: _ms(node.sync), lambda node: node.wall)),
            ("self", Column("self", 7, lambda node: _ms(node.host_self), lambda node: node.host_self)),
            ("wall", Column("%", 5, lambda node: (figures.percent(node.share), "text"), lambda node: node.share)),
            ("wall", Column("pinned", 8, self._change, lambda node: node.wall)),
            ("wall", Column("a row", 7, lambda node: _ms(node.per_row), lambda node: node.wall, least=100)),
            ("wall", Column("share", _BAR, _bar, lambda node: node.share, is_right=False, least=120)),
        )  # fmt: skip
        self._table = _Tree(
            [column for _, column in columns],
            [key for key, _ in columns],
            "no step was recorded in this window",
        )
        self._report: s.SpanReport | None = None  # that the rows were made of
        self._rows: list[Node] = []
        self._pinned: s.SpanReport | None = None
        self._pinned_at = 0.0
        self._pinned_walls: dict[str, float] = {}

    @property
    def table(self) -> Table[Node]:
        return self._table

    def lines(self, scene: Scene, width: int, height: int) -> list[Line]:
        report = scene.picture.spans
        if scene.picture.page is not None:
            return not_on_a_page("a metrics page has no spans", width)
        if scene.at is not None:
            return [fit([("  the engine keeps no past spans: End goes back to now", "dim")], width)]
        if not isinstance(report, s.SpanReport):
            return self._nothing(report, width)
        self._take(report)
        self._table.arrange(self._rows)
        head = self._head(report, scene, width)
        foot = self._foot(report, width)
        table = self._table.lines(self._rows, width, height - len(head) - len(foot))
        table += [fit([], width)] * (height - len(head) - len(foot) - len(table))
        return [*head, *table, *foot]

    def _nothing(self, why: p.NA | None, width: int) -> list[Line]:
        text = "asking the engine" if why is None else why.na
        lines: list[Line] = [
            [],
            [("  NA", "here"), (f"  {text}", "text")],
            [],
            [("  Spans are recorded while profile.enabled is on; profile.detail says how deep.", "dim")],
            [("  Both are live flags: view 5, or the palette. Off costs nothing.", "dim")],
        ]
        return [fit(line, width) for line in lines]

    def _take(self, report: s.SpanReport) -> None:
        if report is not self._report:
            self._report = report
            self._rows = [node for kind in report.kinds for node in nodes(kind, report)]

    def _head(self, report: s.SpanReport, scene: Scene, width: int) -> list[Line]:
        roles: dict[str, Role] = {"pass": "good", "fail": "bad", "none": "dim"}
        form = "{} {:,} steps of {:.1f} rows" if width >= 110 else "{} {:,}×{:.1f}"
        steps = " · ".join(
            form.format(kind.kind, kind.steps, kind.rows / kind.steps) for kind in report.kinds
        )
        state: Piece = ("recording", "good") if report.on else ("off, so of before", "need")
        lines: list[Line] = [
            [(f" {proof_line(report.proof, brief=True)}", roles[report.proof.verdict])],
            [(" ", "text"), state, (f" · {report.detail} · {shown.seconds(report.seconds)}", "text"),
             (f" · {steps}", "dim")],
            [(" ", "text"), *_law(report)],
        ]  # fmt: skip
        if self._pinned is not None:
            ago = shown.seconds(max(0.0, scene.now - self._pinned_at))
            builds = "; ".join(differences(self._pinned.build, report.build))
            lines.append(
                [
                    (f" pinned {ago} ago", "mark"),
                    (f"  against: {builds}" if builds else "  same build and flags", "dim"),
                ]
            )
        return [fit(line, width) for line in lines]

    def _foot(self, report: s.SpanReport, width: int) -> list[Line]:
        """Always the same number of lines, so that nothing jumps as the cursor moves."""
        node = self._table.chosen
        lines: list[Line] = [[("─" * width, "rule")]]
        if node is None:
            lines += [[], []]
        else:
            lines.append([(f"  {shown.plain(node.path)}  ", "here"), *_full(node)])
            lines.append([(f"  {_why_na(node)}", "dim")])
        lines.append([(f"  {shown.plain(build_line(report.build))}", "dim")])
        return [fit(line, width) for line in lines]

    def _name(self, node: Node) -> Piece:
        glyph = "  " if node.leaf else "▸ " if node.key in self._table.folded else "▼ "
        name = f"{node.kind} step" if not node.depth else shown.plain(node.name)
        return (" " * node.depth + glyph + name, "text" if node.depth else "title")

    def _change(self, node: Node) -> Piece:
        before = self._pinned_walls.get(node.key)
        if before is None:
            return (figures.UNKNOWN, "dim")
        change = node.wall - before
        text = figures.decimal(1000 * abs(change))
        if abs(change) < 0.005 * before or not float(text.replace(",", "")):
            return ("=", "dim")
        return (f"{'+' if change > 0 else '-'}{text}", "need" if change > 0 else "good")

    def note(self) -> str:
        return self._table.position()

    def click(self, x: int, y: int, width: int) -> None:
        y -= 3 + (self._pinned is not None)
        if y == 0:
            self._table.sort_at(x, width)
        elif y > 0:
            self._table.click(y - 1)

    def enter(self) -> str | None:
        self._table.fold()
        return None

    def back(self) -> bool:
        """Unfold everything."""
        was = bool(self._table.folded)
        self._table.folded.clear()
        return was

    def pin(self, scene: Scene) -> bool:
        report = scene.picture.spans
        if self._pinned is not None:
            self._pinned, self._pinned_walls = None, {}
            return True
        if not isinstance(report, s.SpanReport) or not report.kinds:
            return False
        self._pinned, self._pinned_at = report, scene.now
        self._pinned_walls = {node.key: node.wall for kind in report.kinds for node in nodes(kind, report)}
        return True

    def copied(self, scene: Scene) -> str:
        node = self._table.chosen
        return "" if node is None else f"{node.kind} {node.path} {1000 * node.wall:.3f} ms a step"

    def export(self, scene: Scene) -> Exported | None:
        report = scene.picture.spans
        if not isinstance(report, s.SpanReport):
            return None
        return Exported("spans", value=report)


def _law(report: s.SpanReport) -> Line:
    law = report.law
    if law is None:
        return [
            ("no law of a step: ", "dim"),
            (report.no_law.na if report.no_law else figures.UNKNOWN, "dim"),
        ]
    base, row = (f"{1000 * value:.2f} ±{1000 * error:.2f} ms" for value, error in (
        (law.base, law.base_error), (law.per_row, law.per_row_error)
    ))  # fmt: skip
    return [
        ("step = ", "dim"), (base, "text"), (" + ", "dim"), (row, "text"),
        (f" × rows · r² {law.r2:.2f} · {law.steps:,} decode steps", "dim"),
    ]  # fmt: skip


def _bar(node: Node) -> Piece:
    return ("█" * round(_BAR * min(1.0, node.share)), "fill")


def _full(node: Node) -> Line:
    parts = [
        f"wall {1000 * node.wall:,.3f} ms a step",
        f"{100 * node.share:.1f} % of it",
        f"calls {node.calls:,.4g}",
    ]
    if not isinstance(node.per_row, p.NA):
        parts.append(f"one more row {1000 * node.per_row:+,.4f} ms")
    return [(" · ".join(parts), "text")]


def _why_na(node: Node) -> str:
    named = (("device", node.device), ("sync", node.sync), ("a row", node.per_row))
    return "   ".join(f"{name} NA: {value.na}" for name, value in named if isinstance(value, p.NA))
