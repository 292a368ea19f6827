"""The console's main screen: what the keys and the mouse do.

What the first picture does not need is imported when a key asks for it, or a second after the start (app.py).
"""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from textual import events
from textual.binding import Binding

from ..exits import Failure
from . import header
from .drawn_screen import Drawn
from .filter_field import FilterField
from .keys import KEYS
from .scene import SPANS
from .toasts import Toasts
from .views.catalogue import FLAGS, make_views
from .views.flags import Flags
from .views.view import View

if TYPE_CHECKING:
    from .app import Console
    from .changes import Changes
    from .experiments import Experiments
    from .replay import Replay


class Main(Drawn):
    BINDINGS = [  # noqa: RUF012  (Textual's own form)
        Binding(key.keys, key.action, key.what, id=key.id, show=False, key_display=key.shown) for key in KEYS
    ]

    def __init__(self, console: Console, views: tuple[View, ...] | None = None) -> None:
        super().__init__(console, views or make_views(), console.options.view if views is None else 0)

    @cached_property
    def changes(self) -> Changes:
        from .changes import Changes

        return Changes(self._owner, self)

    @cached_property
    def experiments(self) -> Experiments:
        from .experiments import Experiments

        return Experiments(self._owner, self)

    @cached_property
    def replay(self) -> Replay:
        from .replay import Replay

        return Replay(self._owner, self)

    @property
    def flags(self) -> Flags:
        """The Flags view, with the newest flags whether or not it was drawn."""
        view = self._views[FLAGS]
        assert isinstance(view, Flags)
        view.update(self._owner.store.picture.flags)
        return view

    # -- views ----------------------------------------------------------------------------------------------------

    def go(self, index: int) -> None:
        self._current = index % len(self._views)
        self._ask_for_what_is_shown()
        self.draw()

    def action_view(self, index: int) -> None:
        self.go(index)

    def action_view_next(self) -> None:
        self.go(self._current + 1)

    def action_view_previous(self) -> None:
        self.go(self._current - 1)

    def action_enter(self) -> None:
        if isinstance(self.view, Flags):
            self.action_edit()
            return
        target = self.view.enter()
        if target is not None:
            self.go([view.name for view in self._views].index(target))
        self.draw()

    def action_back(self) -> None:
        """Out of the innermost thing: a detail, a filter, the freeze, the past, at last the engine, to its fleet."""
        table = self.view.table
        if self.view.back():
            pass
        elif table is not None and table.filter is not None:
            table.filter = None
        elif self._frozen is not None:
            self._frozen = None
        elif self._at is not None:
            self._at = None
        else:
            self._owner.leave()
            return
        self.draw()

    def action_maximise(self) -> None:
        if not self.view.maximise():
            self.tell("this view has the whole place already")
        self.draw()

    def action_help(self) -> None:
        from .help import Help

        owner = self._owner
        self.app.push_screen(
            Help(owner.keymap, owner.styles_by_role, viewer=owner.viewer, ascii_text=owner.ascii_text)
        )

    def action_palette(self) -> None:
        self.app.action_command_palette()

    async def action_quit(self) -> None:
        await self._owner.action_quit()

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
        if self._owner.player and self.view.table is None:
            self.replay.to_end()
        elif self._at is not None:
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
            self.tell("this view has no table to filter")
            return
        self.query_one(FilterField).open(self.view.filter)
        self.draw()

    def on_filter_field_changed_to(self, event: FilterField.ChangedTo) -> None:
        if self.view.table:
            self.view.table.filter = event.filter
        self.draw()

    def on_filter_field_closed(self, event: FilterField.Closed) -> None:
        self.set_focus(None)
        if event.wrong:
            self.tell(f"/{event.wrong}/ is no regular expression", "error")
        self.draw()

    # -- the mouse ------------------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        x, y = int(event.screen_x), int(event.screen_y)
        names = [(view.name, view.short) for view in self._views]
        if y == 1:
            tab = header.tab_at(names, self._current, self.size.width, x)
            if tab is not None:
                self.go(tab)
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
        if self._owner.player:
            self.replay.toggle()
            return
        self._frozen = self._owner.store.picture if self._frozen is None else None
        self.draw()

    def action_history_back(self) -> None:
        self._travel(-1)

    def action_history_forward(self) -> None:
        self._travel(1)

    def _travel(self, steps: int) -> None:
        """A tenth of the window at a time, a second at the least."""
        scene = self._scene
        length = steps * max(1.0, SPANS[self._span] / 10)
        if self._owner.player:
            self.replay.move(length)
            return
        if scene is None or not scene.picture.samples:
            self.tell("there is no history yet")
            return
        samples = scene.picture.samples
        at = scene.end + length
        self._at = None if at >= samples[-1].time else max(at, samples[0].time)
        self.draw()

    def action_window_longer(self) -> None:
        self._span = (self._span + 1) % len(SPANS)
        self._ask_for_what_is_shown()
        self.draw()

    def action_window_shorter(self) -> None:
        self._span = (self._span - 1) % len(SPANS)
        self._ask_for_what_is_shown()
        self.draw()

    def action_pin(self) -> None:
        if self._scene is None or not self.view.pin(self._scene):
            self.tell("there is nothing to pin here")
        self.draw()

    # -- a replay -------------------------------------------------------------------------------------------------

    def passed_over(self) -> None:
        """A replay was moved: what lies between is no news."""
        self._toasts = Toasts()
        self.draw()

    def action_replay_step(self, by: int) -> None:
        self.replay.step(by)

    def action_replay_speed(self, by: int) -> None:
        self.replay.faster(by)

    def action_replay_seek(self) -> None:
        self.replay.ask_where()

    # -- changes --------------------------------------------------------------------------------------------------

    def action_cancel(self) -> None:
        self.changes.cancel()

    def action_edit(self) -> None:
        self.changes.edit()

    def action_drop(self) -> None:
        self.changes.drop()

    def action_apply(self) -> None:
        self.changes.apply()

    def action_undo(self) -> None:
        self.changes.undo()

    def action_unset(self) -> None:
        self.changes.unset()

    def action_profile(self) -> None:
        self.changes.profile()

    def action_experiment(self) -> None:
        self.experiments.open(self.flags, self.changes.may_change)

    def action_mark(self) -> None:
        self.changes.mark()

    def action_demo(self) -> None:
        self.changes.demo()

    def action_trim(self) -> None:
        self.changes.trim()

    # -- out ------------------------------------------------------------------------------------------------------

    def action_export(self) -> None:
        exported = self.view.export(self._scene) if self._scene else None
        if exported is None:
            self.tell("there is nothing to export here")
            return
        from .export import write

        try:
            path = write(exported, Path.cwd(), time.localtime(self._owner.clock()))
        except Failure as failure:
            self.tell(failure.message, failure)
        else:
            self.tell(f"written: {path}")

    def action_copy(self) -> None:
        text = self.view.copied(self._scene) if self._scene else ""
        if text:
            self.app.copy_to_clipboard(text)
            self.tell(f"copied: {text}")
        else:
            self.tell("there is nothing to copy here")

    def action_theme(self) -> None:
        self._owner.next_theme()
        self.dress()
        self.draw()
