"""`arc check`: is this folder's configuration right?"""

from __future__ import annotations

import os
from pathlib import Path

import click

from ...engine.config import ConfigError, load
from ...engine.flags import show
from ...engine.options import settings_options
from ...engine.preflight import preflight
from ..exits import Failure


@click.command()
@settings_options
def check(profile: str | None, overrides: tuple[str, ...]) -> None:
    """Check what `arc serve` would run in this folder, without starting it.

    Lists every problem with its place and exits with 1, or says what differs from the profile and exits with 0.
    What the engine alone can know is not checked: weights and tokenizer, devices, memory, and whether the port and
    the name are free.
    """
    try:
        settings = load(folder=Path.cwd(), profile=profile, environ=os.environ, overrides=overrides)
        if missing := preflight(settings):
            raise ConfigError(missing)
    except ConfigError as error:
        count = len(error.problems)
        problems = f"{count} problem{'s' if count > 1 else ''} in the configuration"
        raise Failure(f"{problems}\n{error}") from None
    click.echo(f"profile {settings.profile} (by {settings.profile_from.where})")
    for name in settings.differs():
        click.echo(f"  {name} = {show(settings[name])}  ({settings.origin(name).where})")
    click.echo("ok")
