"""`arc events`: what happened, and with -f what happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click
import msgspec

from ...engine.control import protocol as p
from .. import shown
from ..client import Client, connect
from ..engine_option import engine_option, json_option
from ..exits import Failure


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on showing them as they happen.")
@click.option(
    "-n", "--lines", default=50, show_default=True, type=click.IntRange(0, 4096), help="How many past ones."
)
@engine_option
@json_option
def events(follow: bool, lines: int, engine: str | None, as_json: bool) -> None:
    """Show flag changes, refusals, cancels, preemptions, faults and marks. --json prints one object a line."""
    with connect(engine) as client:
        answer = client.get("/v1/events", p.Events, limit=4096)
        past = answer.events[-lines:] if lines else ()
        if not as_json and answer.gap is not None and len(past) == len(answer.events):
            click.echo(_gap(answer.gap))
        for event in past:
            click.echo(_line(event, as_json))
        if not (answer.events or follow or as_json):
            click.echo("no events yet")
        if follow:
            with contextlib.suppress(KeyboardInterrupt):
                for line in _follow(client, answer.last, as_json):
                    click.echo(line)


def _follow(client: Client, last: int, as_json: bool) -> Iterator[str]:
    for message in client.stream(hz=0, since=last):
        if message.event == "event":
            yield _line(msgspec.json.decode(message.data, type=p.Event), as_json)
        elif message.event == "gap":
            yield message.data.decode() if as_json else _gap(msgspec.json.decode(message.data, type=p.Gap))
        elif message.event == "bye":
            raise Failure(
                f"the engine ended the stream: {msgspec.json.decode(message.data, type=p.Bye).reason}"
            )


def _line(event: p.Event, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(event).decode()
    who = "" if event.uid is None else f"  (uid {event.uid} pid {event.pid})"
    step = "" if event.step is None else f"  step {event.step:,}"
    return f"{shown.clock(event.time)}  {event.kind:<10} {shown.plain(event.text)}{step}{who}"


def _gap(gap: p.Gap) -> str:
    return f"-- {gap.dropped} events before these are no longer kept (numbers {gap.first} to {gap.last})"
