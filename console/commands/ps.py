"""`arc ps`: the engines on this machine."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ...engine.control import paths
from ...engine.control import protocol as p
from .. import shown
from ..client import Client, NoEngine, Refused
from ..engine_option import json_option, print_json
from ..exits import Exit

_TIMEOUT = 5.0
_HEADER = ("name", "state", "pid", "model", "device", "up", "running", "waiting", "socket")
_RIGHT = frozenset({2, 5, 6, 7})


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One socket: who answers there, or why nobody does."""

    name: str
    socket: str
    hello: p.Hello | None = None
    snapshot: p.Snapshot | None = None
    trouble: str = ""


@click.command()
@json_option
def ps(as_json: bool) -> None:
    """List the engines that run on this machine, as far as you may see them."""
    listed = [_look(path) for path in paths.sockets()]
    if as_json:
        print_json(msgspec.json.encode(listed))
    elif not listed:
        click.echo("no engine runs here: start one with `arc serve`")
    else:
        for line in shown.table(_HEADER, [_row(each) for each in listed], _RIGHT):
            click.echo(line)
    if not any(each.hello for each in listed):
        raise click.exceptions.Exit(Exit.NO_ENGINE)


def _look(path: Path) -> Listed:
    try:
        with Client(path, timeout=_TIMEOUT) as client:
            hello = client.get("/v1/hello", p.Hello)
            return Listed(
                name=path.stem, socket=str(path), hello=hello, snapshot=client.get("/v1/snapshot", p.Snapshot)
            )
    except NoEngine as error:
        return Listed(name=path.stem, socket=str(path), trouble=error.message)
    except Refused as error:
        return Listed(name=path.stem, socket=str(path), trouble=error.problem.message)


def _row(each: Listed) -> tuple[str, ...]:
    if each.hello is None or each.snapshot is None:
        return (each.name, "no answer", "--", "--", "--", "--", "--", "--", each.socket)
    hello, snapshot = each.hello, each.snapshot
    return (
        each.name,
        snapshot.state,
        str(hello.pid),
        shown.plain(hello.model),
        hello.device,
        shown.seconds(snapshot.uptime),
        str(snapshot.running),
        str(snapshot.waiting),
        each.socket,
    )
