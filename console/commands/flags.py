"""`arc flags` and `arc get`: what the settings are, and where each value came from."""

from __future__ import annotations

from fnmatch import fnmatchcase

import click
import msgspec

from ...engine.control import protocol as p
from ...engine.flags import did_you_mean, show
from .. import shown
from ..client import Client, connect
from ..engine_option import complete_flag, engine_option, json_option, print_json
from ..exits import Failure


@click.command()
@click.argument("pattern", required=False, shell_complete=complete_flag)
@click.option("--changed", is_flag=True, help="Only those whose value is not the profile's.")
@engine_option
@json_option
def flags(pattern: str | None, changed: bool, engine: str | None, as_json: bool) -> None:
    """List flags: value, source, bounds, reach, meaning.

    PATTERN is a part of a name, or has * and ? for any text and any character.
    """
    with connect(engine) as client:
        answer = client.get("/v1/flags", p.Flags)
    names = [flag.name for flag in answer.flags]
    if pattern is not None:
        chosen = {name for name in names if _matches(name, pattern)}
        if not chosen:
            raise Failure(f"no flag matches {pattern!r}{did_you_mean(pattern, names)}")
        names = [name for name in names if name in chosen]
    wanted = [flag for flag in answer.flags if flag.name in names and (flag.changed or not changed)]
    if as_json:
        print_json(msgspec.json.encode(p.Flags(version=answer.version, flags=tuple(wanted))))
        return
    if not wanted:
        click.echo("none: every flag that was asked for has its profile's value")
        return
    rows = [
        (flag.name, show(flag.value), _source(flag), flag.allowed, flag.reach, flag.meaning)
        for flag in wanted
    ]
    for line in shown.table(("flag", "value", "source", "allowed", "reach", "meaning"), rows):
        click.echo(line)


@click.command()
@click.argument("name", shell_complete=complete_flag)
@engine_option
@json_option
def get(name: str, engine: str | None, as_json: bool) -> None:
    """Print one flag's value, and nothing else."""
    with connect(engine) as client:
        flag = flag_of(client, name)
    if as_json:
        print_json(msgspec.json.encode(flag))
    else:
        click.echo(show(flag.value))


def flag_of(client: Client, name: str) -> p.FlagView:
    """The engine's flag, or Failure with the nearest names."""
    answer = client.get("/v1/flags", p.Flags)
    for flag in answer.flags:
        if flag.name == name:
            return flag
    near = did_you_mean(name, [flag.name for flag in answer.flags])
    raise Failure(f"there is no flag {name!r}{near or '; `arc flags` lists them'}")


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) if "*" in pattern or "?" in pattern else pattern in name


def _source(flag: p.FlagView) -> str:
    where = shown.plain(flag.origin.where)
    if flag.until is not None and flag.then is not None:
        return f"{where}, {show(flag.then)} from {shown.clock(flag.until)}"
    return where
