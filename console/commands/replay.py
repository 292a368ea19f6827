"""`arc replay`: what a console or a flight recorder kept, in the console."""

from __future__ import annotations

from pathlib import Path

import click

from ..top_options import ascii_option, require_terminal, theme_option, unicode_terminal, view_option
from ..uncollected import uncollected


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@view_option
@theme_option
@ascii_option
def replay(*, file: Path, view: int, theme: str, ascii_text: bool) -> None:
    """Replay FILE: a recording of `arc top --record`, or a flight recorder's file (arc dump --post-mortem names it).

    Space plays and stands, Left and Right move, < and > go picture by picture, - and + change the speed, g goes to a
    time. Nothing can be changed.
    """
    from ..top.tape import open_tape

    tape = open_tape(file)
    require_terminal("`arc dump --post-mortem FILE` reports on a flight recorder's file as text")
    with uncollected():
        from ..top.app import Console, Options
        from ..top.keys import keymap_path, read_keymap
        from ..top.player import Player
        from ..top.store import Store

    store = Store()
    player = Player(tape, store, file.name)
    options = Options(file, theme=theme, ascii_text=ascii_text or not unicode_terminal(), view=view)
    Console(options, keymap=read_keymap(keymap_path()), store=store, player=player, clock=player.now).run()
