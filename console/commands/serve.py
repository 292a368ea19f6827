"""`arc serve`: replaces this process by the engine's."""

from __future__ import annotations

import importlib.util
import os
import sys

import click

from ...engine.options import settings_options
from ..exits import Failure


@click.command()
@settings_options
def serve(profile: str | None, overrides: tuple[str, ...]) -> None:
    """Start an engine in this folder, with the settings of its arc.toml.

    Stops with Ctrl-C or SIGTERM, after the requests under way have finished.
    """
    if importlib.util.find_spec("torch") is None:  # looks, without importing it
        raise Failure(
            "only the console is installed here; the engine is arc-console[engine]: `make up` in a checkout, "
            "or pip install with that extra from where this came from"
        )
    arguments = [] if profile is None else ["--profile", profile]
    for override in overrides:
        arguments += ["--set", override]
    # A thread that waits must not spin: on a shared machine spinning costs far more than waking (docs/design.md).
    # torch's OpenMP reads this when it is loaded, so it has to stand before the engine's first import.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: the engine runs in the operator's folder, and no file there may pose as a module.
    command = [sys.executable, "-P", "-m", "arc.engine.serve", *arguments]
    os.execve(sys.executable, command, environment)
