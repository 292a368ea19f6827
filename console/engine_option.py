"""What the commands that talk to an engine have in common: --engine, --json, and the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from ..engine.control import paths
from .parameters import Line

Decorated = Callable[..., Any]


def _complete_engine(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [path.stem for path in paths.sockets() if path.stem.startswith(incomplete)]


def complete_flag(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from ..engine.flags import FLAGS

    return [name for name in FLAGS if name.startswith(incomplete)]


engine_option: Callable[[Decorated], Decorated] = click.option(
    "--engine",
    "-e",
    metavar="NAME",
    shell_complete=_complete_engine,
    help="Which engine; not needed while only one runs.",
)

engines_option: Callable[[Decorated], Decorated] = click.option(
    "--engine",
    "-e",
    "engines",
    metavar="NAME",
    multiple=True,
    shell_complete=_complete_engine,
    help="Which engine; not needed while only one runs. Several make a fleet.",
)

json_option: Callable[[Decorated], Decorated] = click.option(
    "--json", "as_json", is_flag=True, help="Print the engine's answer as JSON."
)

why_option: Callable[[Decorated], Decorated] = click.option(
    "--why",
    "reason",
    default="",
    type=Line(),
    metavar="TEXT",
    help="The reason, for events and the audit log.",
)


def print_json(raw: bytes) -> None:
    click.echo(msgspec.json.format(raw, indent=2))
