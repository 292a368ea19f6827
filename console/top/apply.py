"""The dialog that changes flags: the difference, whom it meets, a dry run, a reason and a time limit."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Select, Static

from ...engine.control import protocol as p
from ...engine.flags import FLAGS, Value, show
from .. import shown
from ..exits import Failure

_WIDTH = 68  # cells of a dialog's text, in the smallest terminal
LIMITS = (("always", 0.0), ("for 5 minutes", 300.0), ("for 30 minutes", 1800.0), ("for 2 hours", 7200.0))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be changed, as it stood when the operator looked: `version` refuses what changed since."""

    title: str
    changes: Mapping[str, Value]
    rows: Mapping[str, p.FlagView]
    version: int
    running: int
    waiting: int
    reason: str = ""

    @property
    def risky(self) -> frozenset[str]:
        """The flags that are changed in the way that their danger is about. Of a flag that this console does not know,
        it does not know the way."""
        return frozenset(
            name
            for name, value in self.changes.items()
            if (row := self.rows.get(name)) is not None
            and row.danger
            and (name not in FLAGS or FLAGS[name].hurts(row.value, value))
        )

    def lines(self) -> list[str]:
        wide, risky = max(map(len, self.changes)), self.risky
        lines: list[str] = []
        for name, value in self.changes.items():
            row = self.rows.get(name)
            before = show(row.value) if row else "--"
            lines.append(f"{name.ljust(wide)}  {before} → {show(value)}   {row.reach if row else 'unknown'}")
            if row is not None and name in risky:
                lines += textwrap.wrap(
                    f"▲ {row.danger}", _WIDTH, initial_indent="  ", subsequent_indent="    "
                )
        lines += ["", f"{self.running} running and {self.waiting} waiting sequences see it at the next step."]
        return lines


Send = Callable[[p.FlagsPatch, Callable[[p.Applied | Failure], None]], None]


class Apply(ModalScreen[p.Applied | None]):
    """`send` carries a patch to the engine on a thread of its own and brings back what it said."""

    BINDINGS = [Binding("escape", "leave", "back")]  # noqa: RUF012

    def __init__(self, plan: Plan, send: Send) -> None:
        super().__init__()
        self._plan = plan
        self._send = send
        self._waits = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Text(self._plan.title)
            with VerticalScroll(classes="text"):
                yield Static(Text("\n".join(self._plan.lines())), id="difference")
            with Horizontal(id="why"):
                reason = Input(
                    self._plan.reason, placeholder="reason, for events and the audit log", id="reason"
                )
                reason.cursor_blink = False
                yield reason
                yield Select(LIMITS, value=0.0, allow_blank=False, id="limit")
            with VerticalScroll(classes="answer"):
                yield Static("", id="answer")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="no")
                yield Button("Dry run", id="try")
                yield Button("Apply", id="yes", variant="primary")

    def on_mount(self) -> None:
        # The way out has the focus where it hurts, or where what it does is not known.
        harmless = not self._plan.risky and self._plan.changes.keys() <= self._plan.rows.keys()
        self.query_one("#yes" if harmless else "#no", Button).focus()

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "no":
            self.dismiss(None)
        elif not self._waits:
            self._waits = True
            self._say("asking the engine …")
            self._send(self._patch(dry_run=event.button.id == "try"), self._answered)

    def _patch(self, *, dry_run: bool) -> p.FlagsPatch:
        limit = self.query_one("#limit", Select).value
        return p.FlagsPatch(
            changes=dict(self._plan.changes),
            reason=self.query_one("#reason", Input).value,
            expect_version=self._plan.version,
            ttl=limit if isinstance(limit, float) and limit > 0 else None,
            dry_run=dry_run,
        )

    def _answered(self, answer: p.Applied | Failure) -> None:
        self._waits = False
        if isinstance(answer, Failure):
            self._say(answer.message)
        elif answer.dry_run:
            self._say("\n".join([f"dry run: it would take effect at step {answer.step:,}", *answer.drains]))
        elif self.is_attached:
            self.dismiss(answer)

    def _say(self, text: str) -> None:
        if self.is_attached:
            self.query_one("#answer", Static).update(Text(shown_lines(text)))


def shown_lines(text: str) -> str:
    return "\n".join(shown.plain(line) for line in text.splitlines())
