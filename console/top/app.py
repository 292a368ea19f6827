"""The Textual application: themes, the reader's start and end, and the main screen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.style import Style
from textual.app import App
from textual.command import DiscoveryHit, Hit, Hits, Provider

from .engine_calls import EngineCalls
from .keys import KEYS
from .lines import Role
from .main_screen import Main
from .reader import Reader
from .store import Store
from .themes import THEMES, styles_of


@dataclass(frozen=True, slots=True)
class Options:
    """How the operator wants the console."""

    path: Path
    hz: float = 4.0
    viewer: bool = False
    theme: str = "arc-dark"
    ascii_text: bool = False
    view: int = 0


class Palette(Provider):
    """Every action and every flag."""

    def _commands(self) -> list[tuple[str, str, Callable[[], Any]]]:
        app = self.app
        assert isinstance(app, Console)
        main = app.main
        found: list[tuple[str, str, Callable[[], Any]]] = [
            (key.what, key.shown, partial(main.run_action, key.action)) for key in KEYS if key.id != "palette"
        ]
        flags = app.store.picture.flags
        for row in flags.flags if flags else ():
            found.append((f"flag {row.name}", row.meaning, partial(main.changes.choose_flag, row.name)))
        return found

    async def discover(self) -> Hits:
        for what, help_, call in self._commands():
            yield DiscoveryHit(what, call, help=help_)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for what, help_, call in self._commands():
            score = matcher.match(what)
            if score > 0:
                yield Hit(score, matcher.highlight(what), call, help=help_)


class Console(App[None]):
    TITLE = "arc"
    CSS_PATH = "top.tcss"
    COMMANDS = {Palette}  # noqa: RUF012  (Textual's own form)

    def __init__(
        self,
        options: Options,
        *,
        keymap: Mapping[str, str] | None = None,
        store: Store | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """With a `store` of its own nothing is read from an engine: tests and replays fill it themselves."""
        super().__init__()
        self.options = options
        self.keymap = dict(keymap or {})
        self.store = store or Store()
        self.clock = clock
        self.calls = EngineCalls(options.path, options.viewer, self._back)
        self.main = Main(self)
        self._reader = (
            None if store else Reader(options.path, self.store, hz=options.hz, viewer=options.viewer)
        )
        for theme in THEMES.values():
            self.register_theme(theme)

    @property
    def hz(self) -> float:
        return self.options.hz

    @property
    def ascii_text(self) -> bool:
        return self.options.ascii_text

    @property
    def viewer(self) -> bool:
        hello = self.store.picture.hello
        return self.options.viewer or (hello is not None and hello.role == "viewer")

    @property
    def styles_by_role(self) -> Mapping[Role, Style]:
        return styles_of(self.theme, colours=not self.no_color)

    def on_mount(self) -> None:
        self.theme = self.options.theme
        self.set_keymap(self.keymap)
        self.push_screen(self.main)
        if self._reader:
            self._reader.start()

    def on_unmount(self) -> None:
        if self._reader:
            self._reader.stop()

    def wants_sequences(self, wanted: bool) -> None:
        if self._reader:
            self._reader.wants_sequences = wanted

    def wants_spans(self, seconds: float | None) -> None:
        if self._reader:
            self._reader.wants_spans = seconds

    def next_theme(self) -> None:
        names = list(THEMES)
        self.theme = names[(names.index(self.theme) + 1) % len(names)]

    def _back(self, call: Callable[[], None]) -> None:
        """From a call's thread to the screen's; a console that was left by then wants no answers."""
        with contextlib.suppress(RuntimeError):
            self.call_from_thread(call)
