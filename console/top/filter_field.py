"""The line in which a filter is written. Each right expression is in force as soon as it stands there."""

from __future__ import annotations

import re

from textual.binding import Binding
from textual.message import Message
from textual.widgets import Input

from .table import Filter, parse_filter


class FilterField(Input):
    """Hidden until opened. Enter keeps the filter, Esc drops it."""

    BINDINGS = [Binding("escape", "drop_filter", "drop the filter", show=False)]  # noqa: RUF012  (Textual's own form)

    class ChangedTo(Message):
        def __init__(self, filter_: Filter | None) -> None:
            super().__init__()
            self.filter = filter_

    class Closed(Message):
        def __init__(self, wrong: str) -> None:
            super().__init__()
            self.wrong = wrong  # what was written and is no regular expression

    def __init__(self) -> None:
        super().__init__(
            id="filter", placeholder="regular expression; ! in front shows the rest", select_on_focus=False
        )
        self.cursor_blink = False
        self.can_focus = False  # a hidden field must not take the focus

    def open(self, filter_: Filter | None) -> None:
        self.value = filter_.text if filter_ else ""
        self.display = self.can_focus = True
        self.select_all()  # here, and not when the focus has come: keys that were typed meanwhile would go with it
        self.screen.set_focus(self)

    def take(self, letter: str) -> None:
        """A key that was typed before the field had the focus."""
        self.replace(letter, *self.selection)

    @property
    def is_open(self) -> bool:
        return bool(self.display)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        try:
            self.post_message(self.ChangedTo(parse_filter(event.value)))
        except re.error:  # while it is being typed: the last right one stays in force
            self.add_class("wrong")
        else:
            self.remove_class("wrong")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._close(self.value if self.has_class("wrong") else "")

    def action_drop_filter(self) -> None:
        self.post_message(self.ChangedTo(None))
        self._close("")

    def _close(self, wrong: str) -> None:
        self.display = self.can_focus = False
        self.post_message(self.Closed(wrong))
