"""`arc status`: one glance at a running engine."""

from __future__ import annotations

import click
import msgspec

from ...engine.control import protocol as p
from ...engine.flags import show
from .. import shown
from ..client import connect
from ..engine_option import engine_option, json_option, print_json
from ..parameters import FiniteRange


class Status(msgspec.Struct, frozen=True):
    """What `arc status --json` prints."""

    hello: p.Hello
    snapshot: p.Snapshot


@click.command()
@engine_option
@json_option
@click.option(
    "--window",
    default=10.0,
    show_default=True,
    type=FiniteRange(0.1, 900),
    help="Seconds that rates are over.",
)
def status(engine: str | None, as_json: bool, window: float) -> None:
    """Show what the engine is doing now."""
    with connect(engine) as client:
        hello = client.get("/v1/hello", p.Hello)
        snapshot = client.get_fresh("/v1/snapshot", p.Snapshot, window=window)
        if as_json:
            print_json(msgspec.json.encode(Status(hello, snapshot)))
            return
        changed = client.get("/v1/flags", p.Flags) if snapshot.changed else None
    for line in [*_head(hello, snapshot), *_now(snapshot), *_window(snapshot), *_flags(changed)]:
        click.echo(line)


def _head(hello: p.Hello, snapshot: p.Snapshot) -> list[str]:
    size = f"{hello.parameters / 1e6:,.1f} M parameters"
    return [
        f"{hello.name}  {shown.plain(hello.model)}  {hello.model_type}  {size}  {hello.dtype} on {hello.device}",
        f"{snapshot.state}  up {shown.seconds(snapshot.uptime)}  pid {hello.pid}  "
        f"arc {hello.version} ({hello.revision})",
    ]


def _now(snapshot: p.Snapshot) -> list[str]:
    reasons = " · ".join(f"{count} {reason}" for reason, count in snapshot.waiting_by_reason.items() if count)
    pages = snapshot.pages
    lines = [
        f"running    {snapshot.running}   effective batch {snapshot.effective_batch}",
        f"waiting    {snapshot.waiting}" + (f"   {reasons}" if reasons else ""),
        f"KV pages   {pages.used} used   {pages.cached} cached   {pages.free} free   of {pages.total}",
        f"last step  {_last_step(snapshot)}",
    ]
    depth = snapshot.speculation.depth
    if isinstance(depth, int) and depth:
        lines.append(f"speculation  depth {depth}")
    if snapshot.age > 1:
        lines.append(
            f"these are {shown.seconds(snapshot.age)} old: the engine has come to no step border since"
        )
    return lines


def _last_step(snapshot: p.Snapshot) -> str:
    last = (
        "none yet"
        if snapshot.step_age is None
        else f"{snapshot.step:,}, {shown.seconds(snapshot.step_age)} ago"
    )
    return (
        last
        if snapshot.step_open is None
        else f"{last}   one under way for {shown.seconds(snapshot.step_open)}"
    )


def _window(snapshot: p.Snapshot) -> list[str]:
    """What happened over one stated window. Rates without events in it are left out: they would read as zero."""
    window = snapshot.window
    rates: list[str] = []
    if window.generation_tokens:
        rates.append(f"output {window.generation_tokens / window.seconds:,.1f} tok/s")
    if window.prompt_tokens:
        rates.append(f"prompt {window.prompt_tokens / window.seconds:,.1f} tok/s")
    if window.steps:
        rates.append(
            f"step {1000 * window.step_seconds / window.steps:.1f} ms, {window.rows / window.steps:.1f} rows"
        )
    if window.prefix_queries:
        share = 100 * window.prefix_hits / window.prefix_queries
        rates.append(f"prefix hit {share:.1f} % of {window.prefix_queries:,} tokens")
    if drafted := sum(window.drafted):
        by_place = " ".join(
            f"{100 * right / count:.0f}"
            for right, count in zip(window.accepted, window.drafted, strict=True)
            if count
        )
        per_row = 1 + sum(window.accepted) / window.draft_rows
        rates.append(
            f"{per_row:.2f} tokens a speculating row, {by_place} % of {drafted:,} drafts right by place"
        )
    if window.preemptions:
        rates.append(f"{window.preemptions} preempted")
    if window.faults:
        rates.append(f"{window.faults} steps failed")
    lines = [f"last {shown.seconds(window.seconds)}: " + (" · ".join(rates) if rates else "nothing ran")]
    for name, each in window.latency.items():
        values = "  ".join(
            f"{label} {_milliseconds(value)}"
            for label, value in (("p50", each.p50), ("p95", each.p95), ("p99", each.p99))
        )
        lines.append(f"  {name.replace('_', ' '):<15}{values}  of {each.count:,}")
    return lines


def _milliseconds(value: float | p.NA) -> str:
    return f"NA ({value.na})" if isinstance(value, p.NA) else f"{1000 * value:,.1f} ms"


def _flags(flags: p.Flags | None) -> list[str]:
    if flags is None:
        return ["flags as in the profile"]
    lines = ["flags that differ from the profile"]
    for flag in flags.flags:
        if flag.changed:
            until = "" if flag.until is None or flag.then is None else (
                f", back to {show(flag.then)} at {shown.clock(flag.until)}"
            )  # fmt: skip
            lines.append(f"  {flag.name} = {show(flag.value)}  ({shown.plain(flag.origin.where)}{until})")
    return lines
