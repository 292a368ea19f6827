"""`arc drain`: let the engine finish its work and stop."""

from __future__ import annotations

import time

import click
import msgspec

from ...engine.control import protocol as p
from .. import shown
from ..client import Client, NoEngine, connect
from ..durations import Duration
from ..engine_option import engine_option, json_option, print_json, why_option

_POLL = 0.5


@click.command()
@click.option("--deadline", type=Duration(), metavar="TIME", help="Cancel what is left after 30s, 5m, 2h ...")
@click.option("--wait", is_flag=True, help="Return when the engine has stopped.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@why_option
@engine_option
@json_option
def drain(
    *, deadline: float | None, wait: bool, yes: bool, reason: str, engine: str | None, as_json: bool
) -> None:
    """Take no new requests, finish those there are, then stop the engine."""
    with connect(engine) as client:
        hello = client.get("/v1/hello", p.Hello)
        if not yes:
            now = client.get_fresh("/v1/snapshot", p.Snapshot)
            total = now.running + now.waiting
            click.confirm(f"Drain {hello.name} (pid {hello.pid}, {total} sequences) and stop it?", abort=True)
        started = client.post(
            "/v1/actions/drain", p.DrainBody(deadline=deadline, reason=reason), p.DrainStarted
        )
        if as_json:
            print_json(msgspec.json.encode(started))
        else:
            until = (
                ""
                if started.until is None
                else f"; what is left at {shown.clock(started.until)} is cancelled"
            )
            click.echo(f"draining {started.running} running and {started.waiting} waiting{until}")
        if wait:
            _wait(client)
            click.echo("stopped", err=as_json)


def _wait(client: Client) -> None:
    while True:
        time.sleep(_POLL)
        try:
            client.get("/v1/hello", p.Hello)
        except NoEngine:
            return
