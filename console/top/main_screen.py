"""The console's main screen: the views' home, its one tick, and what the keys do."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Input

from ...engine.control import protocol as p
from ...engine.flags import FlagError, Value, show
from .. import shown
from ..exits import Failure
from . import header
from .apply import Apply, Plan
from .canvas import Canvas
from .dialogs import Choose, Confirm, Page, Prompt
from .export import write
from .keys import BY_ID, KEYS
from .lines import Line, fit
from .scene import SPANS, Scene
from .store import Picture
from .table import parse_filter
from .views.catalogue import FLAGS, SEQUENCES, make_views
from .views.flags import Flags, checked
from .views.sequences import Sequences
from .views.view import View

if TYPE_CHECKING:
    from .app import Console

LEAST = (80, 24)
_TOASTS = 3  # at one tick; more are counted
_TOLD = {"flags", "reverted", "revert refused", "drain", "cancel", "fault", "reset", "mark", "audit failed"}


class Main(Screen[None]):
    BINDINGS = [  # noqa: RUF012  (Textual's own form)
        Binding(key.keys, key.id, key.what, id=key.id, show=False, key_display=key.shown) for key in KEYS
    ]

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._owner = console
        self._views: tuple[View, ...] = make_views()
        self._current = console.options.view
        self._span = 1  # index into SPANS
        self._at: float | None = None
        self._frozen: Picture | None = None
        self._scene: Scene | None = None
        self._seen: int | None = None  # number of the newest event that toasts were made for
        self._undo: list[dict[str, Value]] = []
        self._drawn: tuple[int, float] = (-1, 0.0)
        self.ticks = 0

    # -- drawing --------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        plain = self._owner.ascii_text
        yield Canvas(id="head", ascii_text=plain)
        yield Canvas(id="alarms", ascii_text=plain)
        yield Canvas(id="body", ascii_text=plain)
        yield Canvas(id="foot", ascii_text=plain)
        field = Input(id="filter", placeholder="regular expression; ! in front shows the rest")
        field.cursor_blink = False
        field.can_focus = False  # until `/`: a hidden field must not take the focus
        yield field

    def on_mount(self) -> None:
        self.dress()
        self._owner.wants_sequences(isinstance(self.view, Sequences))
        self._tick()

    def dress(self) -> None:
        for canvas in self.query(Canvas):
            canvas.dress(self._owner.styles_by_role)

    def _tick(self) -> None:
        """Armed again after its own work, so that slow ticks never pile up."""
        self.ticks += 1
        self.draw(only_if_new=True)
        self.set_timer(1 / self._owner.hz, self._tick)

    def draw(self, *, only_if_new: bool = False) -> None:
        """One picture, in one batch. Without news the clock alone is drawn, once a second."""
        now = self._owner.clock()
        newest = self._owner.store.picture
        self._toast(newest)
        picture = self._frozen or newest
        if only_if_new and picture.number == self._drawn[0] and now - self._drawn[1] < 1.0:
            return
        self._drawn = (picture.number, now)
        if self._frozen is not None:
            now = picture.link.heard or now
        scene = Scene(
            picture, SPANS[self._span], self._at, now, self._owner.ascii_text, self._frozen is not None
        ).carrying(self._scene)
        self._scene = scene
        width, height = self.size
        with self.app.batch_update():
            if width < LEAST[0] or height < LEAST[1]:
                self._too_small(width, height)
            else:
                self._draw(scene, width, height)

    def _draw(self, scene: Scene, width: int, height: int) -> None:
        alarms = [fit(line, width) for line in header.alarms(scene)]
        names = [(view.name, view.short) for view in self._views]
        faded = scene.stale
        self._canvas("head").show(
            [header.header(scene, width), header.tabs(names, self._current, scene, self._owner.hz, width)]
        )
        self._height_of("head", 2)
        self._height_of("alarms", len(alarms))
        self._canvas("alarms").show(alarms)
        self._height_of("foot", 1)
        self._canvas("body").show(self.view.lines(scene, width, height - 3 - len(alarms)), faded=faded)
        self._canvas("foot").show([header.footer(self._hints(), self._note(), width)])

    def _too_small(self, width: int, height: int) -> None:
        for name in ("head", "alarms", "foot"):
            self._height_of(name, 0)
        text = f"arc top needs {LEAST[0]}x{LEAST[1]}, this terminal is {width}x{height}"
        body: list[Line] = [[(text[:width], "need")]]
        snapshot = self._owner.store.picture.snapshot
        if snapshot is not None:
            body.append([(f"running {snapshot.running}  waiting {snapshot.waiting}"[:width], "text")])
        self._canvas("body").show(body)

    def _height_of(self, name: str, height: int) -> None:
        """Sizes change only with what is shown, never in an ordinary tick."""
        canvas = self._canvas(name)
        if canvas.display != (height > 0) or (height and canvas.styles.height != height):
            canvas.display = height > 0
            canvas.styles.height = max(1, height)

    def _canvas(self, name: str) -> Canvas:
        return self.query_one(f"#{name}", Canvas)

    def on_resize(self) -> None:
        self.draw()

    def _hints(self) -> list[tuple[str, str]]:
        viewer, chosen = self._owner.viewer, self._owner.keymap
        return [
            (chosen.get(name, BY_ID[name].shown), word)
            for name, word in self.view.hints
            if not (viewer and BY_ID[name].changes_engine)
        ]

    def _note(self) -> Line:
        if self.view.filter is not None:
            return [(f"/{self.view.filter.text}/ ", "need"), (self.view.note(), "dim")]
        return [(self.view.note(), "dim")]

    @property
    def view(self) -> View:
        return self._views[self._current]

    @property
    def flags(self) -> Flags:
        """The Flags view, with the newest flags whether or not it was drawn."""
        view = self._views[FLAGS]
        assert isinstance(view, Flags)
        view.update(self._owner.store.picture.flags)
        return view

    # -- toasts ---------------------------------------------------------------------------------------------------

    def _toast(self, picture: Picture) -> None:
        """What others did, and what went wrong, since the last tick. What stood there at the start is no news."""
        if picture.hello is None:
            return
        known = [entry for entry in picture.events if isinstance(entry, p.Event)]
        last = known[-1].number if known else 0
        if self._seen is None or last < self._seen:  # the start, or another life of the engine
            self._seen = last
        fresh = [event for event in known[-100:] if event.number > self._seen and event.kind in _TOLD]
        self._seen = last
        told = [event for event in fresh if event.pid != os.getpid()]
        for event in told[:_TOASTS]:
            who = "" if event.uid is None else f"  by uid {event.uid} pid {event.pid}"
            severity = "error" if event.kind in ("fault", "audit failed") else "information"
            self.notify(f"{shown.plain(event.text)}{who}", title=event.kind, severity=severity, markup=False)
        if len(told) > _TOASTS:
            self.notify(f"and {len(told) - _TOASTS} more: see Events", markup=False)

    # -- views ----------------------------------------------------------------------------------------------------

    def _go(self, index: int) -> None:
        self._current = index % len(self._views)
        self._owner.wants_sequences(isinstance(self.view, Sequences))
        self.draw()

    def action_view_1(self) -> None:
        self._go(0)

    def action_view_2(self) -> None:
        self._go(1)

    def action_view_3(self) -> None:
        self._go(2)

    def action_view_4(self) -> None:
        self._go(3)

    def action_view_5(self) -> None:
        self._go(4)

    def action_view_6(self) -> None:
        self._go(5)

    def action_view_next(self) -> None:
        self._go(self._current + 1)

    def action_view_previous(self) -> None:
        self._go(self._current - 1)

    def action_enter(self) -> None:
        if isinstance(self.view, Flags):
            self.action_edit()
            return
        target = self.view.enter()
        if target is not None:
            self._go([view.name for view in self._views].index(target))
        self.draw()

    def action_back(self) -> None:
        """Out of the innermost thing: a detail, a filter, the freeze, the past."""
        table = self.view.table
        if self.view.back():
            pass
        elif table is not None and table.filter is not None:
            table.filter = None
        elif self._frozen is not None:
            self._frozen = None
        else:
            self._at = None
        self.draw()

    def action_maximise(self) -> None:
        if not self.view.maximise():
            self._tell("this view has the whole place already")
        self.draw()

    def action_help(self) -> None:
        self.app.push_screen(Page("Keys", self._help()))

    def _help(self) -> Text:
        text = Text()
        for group in dict.fromkeys(key.group for key in KEYS):
            text.append(f"{group}\n", "bold")
            for key in KEYS:
                if key.group == group:
                    refused = "  (not for a viewer)" if key.changes_engine and self._owner.viewer else ""
                    text.append(f"  {self._owner.keymap.get(key.id, key.shown):<8}", "bold")
                    text.append(f" {key.what}{refused}\n")
        text.append("\nEvery number is measured over the window named at the top right, which ends now or where you\n"
                    "went back to. -- is unknown, NA cannot be had, 0 is a real zero.")  # fmt: skip
        return text

    def action_palette(self) -> None:
        self.app.action_command_palette()

    def action_quit(self) -> None:
        self.app.exit()

    # -- tables ---------------------------------------------------------------------------------------------------

    def action_up(self) -> None:
        self._move(-1)

    def action_down(self) -> None:
        self._move(1)

    def _move(self, by: int) -> None:
        if self.view.table:
            self.view.table.move(by)
        else:
            self.view.step(by, self.size.width)
        self.draw()

    def action_page_up(self) -> None:
        if self.view.table:
            self.view.table.page(-1)
        self.draw()

    def action_page_down(self) -> None:
        if self.view.table:
            self.view.table.page(1)
        self.draw()

    def action_first(self) -> None:
        if self.view.table:
            self.view.table.go(0)
        self.draw()

    def action_last(self) -> None:
        if self._at is not None:
            self._at = None
        elif self.view.table:
            self.view.table.go(len(self.view.table.shown) - 1)
        self.draw()

    def action_sort_next(self) -> None:
        self.view.step(1, self.size.width)
        self.draw()

    def action_sort_previous(self) -> None:
        self.view.step(-1, self.size.width)
        self.draw()

    def action_sort_turn(self) -> None:
        if self.view.table:
            self.view.table.descending = not self.view.table.descending
        self.draw()

    def action_filter(self) -> None:
        if self.view.table is None:
            self._tell("this view has no table to filter")
            return
        field = self.query_one("#filter", Input)
        field.value = self.view.filter.text if self.view.filter else ""
        field.display = field.can_focus = True
        self._canvas("foot").display = False
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        table = self.view.table
        if event.input.id != "filter" or table is None or not event.input.display:
            return
        try:
            table.filter = parse_filter(event.value)
            event.input.border_subtitle = ""
            event.input.remove_class("wrong")
        except re.error:  # while it is being typed: the last right one stands
            event.input.add_class("wrong")
        self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            self._close_filter()
            if event.input.has_class("wrong"):
                self._tell(f"/{event.value}/ is no regular expression", "error")

    def _close_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = field.can_focus = False
        self._canvas("foot").display = True
        self.set_focus(None)
        self.draw()

    def on_key(self, event: events.Key) -> None:
        """Esc in the filter's field drops the filter."""
        field = self.query_one("#filter", Input)
        if field.has_focus and event.key == "escape":
            event.stop()
            event.prevent_default()
            if self.view.table:
                self.view.table.filter = None
            self._close_filter()

    # -- the mouse ------------------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        x, y = int(event.screen_x), int(event.screen_y)
        names = [(view.name, view.short) for view in self._views]
        if y == 1:
            tab = header.tab_at(names, self._current, self.size.width, x)
            if tab is not None:
                self._go(tab)
            return
        body = self._canvas("body").region
        if body.contains(x, y):
            self.view.click(x, y - body.y, self.size.width)
            self.draw()

    def on_mouse_scroll_down(self) -> None:
        self._scroll(3)

    def on_mouse_scroll_up(self) -> None:
        self._scroll(-3)

    def _scroll(self, by: int) -> None:
        if self.view.table:
            self.view.table.move(by)
            self.draw()

    # -- time -----------------------------------------------------------------------------------------------------

    def action_freeze(self) -> None:
        self._frozen = self._owner.store.picture if self._frozen is None else None
        self.draw()

    def action_history_back(self) -> None:
        self._travel(-1)

    def action_history_forward(self) -> None:
        self._travel(1)

    def _travel(self, steps: int) -> None:
        """A tenth of the window at a time, a second at the least."""
        scene = self._scene
        if scene is None or not scene.picture.samples:
            self._tell("there is no history yet")
            return
        samples = scene.picture.samples
        at = scene.end + steps * max(1.0, scene.span / 10)
        self._at = None if at >= samples[-1].time else max(at, samples[0].time)
        self.draw()

    def action_window_longer(self) -> None:
        self._span = (self._span + 1) % len(SPANS)
        self.draw()

    def action_window_shorter(self) -> None:
        self._span = (self._span - 1) % len(SPANS)
        self.draw()

    def action_mark(self) -> None:
        def marked(answer: p.Marked | Failure) -> None:
            self._tell("marked" if isinstance(answer, p.Marked) else answer.message, answer)

        def named(text: str | None) -> None:
            if text:
                self._owner.calls.mark(text, marked)

        if self._may_change():
            question = Prompt("Mark", ["A named moment, in events and on every plot."], "", _wrong_line)
            self.app.push_screen(question, named)

    # -- changes --------------------------------------------------------------------------------------------------

    def _may_change(self) -> bool:
        """The engine enforces it; here it is said before anything is filled in."""
        if self._owner.viewer:
            self._tell("read-only: this console may not change the engine", "warning")
        elif self._owner.store.picture.link.state == "lost":
            self._tell("the engine is gone: nothing can be changed", "warning")
        else:
            return True
        return False

    def action_cancel(self) -> None:
        table = self._views[SEQUENCES].table
        if not isinstance(self.view, Sequences) or table is None or table.chosen is None:
            self._tell("choose a sequence first: view 2")
            return
        if not self._may_change():
            return
        row: p.SequenceView = table.chosen

        def cancelled(answer: p.Cancelled | Failure) -> None:
            if isinstance(answer, Failure):
                self._tell(answer.message, answer)
            elif answer.unknown:
                self._tell(f"{shown.plain(row.id)} had ended already", "warning")
            else:
                self._tell(f"cancelled at step {answer.step:,}; {answer.left} left")

        def answered(yes: bool | None) -> None:
            if yes:
                self._owner.calls.cancel(row.id, cancelled)

        lines = [
            shown.plain(row.id),
            f"{row.status}, {row.prompt_tokens:,} prompt tokens, {row.output_tokens:,} of {row.max_tokens:,} generated",
            "Its client gets what was generated, and that it was cancelled.",
        ]
        self.app.push_screen(Confirm("Cancel this sequence?", lines, "Cancel it"), answered)

    def action_edit(self) -> None:
        if not isinstance(self.view, Flags):
            self._go(FLAGS)
            return
        row = self.flags.chosen
        if row is not None:
            self.edit_flag(row.name)

    def choose_flag(self, name: str) -> None:
        """From the palette: show the flag and ask for its value."""
        self._go(FLAGS)
        self.flags.choose(name)
        self.draw()
        self.edit_flag(name)

    def edit_flag(self, name: str) -> None:
        """Ask for a value in the form that the flag has: a toggle, a list, or a checked field."""
        flags = self.flags
        row = flags.find(name)
        if row is None or not self._may_change():
            return
        if row.reach != "live":
            self._tell(f"{name} takes effect at a restart only: set it in arc.toml and start anew", "warning")
            return
        now = flags.edits.get(name, row.value)

        def edited(text: str | None) -> None:
            if text is not None:
                flags.edit(row, checked(row, text))
                self.draw()

        about = [row.meaning, f"{row.allowed}; default {show(row.default)}; now {show(row.value)}"]
        if row.danger:
            about.append(f"▲ {row.danger}")
        if isinstance(now, bool):
            flags.edit(row, not now)
            self.draw()
        elif row.choices:
            options = [(str(choice), str(choice)) for choice in (*row.words, *row.choices)]
            self.app.push_screen(Choose(name, about, options, str(now)), edited)
        else:
            self.app.push_screen(Prompt(name, about, show(now), lambda text: _wrong_value(row, text)), edited)

    def action_drop(self) -> None:
        self.flags.drop()
        self.draw()

    def action_apply(self) -> None:
        if not self.flags.edits:
            self._tell("no edits: e edits the flag under the cursor")
        elif self._may_change():
            self._propose(f"Apply {_changes(len(self.flags.edits))}", self.flags.edits)

    def _propose(
        self, what: str, changes: dict[str, Value], *, undoes: bool = False, reason: str = ""
    ) -> None:
        picture = self._owner.store.picture
        if picture.flags is None or picture.snapshot is None or picture.hello is None:
            self._tell("the engine has not said its flags yet")
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

        self.app.push_screen(Apply(plan, self._owner.calls.patch), applied)

    def _applied(self, answer: p.Applied, *, undoes: bool) -> None:
        for name in answer.changes:
            self.flags.edits.pop(name, None)
        changed = {name: change.old for name, change in answer.changes.items() if change.old != change.new}
        if undoes:
            self._undo.pop()
        elif changed:
            self._undo.append(changed)
        until = "" if answer.until is None else f"; the engine takes it back at {shown.clock(answer.until)}"
        self._tell(f"from step {answer.step:,} on{until}" + "".join(f"\n{drain}" for drain in answer.drains))
        self.draw()

    def action_undo(self) -> None:
        if not self._undo:
            self._tell("this console has changed nothing that could be undone")
        elif self._may_change():
            self._propose(
                "Undo: apply " + _changes(len(self._undo[-1])), self._undo[-1], undoes=True, reason="undo"
            )

    def action_unset(self) -> None:
        row = self.flags.chosen
        if not isinstance(self.view, Flags) or row is None or not self._may_change():
            return
        if row.origin.layer != "runtime":
            self._tell(f"{row.name} has no runtime value: it is from {row.origin.layer}")
            return

        def unset(answer: p.Applied | Failure) -> None:
            if isinstance(answer, Failure):
                self._tell(answer.message, answer)
            else:
                self._applied(answer, undoes=False)

        def answered(yes: bool | None) -> None:
            if yes:
                self._owner.calls.unset(row.name, unset)

        lines = [f"now {show(row.value)}, set at runtime", "It goes back to the value of the layer below."]
        self.app.push_screen(Confirm(f"Unset {row.name}?", lines, "Unset", "Leave it"), answered)

    def action_profile(self) -> None:
        from ...engine.config import profile_files
        from ..profile_values import profile_values

        def chosen(name: str | None) -> None:
            if name is None:
                return
            try:
                wanted = profile_values(name)
            except Failure as failure:
                self._tell(failure.message, failure)
                return
            rows = [self.flags.find(flag) for flag in wanted]
            live = {
                row.name: wanted[row.name]
                for row in rows
                if row and row.reach == "live" and row.value != wanted[row.name]
            }
            restart = sum(1 for row in rows if row and row.reach != "live" and row.value != wanted[row.name])
            if restart:
                self._tell(
                    f"{restart} flags of {name} need a restart: `arc apply {name}` lists them", "warning"
                )
            if live:
                self._propose(f"Profile {name}: apply {_changes(len(live))}", live, reason=f"profile {name}")
            else:
                self._tell(f"every live flag has the value of {name} already")

        if self._may_change():
            names = sorted(profile_files(Path.cwd()))
            self.app.push_screen(Choose("Profile", [], [(name, name) for name in names]), chosen)

    # -- out ------------------------------------------------------------------------------------------------------

    def action_export(self) -> None:
        exported = self.view.export(self._scene) if self._scene else None
        if exported is None:
            self._tell("there is nothing to export here")
            return
        try:
            path = write(exported, Path.cwd(), time.localtime(self._owner.clock()))
        except Failure as failure:
            self._tell(failure.message, failure)
        else:
            self._tell(f"written: {path}")

    def action_copy(self) -> None:
        text = self.view.copied(self._scene) if self._scene else ""
        if text:
            self.app.copy_to_clipboard(text)
            self._tell(f"copied: {text}")
        else:
            self._tell("there is nothing to copy here")

    def action_theme(self) -> None:
        self._owner.next_theme()
        self.dress()
        self.draw()

    def _tell(self, text: str, how: object = None) -> None:
        """A toast. `how` is a severity, or the failure that it is about."""
        severity = (
            "error"
            if isinstance(how, Failure) or how == "error"
            else "warning"
            if how == "warning"
            else "information"
        )
        self.notify(text, severity=severity, markup=False)


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
