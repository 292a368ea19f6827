"""`arc bench allocator`: the bounded allocator, measured by the engine's own bench in a process of its own."""

from __future__ import annotations

import importlib.util

import click

from ..exits import Failure
from .handover import run_module

_MODULE = "arc.engine.memory.bench"


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def allocator(arguments: tuple[str, ...]) -> None:
    """Hand over to the allocator's bench with all options: `arc bench allocator --help` is its own help."""
    if importlib.util.find_spec("torch") is None:
        raise Failure(
            "only the console is installed here; the allocator is the engine's: arc-console[engine]"
        )
    if importlib.util.find_spec("arc.engine.memory") is None or importlib.util.find_spec(_MODULE) is None:
        raise Failure(f"this arc's engine has no {_MODULE}: its allocator cannot be measured on its own")
    run_module(_MODULE, list(arguments))
