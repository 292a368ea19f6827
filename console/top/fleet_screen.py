"""The screen of several engines. It draws and moves as the main screen does, and opens one engine at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fleet import Fleet
from .lines import Line
from .main_screen import Main
from .scene import Scene
from .views import fleet as view
from .views.fleet import FleetView

if TYPE_CHECKING:
    from .app import Console


class FleetScreen(Main):
    def __init__(self, console: Console, fleet: Fleet) -> None:
        self._table_view = FleetView(fleet)
        super().__init__(console, views=(self._table_view,))

    def draw(self, *, only_if_new: bool = False) -> None:
        """Not while an engine is open over it."""
        if self._owner.main is self:
            super().draw(only_if_new=only_if_new)

    def head_lines(self, scene: Scene, width: int) -> list[Line]:
        self._table_view.update(scene)
        rows = self._table_view.rows
        return [view.header(rows, width), view.status(scene, rows, self._owner.hz, width)]

    def alarm_lines(self, scene: Scene, width: int) -> list[Line]:
        return view.alarms(self._table_view.rows, width)

    def action_enter(self) -> None:
        chosen = self._table_view.chosen
        if chosen is not None:
            self._owner.open(chosen)

    def _open_first(self) -> None:
        self.tell("open an engine first: Enter")

    action_cancel = action_edit = action_drop = action_apply = action_undo = action_unset = _open_first
    action_experiment = action_demo = action_trim = _open_first
    action_profile = action_mark = action_history_back = action_history_forward = _open_first
    action_view_next = action_view_previous = _open_first

    def action_view(self, index: int) -> None:
        self._open_first()
