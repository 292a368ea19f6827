"""`arc profiles`: the operating points there are, and what each would run here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from ...engine.config import ConfigError, Settings, load, no_profile, profile_description, profile_files
from ...engine.flags import show
from ...engine.options import complete_profile
from ..exits import Failure


@click.group(invoke_without_command=True)
@click.pass_context
def profiles(context: click.Context) -> None:
    """List the profiles that `arc serve --profile NAME` can run in this folder."""
    if context.invoked_subcommand is not None:
        return
    files = profile_files(Path.cwd())
    width = max((len(name) for name in files), default=0)
    for name, path in files.items():
        click.echo(f"{name:<{width}}  {profile_description(path)}")


@profiles.command("show")
@click.argument("name", shell_complete=complete_profile)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_profile(name: str, as_json: bool) -> None:
    """Show every value that profile NAME would run with in this folder, and where it comes from."""
    if name not in (files := profile_files(Path.cwd())):
        raise Failure(no_profile(name, files))
    try:
        settings = load(folder=Path.cwd(), profile=name, environ=os.environ)
    except ConfigError as error:
        raise Failure(str(error)) from None
    if as_json:
        click.echo(json.dumps(_as_json(settings), indent=2))
        return
    rows = [(flag, show(settings[flag]), _source(settings, flag)) for flag in settings]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for flag, value, source in rows:
        click.echo(f"{flag:<{widths[0]}}  {value:<{widths[1]}}  {source}")


def _source(settings: Settings, flag: str) -> str:
    """The place of the effective value, and the other value that it covers: "arc.toml:4, over 64 (the registry)"."""
    *covered, effective = settings.layers(flag)
    others = [each for each in covered if each.value != effective.value]
    if not others:
        return effective.origin.where
    return f"{effective.origin.where}, over {show(others[-1].value)} ({others[-1].origin.where})"


def _as_json(settings: Settings) -> dict[str, object]:
    flags = {
        flag: {
            "value": settings[flag],
            "layers": [
                {"layer": each.origin.layer, "where": each.origin.where, "value": each.value}
                for each in settings.layers(flag)
            ],
        }
        for flag in settings
    }
    return {"profile": settings.profile, "flags": flags}
