"""`arc top`: the console."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...engine.control import paths
from ..client import answers, find
from ..engine_option import engines_option
from ..exits import Exit
from ..parameters import FiniteRange
from ..top_options import ascii_option, require_terminal, theme_option, unicode_terminal, view_option
from ..uncollected import uncollected

if TYPE_CHECKING:
    from ..metrics.fetch import Address


@click.command()
@engines_option
@view_option
@click.option("--read-only", is_flag=True, help="Give up the right to change the engine.")
@click.option("--hz", default=4.0, show_default=True, type=FiniteRange(0.2, 20), help="Pictures a second.")
@theme_option
@ascii_option
@click.option("--record", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write what is received to a new FILE, for `arc replay`.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one screen as text and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print what one screen is made of as JSON and exit.")
@click.option(
    "--metrics",
    metavar="URL",
    multiple=True,
    help="Watch a vLLM, SGLang or arc server through its metrics page, read only. Several make a fleet.",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="All engines of this machine, as a fleet; one that starts later joins it.",
)
def top(
    *,
    engines: tuple[str, ...],
    metrics: tuple[str, ...],
    every: bool,
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
    sources = _named(engines, metrics)
    if not sources and not every:
        sources.append(find(None))
    ascii_text = ascii_text or not unicode_terminal()
    alone = sources[0] if len(sources) == 1 and not every else None
    if record is not None and not isinstance(alone, Path):
        raise click.UsageError("--record is for one engine, over its control socket")
    if once or as_json:
        size = shutil.get_terminal_size((120, 40))
        text, answered = _printed(sources, as_json, view, (size.columns, size.lines), ascii_text, every=every)
        click.echo(text)
        if not answered:
            raise click.exceptions.Exit(Exit.NO_ENGINE)
        return
    require_terminal("--once prints one screen as text, --json as data")
    with uncollected():
        from ..top.app import Console, Options
        from ..top.keys import keymap_path, read_keymap

    keymap = read_keymap(keymap_path())
    options = Options(hz=hz, viewer=read_only, theme=theme, ascii_text=ascii_text, view=view, record=record)
    if isinstance(alone, Path):
        Console(replace(options, path=alone), keymap=keymap).run()
        return
    from ..top.fleet import Fleet, Source
    from ..top.sources import EngineSource, MachineSource, PageSource

    made: list[Source] = [
        EngineSource(each, viewer=read_only) if isinstance(each, Path) else PageSource(each)
        for each in sources
    ]
    if every:
        made.append(
            MachineSource(viewer=read_only, without=[each for each in sources if isinstance(each, Path)])
        )
    only = made[0]
    if alone is not None and isinstance(only, PageSource):
        only.reader.read()  # what is no metrics page is said before the screen is taken
        if len(only.members) == 1:
            Console(options, keymap=keymap, store=only.members[0].store, reader=only.reader).run()
            return
    Console(options, keymap=keymap, fleet=Fleet(made)).run()


def _named(engines: tuple[str, ...], metrics: tuple[str, ...]) -> list[Path | Address]:
    """Sockets and addresses as they were named, each once."""
    named: list[Path | Address] = [find(name) for name in engines]
    if metrics:
        from ..metrics.fetch import address

        named += map(address, metrics)
    for index, each in enumerate(named):
        if each in named[:index]:
            raise click.UsageError(f"{each if isinstance(each, Path) else each.url} is named twice")
    return named


def _printed(
    sources: list[Path | Address],
    as_json: bool,
    view: int,
    size: tuple[int, int],
    ascii_text: bool,
    *,
    every: bool,
) -> tuple[str, bool]:
    """The text, and whether any engine answered: of a single one that does not this is a Failure.

    `every`: a fleet however many there are, the engines of this machine among them.
    """
    from ..top import fleet_once, metrics_once, once

    alone = sources[0] if len(sources) == 1 and not every else None
    if isinstance(alone, Path):
        return once.data(alone) if as_json else once.screen(alone, view, size, ascii_text), True
    if alone is not None:
        found = metrics_once.read_twice(alone)
        if len(found) == 1:
            return metrics_once.data(found[0]) if as_json else metrics_once.screen(
                found[0], view, size, ascii_text
            ), True
    running = [path for path in paths.sockets() if path not in sources and answers(path)] if every else []
    rows = fleet_once.rows_of([*sources, *running] or [find(None)])
    text = fleet_once.data(rows) if as_json else fleet_once.screen(rows, size, ascii_text)
    return text, any(not row.gone for row in rows)
