"""What the keys do in a replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .player import Player
from .seek import moment_of, seek_dialog

if TYPE_CHECKING:
    from .app import Console
    from .main_screen import Main


class Replay:
    """Moves the console's player; without one, the keys say how to get a replay."""

    def __init__(self, app: Console, main: Main) -> None:
        self._app = app
        self._main = main

    def toggle(self) -> None:
        self._with_player(Player.toggle)

    def move(self, seconds: float) -> None:
        self._with_player(lambda player: player.seek(player.now() + seconds))

    def to_end(self) -> None:
        self._with_player(lambda player: player.seek(player.end))

    def step(self, by: int) -> None:
        self._with_player(lambda player: player.step(by))

    def faster(self, by: int) -> None:
        self._with_player(lambda player: player.faster(by))

    def ask_where(self) -> None:
        def sought(text: str | None) -> None:
            if text is not None:
                self._with_player(lambda player: player.seek(moment_of(text, player.state())))

        def ask(player: Player) -> None:
            self._app.push_screen(seek_dialog(player), sought)

        self._with_player(ask)

    def _with_player(self, move: Callable[[Player], None]) -> None:
        player = self._app.player
        if player is None:
            self._main.tell("this is no replay: `arc top --record FILE` records, `arc replay FILE` replays")
        else:
            move(player)
            self._main.passed_over()
