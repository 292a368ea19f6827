"""What the operator does to the engine: each asks first where it hurts, and says what came of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...engine.config import profile_files
from ...engine.control import protocol as p
from ...engine.flags import FlagError, Value, show
from .. import shown
from ..exits import Failure
from ..profile_values import profile_values
from .apply import Apply, Plan
from .demo import CLIENTS, DemoLoad
from .dialogs import Choose, Confirm, Prompt
from .views.catalogue import FLAGS
from .views.flags import Flags, checked
from .views.sequences import Sequences

if TYPE_CHECKING:
    from .app import Console
    from .main_screen import Main


class Changes:
    """Edits of flags, with undo of what this console has applied; cancelling; marks."""

    def __init__(self, app: Console, main: Main) -> None:
        self._app = app
        self._main = main
        self._undo: list[dict[str, Value]] = []

    @property
    def flags(self) -> Flags:
        return self._main.flags

    def may_change(self) -> bool:
        """The engine enforces it; here it is said before anything is filled in."""
        if self._app.store.picture.page is not None:
            self._main.tell("a metrics page can only be read: nothing can be changed over it", "warning")
        elif self._app.player:
            self._main.tell("this is a replay: nothing can be changed", "warning")
        elif self._app.viewer:
            self._main.tell("read-only: this console may not change the engine", "warning")
        elif self._app.store.picture.link.state == "lost":
            self._main.tell("the engine is gone: nothing can be changed", "warning")
        else:
            return True
        return False

    def cancel(self) -> None:
        table = self._main.view.table
        if not isinstance(self._main.view, Sequences) or table is None or table.chosen is None:
            self._main.tell("choose a sequence first: view 2")
            return
        if not self.may_change():
            return
        row: p.SequenceView = table.chosen

        def cancelled(answer: p.Cancelled | Failure) -> None:
            if isinstance(answer, Failure):
                self._main.tell(answer.message, answer)
            elif answer.unknown:
                self._main.tell(f"{shown.plain(row.id)} had ended already", "warning")
            else:
                self._main.tell(f"cancelled at step {answer.step:,}; {answer.left} left")

        def answered(yes: bool | None) -> None:
            if yes:
                self._app.calls.cancel(row.id, cancelled)

        lines = [
            shown.plain(row.id),
            f"{row.status}, {row.prompt_tokens:,} prompt tokens, {row.output_tokens:,} of {row.max_tokens:,} generated",
            "Its client gets what was generated, and that it was cancelled.",
        ]
        self._app.push_screen(Confirm("Cancel this sequence?", lines, "Cancel it"), answered)

    def edit(self) -> None:
        if not isinstance(self._main.view, Flags):
            self._main.go(FLAGS)
            return
        row = self.flags.chosen
        if row is not None:
            self.edit_flag(row.name)

    def choose_flag(self, name: str) -> None:
        """From the palette: show the flag and ask for its value."""
        self._main.go(FLAGS)
        self.flags.choose(name)
        self._main.draw()
        self.edit_flag(name)

    def edit_flag(self, name: str) -> None:
        """Ask for a value in the form that the flag has: a toggle, a list, or a checked field."""
        flags = self.flags
        row = flags.find(name)
        if row is None or not self.may_change():
            return
        if row.reach != "live":
            self._main.tell(
                f"{name} takes effect at a restart only: set it in arc.toml and start anew", "warning"
            )
            return
        now = flags.edits.get(name, row.value)

        def edited(text: str | None) -> None:
            if text is not None:
                flags.edit(row, checked(row, text))
                self._main.draw()

        about = [row.meaning, f"{row.allowed}; default {show(row.default)}; now {show(row.value)}"]
        if row.danger:
            about.append(f"▲ {row.danger}")
        if isinstance(now, bool):
            flags.edit(row, not now)
            self._main.draw()
        elif row.choices:
            options = [(str(choice), str(choice)) for choice in (*row.words, *row.choices)]
            self._app.push_screen(Choose(name, about, options, str(now)), edited)
        else:
            self._app.push_screen(
                Prompt(name, about, show(now), lambda text: _wrong_value(row, text)), edited
            )

    def drop(self) -> None:
        self.flags.drop()
        self._main.draw()

    def apply(self) -> None:
        if not self.flags.edits:
            self._main.tell("no edits: e edits the flag under the cursor")
        elif self.may_change():
            self._propose(f"Apply {_changes(len(self.flags.edits))}", self.flags.edits)

    def _propose(
        self, what: str, changes: dict[str, Value], *, undoes: bool = False, reason: str = ""
    ) -> None:
        picture = self._app.store.picture
        if picture.flags is None or picture.snapshot is None or picture.hello is None:
            self._main.tell("the engine has not said its flags yet")
            return
        plan = Plan(
            title=f"{what} to {picture.hello.name}",
            changes=dict(changes),
            rows={row.name: row for row in picture.flags.flags},
            version=picture.flags.version,
            running=picture.snapshot.running,
            waiting=picture.snapshot.waiting,
            reason=reason,
        )

        def applied(answer: p.Applied | None) -> None:
            if answer is not None:
                self._applied(answer, undoes=undoes)

        self._app.push_screen(Apply(plan, self._app.calls.patch), applied)

    def _applied(self, answer: p.Applied, *, undoes: bool) -> None:
        for name in answer.changes:
            self.flags.edits.pop(name, None)
        changed = {name: change.old for name, change in answer.changes.items() if change.old != change.new}
        if undoes:
            self._undo.pop()
        elif changed:
            self._undo.append(changed)
        until = "" if answer.until is None else f"; the engine takes it back at {shown.clock(answer.until)}"
        self._main.tell(
            f"from step {answer.step:,} on{until}" + "".join(f"\n{drain}" for drain in answer.drains)
        )
        self._main.draw()

    def undo(self) -> None:
        if not self._undo:
            self._main.tell("this console has changed nothing that could be undone")
        elif self.may_change():
            self._propose(
                "Undo: apply " + _changes(len(self._undo[-1])), self._undo[-1], undoes=True, reason="undo"
            )

    def unset(self) -> None:
        row = self.flags.chosen
        if not isinstance(self._main.view, Flags) or row is None or not self.may_change():
            return
        if row.origin.layer != "runtime":
            self._main.tell(f"{row.name} has no runtime value: it is from {row.origin.layer}")
            return

        def unset(answer: p.Applied | Failure) -> None:
            if isinstance(answer, Failure):
                self._main.tell(answer.message, answer)
            else:
                self._applied(answer, undoes=False)

        def answered(yes: bool | None) -> None:
            if yes:
                self._app.calls.unset(row.name, unset)

        lines = [f"now {show(row.value)}, set at runtime", "It goes back to the value of the layer below."]
        self._app.push_screen(Confirm(f"Unset {row.name}?", lines, "Unset", "Leave it"), answered)

    def profile(self) -> None:

        def chosen(name: str | None) -> None:
            if name is None:
                return
            try:
                wanted = profile_values(name)
            except Failure as failure:
                self._main.tell(failure.message, failure)
                return
            rows = [self.flags.find(flag) for flag in wanted]
            live = {
                row.name: wanted[row.name]
                for row in rows
                if row and row.reach == "live" and row.value != wanted[row.name]
            }
            restart = sum(1 for row in rows if row and row.reach != "live" and row.value != wanted[row.name])
            if restart:
                self._main.tell(
                    f"{restart} flags of {name} need a restart: `arc apply {name}` lists them", "warning"
                )
            if live:
                self._propose(f"Profile {name}: apply {_changes(len(live))}", live, reason=f"profile {name}")
            else:
                self._main.tell(f"every live flag has the value of {name} already")

        if self.may_change():
            names = sorted(profile_files(Path.cwd()))
            self._app.push_screen(Choose("Profile", [], [(name, name) for name in names]), chosen)

    def mark(self) -> None:
        def marked(answer: p.Marked | Failure) -> None:
            self._main.tell("marked" if isinstance(answer, p.Marked) else answer.message, answer)

        def named(text: str | None) -> None:
            if text:
                self._app.calls.mark(text, marked)

        if self.may_change():
            question = Prompt("Mark", ["A named moment, in events and on every plot."], "", _wrong_line)
            self._app.push_screen(question, named)

    def demo(self) -> None:
        """Start the demo load, or stop it."""
        app, main = self._app, self._main
        if app.demo is not None and app.demo.running:
            app.demo.stop()
            main.tell("the demo load is stopped; the engine cancels what it had asked")
            main.draw()
            return
        if not self.may_change():
            return
        hello, snapshot = app.store.picture.hello, app.store.picture.snapshot
        if hello is None or snapshot is None:
            main.tell("not attached yet", "warning")
        elif isinstance(hello.api, p.NA):
            main.tell(f"no demo load: {hello.api.na}", "warning")
        elif snapshot.state == "draining":
            main.tell("no demo load: the engine is draining and takes no new work", "warning")
        else:
            key = os.environ.get("ARC_API_KEY", "")
            app.demo = DemoLoad(hello.api, key, hello.max_model_len, self._demo_refused)
            app.demo.start()
            main.tell(
                f"a demo load of {CLIENTS} clients runs until L is pressed again or the console is left"
            )
            main.draw()

    def _demo_refused(self, why: str) -> None:
        """On a thread of the load's."""
        self._app.back(lambda: self._main.tell(f"the demo load has ended: {shown.plain(why)}", "error"))

    def trim(self) -> None:
        def trimmed(answer: p.Trimmed | Failure) -> None:
            text = shown.trimmed(answer) if isinstance(answer, p.Trimmed) else answer.message
            self._main.tell(text, answer)

        if self.may_change():
            self._app.calls.trim(trimmed)


def _changes(count: int) -> str:
    return f"{count} change" + ("s" if count != 1 else "")


def _wrong_line(text: str) -> str:
    if not text.strip():
        return "write something"
    return "" if len(text) <= 500 and text.isprintable() else "one line of at most 500 printable characters"


def _wrong_value(row: p.FlagView, text: str) -> str:
    try:
        checked(row, text)
    except FlagError as error:
        return error.message
    return ""
