"""`arc sequences` and `arc cancel`: what runs, what waits and why, and ending it."""

from __future__ import annotations

import click
import msgspec

from ...engine.control import protocol as p
from .. import shown
from ..client import connect
from ..engine_option import engine_option, json_option, print_json, why_option
from ..exits import Failure

_HEADER = (
    "id",
    "status",
    "prompt",
    "output",
    "of",
    "pages",
    "age",
    "first token",
    "last token",
    "why it waits",
)
_RIGHT = frozenset(range(2, 9))


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="Show at most so many: those that run, then the first in line. Without it, all.",
)
@engine_option
@json_option
def sequences(limit: int | None, engine: str | None, as_json: bool) -> None:
    """List the sequences that run or wait, and why each one waits."""
    with connect(engine) as client:
        answer = client.get_fresh(
            "/v1/sequences",
            p.Sequences,
            lambda found: found.listed >= (found.total if limit is None else min(limit, found.total)),
            limit=limit,
        )
    if as_json:
        print_json(msgspec.json.encode(answer))
        return
    if answer.total:
        for line in shown.table(_HEADER, [_row(each) for each in answer.sequences], _RIGHT):
            click.echo(line)
    else:
        click.echo("no sequence runs or waits")
    if answer.listed < answer.total:
        click.echo(f"{answer.listed:,} of {answer.total:,}: {answer.total - answer.listed:,} more")
    if answer.age > 1:
        click.echo(f"as of {shown.seconds(answer.age)} ago: the engine has come to no step border since")


def _row(sequence: p.SequenceView) -> tuple[str, ...]:
    return (
        shown.plain(sequence.id),
        sequence.status,
        str(sequence.prompt_tokens),
        str(sequence.output_tokens),
        str(sequence.max_tokens),
        str(sequence.pages),
        shown.seconds(sequence.age),
        shown.optional_seconds(sequence.first_token),
        shown.optional_seconds(sequence.since_token),
        sequence.wait_reason or "",
    )


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "all_", is_flag=True, help="Cancel everything that runs or waits.")
@click.option("--yes", is_flag=True, help="Do not ask before --all.")
@why_option
@engine_option
@json_option
def cancel(
    *, ids: tuple[str, ...], all_: bool, yes: bool, reason: str, engine: str | None, as_json: bool
) -> None:
    """Cancel sequences by id. Returns when they have ended and says how many are left."""
    if all_ == bool(ids):
        raise click.UsageError("name the ids to cancel (`arc sequences` lists them), or give --all")
    with connect(engine) as client:
        if all_ and not yes:
            now = client.get_fresh("/v1/snapshot", p.Snapshot)
            total = now.running + now.waiting
            if total:
                click.confirm(f"Cancel all {total} sequences?", abort=True)
            elif not as_json:
                click.echo("no sequence runs or waits: there is nothing to cancel")
                return
        body = p.CancelBody(ids=ids, all=all_, reason=reason)
        done = client.post("/v1/actions/cancel", body, p.Cancelled)
    if as_json:
        print_json(msgspec.json.encode(done))
    else:
        click.echo(f"cancelled {len(done.ended)} at step {done.step:,}; {done.left} left")
    if done.unknown:
        unknown = ", ".join(map(shown.plain, done.unknown))
        raise Failure(f"neither running nor waiting: {unknown}; they may have ended already")
