"""`arc top`: the console."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import click

from ...engine.control import paths
from ..client import answers, find
from ..engine_option import engines_option
from ..exits import Exit
from ..metrics.fetch import Address, address
from ..parameters import FiniteRange
from ..top_options import ascii_option, require_terminal, theme_option, unicode_terminal, view_option


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
@click.option("--all", "every", is_flag=True, help="All engines that run on this machine, as a fleet.")  # fmt: skip
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
    sources = _sources(engines, metrics, every)
    ascii_text = ascii_text or not unicode_terminal()
    if record is not None and (len(sources) > 1 or not isinstance(sources[0], Path)):
        raise click.UsageError("--record is for one engine, over its control socket")
    if once or as_json:
        size = shutil.get_terminal_size((120, 40))
        text, answered = _printed(sources, as_json, view, (size.columns, size.lines), ascii_text)
        click.echo(text)
        if not answered:
            raise click.exceptions.Exit(Exit.NO_ENGINE)
        return
    require_terminal("--once prints one screen as text, --json as data")
    from ..top.app import Console, Options
    from ..top.fleet import Fleet
    from ..top.keys import keymap_path, read_keymap
    from ..top.sources import EngineSource, PageSource

    keymap = read_keymap(keymap_path())
    options = Options(hz=hz, viewer=read_only, theme=theme, ascii_text=ascii_text, view=view, record=record)
    first = sources[0]
    if len(sources) == 1 and isinstance(first, Path):
        Console(replace(options, path=first), keymap=keymap).run()
        return
    made = [
        EngineSource(each, viewer=read_only) if isinstance(each, Path) else PageSource(each)
        for each in sources
    ]
    alone = made[0]
    if len(made) == 1 and isinstance(alone, PageSource):
        alone.reader.read()  # what is no metrics page is said before the screen is taken
        if len(alone.members) == 1:
            Console(options, keymap=keymap, store=alone.members[0].store, reader=alone.reader).run()
            return
    Console(options, keymap=keymap, fleet=Fleet(made)).run()


def _sources(engines: tuple[str, ...], metrics: tuple[str, ...], every: bool) -> list[Path | Address]:
    """What was named: sockets and addresses, each once. The only engine there is where nothing was."""
    named: list[Path | Address] = [find(name) for name in engines]
    if every:
        named += [path for path in paths.sockets() if path not in named and answers(path)]
    named += [address(text) for text in metrics]
    if not named:
        named = [find(None)]
    for index, each in enumerate(named):
        if each in named[:index]:
            raise click.UsageError(f"{each if isinstance(each, Path) else each.url} is named twice")
    return named


def _printed(
    sources: list[Path | Address], as_json: bool, view: int, size: tuple[int, int], ascii_text: bool
) -> tuple[str, bool]:
    """The text, and whether any engine answered: of a single one that does not this is a Failure."""
    from ..top import fleet_once, metrics_once, once

    first = sources[0]
    if len(sources) == 1 and isinstance(first, Path):
        return once.data(first) if as_json else once.screen(first, view, size, ascii_text), True
    if len(sources) == 1 and isinstance(first, Address):
        found = metrics_once.read_twice(first)
        if len(found) == 1:
            return metrics_once.data(found[0]) if as_json else metrics_once.screen(
                found[0], view, size, ascii_text
            ), True
    rows = fleet_once.rows_of(sources)
    text = fleet_once.data(rows) if as_json else fleet_once.screen(rows, size, ascii_text)
    return text, any(not row.gone for row in rows)
