"""`arc trim`: the allocator's free buffers back to the system, and an `auto` cap from what is free now."""

from __future__ import annotations

import click
import msgspec

from ...engine.control import protocol as p
from .. import shown
from ..client import connect
from ..engine_option import engine_option, json_option, print_json, why_option


@click.command()
@why_option
@engine_option
@json_option
def trim(reason: str, engine: str | None, as_json: bool) -> None:
    """Give the allocator's free buffers back to the system; with alloc.cap_mib = auto its cap is derived anew."""
    with connect(engine) as client:
        done = client.post("/v1/actions/trim", p.ReasonBody(reason=reason), p.Trimmed)
    if as_json:
        print_json(msgspec.json.encode(done))
    else:
        click.echo(shown.trimmed(done))
