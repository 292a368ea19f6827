"""`arc mark`: a named line in the history, so that what was measured can be found again."""

from __future__ import annotations

import click
import msgspec

from ...engine.control import protocol as p
from .. import shown
from ..client import connect
from ..engine_option import engine_option, json_option, print_json
from ..parameters import Line


@click.command()
@click.argument("text", nargs=-1, required=True, type=Line())
@engine_option
@json_option
def mark(text: tuple[str, ...], engine: str | None, as_json: bool) -> None:
    """Put a named line into the events and the charts."""
    if not "".join(text).strip():
        raise click.UsageError("a mark is a line of text: this one is blank")
    with connect(engine) as client:
        event = client.post("/v1/actions/mark", p.MarkBody(text=" ".join(text)), p.Marked).event
    if as_json:
        print_json(msgspec.json.encode(event))
    else:
        click.echo(f"{shown.clock(event.time)}  event {event.number}: {shown.plain(event.text)}")
