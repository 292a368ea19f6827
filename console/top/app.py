"""The Textual application: themes, the reader's start and end, and the main screen."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.style import Style
from textual import events
from textual.app import App
from textual.command import DiscoveryHit, Hit, Hits, Provider

from ..uncollected import uncollected
from .filter_field import FilterField
from .keys import KEYS
from .lines import Role
from .main_screen import Main
from .reader import Reader
from .session import Session
from .store import Picture, Store
from .themes import THEMES, styles_of

if TYPE_CHECKING:
    from .demo import DemoLoad
    from .engine_calls import EngineCalls
    from .fleet import AnyReader, Fleet, Member
    from .player import Player
    from .recording import RecordingStore


# What the first picture does not need, and keys do. Each brings what it needs in turn.
_REST = ("dialogs", "engine_calls", "help", "export", "apply", "demo", "changes", "experiments", "replay")
_REST_AFTER = 1.0  # seconds
_REST_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Options:
    """How the operator wants the console."""

    path: Path | None = None  # the control socket; None for another engine, which has none
    hz: float = 4.0
    viewer: bool = False
    theme: str = "arc-dark"
    ascii_text: bool = False
    view: int = 0
    record: Path | None = None  # what is received is written there
    greeting: str = ""  # said once, at the start
    started: str = ""  # the engine that was started for this console: leaving asks whether to stop it


class Palette(Provider):
    """Every action and every flag."""

    def _commands(self) -> list[tuple[str, str, Callable[[], Any]]]:
        app = self.app
        assert isinstance(app, Console)
        main = app.main
        found: list[tuple[str, str, Callable[[], Any]]] = [
            (key.explained, key.shown, partial(main.run_action, key.action))
            for key in KEYS
            if key.id != "palette"
        ]
        flags = app.store.picture.flags
        for member in app.members():
            found.append((f"engine {member.name}", member.where, partial(app.open, member)))
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
    VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-high")]  # noqa: RUF012  (Textual's own form)
    COMMANDS = {Palette}  # noqa: RUF012  (Textual's own form)

    def __init__(
        self,
        options: Options,
        *,
        keymap: Mapping[str, str] | None = None,
        store: Store | None = None,
        reader: AnyReader | None = None,
        fleet: Fleet | None = None,
        player: Player | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without a `store` the engine at options.path fills one. A given one is filled by `reader`, by `player`, or by
        whoever gave it. With a `fleet` the console shows its table, and one of its engines when it is opened.

        Raises Failure when the recording that is wanted cannot be begun.
        """
        super().__init__()
        self.options = options
        self.keymap = dict(keymap or {})
        self.player = player
        self.demo: DemoLoad | None = None
        self.stops_engine = False  # the operator's answer on leaving
        self.recording: RecordingStore | None = None
        if options.record:
            from .recording import RecordingStore

            self.recording = RecordingStore(options.record)
        self.store = store or self.recording or Store()
        self.clock = clock
        self.opened: Member | None = None  # of the fleet
        self._fleet = fleet
        self._reader = reader
        self.main: Main = self._first_screen(fleet)
        self._table = self.main
        if store is None and fleet is None:
            assert options.path is not None, "there is nothing to read"
            self._reader = Reader(
                options.path,
                self.store,
                hz=options.hz,
                viewer=options.viewer,
                keeps_sequences=options.record is not None,
            )
        for theme in THEMES.values():
            self.register_theme(theme)
        self.theme = options.theme
        self.stylesheet.set_variables(self.get_css_variables())
        self._sheets_are_for = options.theme

    def _first_screen(self, fleet: Fleet | None) -> Main:
        if fleet is None:
            return Main(self)
        from .fleet_screen import FleetScreen

        return FleetScreen(self, fleet)

    def get_default_screen(self) -> Main:
        return self.main

    def refresh_css(self, animate: bool = True) -> None:
        """The sheets are parsed again when the theme is another one. Textual asks for it at its start too, when they
        were parsed for this theme a moment ago: a tenth of the time to the first picture."""
        if self.theme != self._sheets_are_for:
            self._sheets_are_for = self.theme
            super().refresh_css(animate)

    @property
    def hz(self) -> float:
        return self.options.hz

    @property
    def ascii_text(self) -> bool:
        return self.options.ascii_text

    @property
    def viewer(self) -> bool:
        hello = self.store.picture.hello
        given_up = self.options.viewer or (hello is not None and hello.role == "viewer")
        return self.player is not None or given_up or self.socket is None

    @property
    def socket(self) -> Path | None:
        """The control socket of the engine in sight; None where there is none, or no one engine."""
        return self.opened.path if self.opened is not None else self.options.path

    @property
    def calls(self) -> EngineCalls:
        from .engine_calls import EngineCalls

        assert self.socket is not None, "an engine without a control socket takes no calls"
        return EngineCalls(self.socket, self.options.viewer, self.back)

    @property
    def session(self) -> Session:
        return Session(
            replaying=self.player.state() if self.player else None,
            recording=self.recording.path.name if self.recording else "",
            trouble=self.recording.trouble if self.recording else "",
            demo=self.demo.under_way if self.demo and self.demo.running else None,
        )

    def newest(self) -> Picture:
        """What there is to show now."""
        if self.player:
            self.player.show()
        return self.store.picture

    @property
    def styles_by_role(self) -> Mapping[Role, Style]:
        return styles_of(self.theme, colours=not self.no_color)

    def on_mount(self) -> None:
        self.set_keymap(self.keymap)
        self.set_timer(_REST_AFTER, self._import_rest)
        if self.options.greeting:
            self.main.tell(self.options.greeting)
        if self._fleet:
            self._fleet.start()
        elif self._reader:
            self._reader.start()

    def _import_rest(self) -> None:
        """A module at a time, between the screen's other work: so that no key waits for it, and no file that is
        replaced under a running console is the next one imported."""
        for name in _REST:
            if f"{__package__}.{name}" not in sys.modules:
                with uncollected():
                    import_module(f".{name}", __package__)
                self.set_timer(_REST_PAUSE, self._import_rest)
                return

    def on_unmount(self) -> None:
        self.main.experiments.leave()
        if self._fleet:
            self._fleet.stop()
        elif self._reader:
            self._reader.stop()
        if self.recording:
            self.recording.close()
        if self.demo:
            self.demo.stop()

    def on_key(self, event: events.Key) -> None:
        """Keys that are typed faster than the filter opens come up here, past the field: they are for it, and no
        commands."""
        if event.is_printable and event.character and isinstance(self.focused, FilterField):
            event.prevent_default()
            self.focused.take(event.character)

    async def action_quit(self) -> None:
        """Of every key that quits, Textual's own Ctrl+Q among them."""
        from .dialogs import Leave

        if isinstance(self.screen, Leave):
            return
        if not self.options.started or self.store.picture.link.state == "lost":
            self.exit()
            return

        def left(stop: bool | None) -> None:
            if stop is not None:
                self.stops_engine = stop
                self.exit()

        self.push_screen(Leave(self.options.started, self.store.picture.snapshot), left)

    # -- the fleet ------------------------------------------------------------------------------------------------

    def open(self, member: Member) -> None:
        """Show one engine of the fleet alone, with everything that a console of its own would have."""
        assert self._fleet is not None
        reader = self._fleet.source_of(member).open(member, self.options.hz)
        self.opened, self.store, self._reader = member, member.store, reader
        self.main = Main(self)
        self.push_screen(self.main)

    def leave(self) -> None:
        """Back to the fleet; nothing where there is none."""
        if self._fleet is None or self.opened is None:
            return
        self._fleet.source_of(self.opened).close(self.opened)
        self.opened, self.store, self._reader = None, Store(), None
        self.main = self._table
        self.pop_screen()
        self.main.draw()

    def members(self) -> tuple[Member, ...]:
        """Those that can be opened now."""
        if self._fleet is None or self.opened is not None:
            return ()
        return tuple(member for source in self._fleet.sources for member in source.members)

    def wants_sequences(self, wanted: bool) -> None:
        if self._reader:
            self._reader.wants_sequences = wanted

    def wants_spans(self, seconds: float | None) -> None:
        if self._reader:
            self._reader.wants_spans = seconds

    def next_theme(self) -> None:
        names = list(THEMES)
        self.theme = names[(names.index(self.theme) + 1) % len(names)]

    def back(self, call: Callable[[], None]) -> None:
        """From a call's thread to the screen's; a console that was left by then wants no answers."""
        with contextlib.suppress(RuntimeError):
            self.call_from_thread(call)
