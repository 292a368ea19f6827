"""`arc serve`: replaces this process by the engine's."""

from __future__ import annotations

import os
import sys

import click

from ...engine.options import settings_options
from ..engine_process import engine_command, engine_environment, require_engine


@click.command()
@settings_options
def serve(profile: str | None, overrides: tuple[str, ...]) -> None:
    """Start an engine in this folder, with the settings of its arc.toml.

    Stops with Ctrl-C or SIGTERM, after the requests under way have finished.
    """
    become_engine(profile, overrides)


def become_engine(profile: str | None, overrides: tuple[str, ...]) -> None:
    require_engine()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, engine_command(profile, overrides), engine_environment())
