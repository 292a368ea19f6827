"""The questions that the console asks. The way out has the focus: no answer is given by a key pressed too often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from ...engine.control import protocol as p

T = TypeVar("T")


class Dialog(ModalScreen[T | None]):
    AUTO_FOCUS = "Input, OptionList, Button"  # and not the text, which takes it only to be scrolled
    BINDINGS = [Binding("escape", "leave", "back")]  # noqa: RUF012  (Textual's own form)

    def action_leave(self) -> None:
        self.dismiss(None)


class Confirm(Dialog[bool]):
    """Target, effect and who is affected; True for yes."""

    def __init__(self, title: str, lines: Sequence[str], yes: str, no: str = "Keep it") -> None:
        super().__init__()
        self._title, self._lines, self._yes, self._no = title, lines, yes, no

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Text(self._title)
            with VerticalScroll(classes="text"):
                yield Static(Text("\n".join(self._lines)))
            with Horizontal(classes="buttons"):
                yield Button(Text(self._no), id="no")
                yield Button(Text(self._yes), id="yes", variant="error")

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")


class Leave(Confirm):
    """On leaving the console that started an engine: True to stop it, False to leave it running."""

    def __init__(self, engine: str, snapshot: p.Snapshot | None) -> None:
        has = (
            f"It has {snapshot.running} running and {snapshot.waiting} waiting sequences. "
            if snapshot
            else ""
        )
        lines = [
            f"This console started the engine {engine}. {has}Left alone, it goes on in the background.",
            "Stopped, it takes no new work and has 30 s to finish what runs.",
        ]
        super().__init__(f"Stop {engine} as well?", lines, "Stop it", "Leave it running")


class Prompt(Dialog[str]):
    """One line of text. `wrong` says what is wrong with it, or nothing."""

    def __init__(self, title: str, lines: Sequence[str], value: str, wrong: Callable[[str], str]) -> None:
        super().__init__()
        self._title, self._lines, self._value, self._wrong = title, lines, value, wrong

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Text(self._title)
            with VerticalScroll(classes="text"):
                yield Static(Text("\n".join(self._lines)))
            field = Input(self._value, id="text", select_on_focus=True)
            field.cursor_blink = False
            yield field
            yield Static("", id="wrong")

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_one("#wrong", Static).update(Text(self._wrong(event.value)))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if not self._wrong(event.value):
            self.dismiss(event.value)


class Choose(Dialog[str]):
    """One of a few."""

    def __init__(
        self, title: str, lines: Sequence[str], options: Sequence[tuple[str, str]], now: str = ""
    ) -> None:
        """`options` are the values and how each is written."""
        super().__init__()
        self._title, self._lines, self._options, self._now = title, lines, options, now

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Text(self._title)
            if self._lines:
                with VerticalScroll(classes="text"):
                    yield Static(Text("\n".join(self._lines)))
            yield OptionList(*(Option(Text(text), id=value) for value, text in self._options))

    def on_mount(self) -> None:
        values = [value for value, _ in self._options]
        options = self.query_one(OptionList)
        options.focus()
        options.highlighted = values.index(self._now) if self._now in values else 0

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)
