"""`arc top`: the console."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from ..client import find
from ..engine_option import engine_option
from ..top_options import ascii_option, require_terminal, theme_option, unicode_terminal, view_option


@click.command()
@engine_option
@view_option
@click.option("--read-only", is_flag=True, help="Give up the right to change the engine.")
@click.option(
    "--hz", default=4.0, show_default=True, type=click.FloatRange(0.2, 20), help="Pictures a second."
)
@theme_option
@ascii_option
@click.option("--record", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write what is received to a new FILE, for `arc replay`.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one screen as text and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print what one screen is made of as JSON and exit.")
def top(
    *,
    engine: str | None,
    view: int,
    read_only: bool,
    hz: float,
    theme: str,
    ascii_text: bool,
    record: Path | None,
    once: bool,
    as_json: bool,
) -> None:
    """Watch an engine and change it while it runs. NO_COLOR is honoured; keys are remapped in arc/keys.toml."""
    path = find(engine)
    ascii_text = ascii_text or not unicode_terminal()
    if once or as_json:
        from ..top.once import data, screen

        size = shutil.get_terminal_size((120, 40))
        click.echo(data(path) if as_json else screen(path, view, (size.columns, size.lines), ascii_text))
        return
    require_terminal("--once prints one screen as text, --json as data")
    from ..top.app import Console, Options
    from ..top.keys import keymap_path, read_keymap

    keymap = read_keymap(keymap_path())
    options = Options(
        path, hz=hz, viewer=read_only, theme=theme, ascii_text=ascii_text, view=view, record=record
    )
    Console(options, keymap=keymap).run()
