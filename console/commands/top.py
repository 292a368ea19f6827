"""`arc top`: the console."""

from __future__ import annotations

import locale
import os
import shutil
import sys
from pathlib import Path

import click

from ..client import find
from ..engine_option import engine_option
from ..metrics.fetch import Address, address

VIEWS = ("overview", "sequences", "spans", "allocator", "flags", "events")
THEMES = ("arc-dark", "arc-light", "arc-safe", "arc-ansi")


@click.command()
@engine_option
@click.option(
    "--view", type=click.Choice(VIEWS), default="overview", show_default=True, help="The view to start with."
)
@click.option("--read-only", is_flag=True, help="Give up the right to change the engine.")
@click.option(
    "--hz", default=4.0, show_default=True, type=click.FloatRange(0.2, 20), help="Pictures a second."
)
@click.option("--theme", type=click.Choice(THEMES), default="arc-dark", show_default=True, envvar="ARC_TOP_THEME",
              help="arc-safe is made for colour blindness, arc-ansi has the terminal's own 16 colours.")  # fmt: skip
@click.option("--ascii", "ascii_text", is_flag=True, help="No Unicode glyphs, as where the locale has none.")
@click.option("--once", is_flag=True, help="Print one screen as text and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print what one screen is made of as JSON and exit.")
@click.option("--metrics", metavar="URL",
              help="Watch a vLLM, SGLang or arc server through its metrics page, read only.")  # fmt: skip
def top(
    *,
    engine: str | None,
    metrics: str | None,
    view: str,
    read_only: bool,
    hz: float,
    theme: str,
    ascii_text: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Watch an engine and change it while it runs. NO_COLOR is honoured; keys are remapped in arc/keys.toml."""
    if metrics is not None and engine is not None:
        raise click.UsageError("--engine and --metrics name one engine each: give one of them")
    source = find(engine) if metrics is None else address(metrics)
    ascii_text = ascii_text or not _unicode()
    index = VIEWS.index(view)
    if once or as_json:
        size = shutil.get_terminal_size((120, 40))
        click.echo(_printed(source, as_json, index, (size.columns, size.lines), ascii_text))
        return
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise click.UsageError("this is no terminal: --once prints one screen as text, --json as data")
    from ..top.app import Console, Options
    from ..top.keys import keymap_path, read_keymap
    from ..top.metrics_reader import MetricsReader

    keymap = read_keymap(keymap_path())
    path = source if isinstance(source, Path) else None
    options = Options(path, hz=hz, viewer=read_only, theme=theme, ascii_text=ascii_text, view=index)
    if isinstance(source, Path):
        Console(options, keymap=keymap).run()
    else:
        reader = MetricsReader(source)
        reader.read()  # what is no metrics page is said before the screen is taken
        Console(options, keymap=keymap, store=reader.engines[0].store, reader=reader).run()


def _printed(
    source: Path | Address, as_json: bool, view: int, size: tuple[int, int], ascii_text: bool
) -> str:
    if isinstance(source, Path):
        from ..top import once

        return once.data(source) if as_json else once.screen(source, view, size, ascii_text)
    from ..top import metrics_once

    engines = metrics_once.read_twice(source)
    if as_json:
        return metrics_once.data(engines)
    return "\n".join(metrics_once.screen(each, view, size, ascii_text) for each in engines)


def _unicode() -> bool:
    """Whether the terminal can be trusted with braille: the Linux console's font has none."""
    encoding = (sys.stdout.encoding or locale.getpreferredencoding()).lower().replace("-", "")
    return encoding == "utf8" and os.environ.get("TERM") != "linux"
