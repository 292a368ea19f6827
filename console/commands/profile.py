"""`arc profile`: a timeline of single calls in a file, and two such files compared."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from ...engine.control import protocol as p
from ...engine.control import span_messages as s
from .. import shown
from ..client import Client, find
from ..engine_option import engine_option
from ..exits import Failure
from ..files import write_whole
from ..held_flags import HeldFlags, flags_of
from ..parameters import FiniteRange, NewFile
from ..span_compare import Pair, differences, pairs, read_report
from ..span_tree import build_line, proof_line
from ..trace_events import document
from .spans import ask

_DETAILS = ("step", "layer", "op")
_SLACK = (
    10.0  # seconds past the recording until the engine puts the flags back by itself, should this be killed
)


@click.command()
@engine_option
@click.option("--seconds", default=10.0, show_default=True, type=FiniteRange(0.1, 600), help="How long.")
@click.option("--out", type=NewFile(), help="The file: Chrome's trace event format.")
@click.option(
    "--detail", default="op", show_default=True, type=click.Choice(_DETAILS), help="How deep spans go."
)
@click.option("--compare", nargs=2, type=click.Path(path_type=Path, dir_okay=False), metavar="A B",
              help="Compare two such files, or two of `arc spans --json`; no engine is asked.")  # fmt: skip
def profile(
    engine: str | None, seconds: float, out: Path | None, detail: str, compare: tuple[Path, Path] | None
) -> None:
    """Record every call of some seconds and write them as a timeline, which ui.perfetto.dev opens.

    Profiling is turned on for that time alone. It is the engine that puts the old flags back, so it does so too when
    this command is killed.
    """
    if compare is not None:
        for line in _comparison(*(read_report(path) for path in compare)):
            click.echo(line)
        return
    if out is None:
        raise click.UsageError("name the file: --out trace.json (or two to --compare)")
    path = find(engine)
    with Client(path) as client:
        name = client.get("/v1/hello", p.Hello).name
    trace, report = _capture(path, seconds, detail)
    write_whole(out, document(trace, report, name))
    for line in _summary(trace, out):
        click.echo(line)


def _capture(path: Path, seconds: float, detail: str) -> tuple[s.Trace, s.SpanReport]:
    """What is recorded is read before the flags go back: another detail, or the one from before, begins anew."""
    wanted: dict[str, p.Value] = {"profile.enabled": True, "profile.detail": detail}
    with Client(path) as client:
        flags = flags_of(client)
    held = HeldFlags(path, "arc profile", seconds + _SLACK)
    if any(flags[name].value != value or flags[name].until is not None for name, value in wanted.items()):
        held.change(wanted)
    try:
        began = time.monotonic()
        time.sleep(seconds)
        with Client(path) as client:
            return _read(client, time.monotonic() - began)
    finally:
        held.give_back()


def _read(client: Client, passed: float) -> tuple[s.Trace, s.SpanReport]:
    answer = msgspec.json.decode(client.raw("GET", "/v1/trace", query={"seconds": min(900.0, passed)}))
    if "na" in answer:
        raise Failure(answer["na"])
    trace = msgspec.convert(answer, s.Trace)
    if not trace.steps:
        raise Failure(f"no step ran in these {shown.seconds(passed)}: there is nothing to write")
    return trace, ask(client, min(900.0, max(1.0, passed)))


def _summary(trace: s.Trace, out: Path) -> list[str]:
    kinds = {kind: sum(step.kind == kind for step in trace.steps) for kind in ("decode", "prompt", "mixed")}
    steps = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
    lines = [
        build_line(trace.build),
        proof_line(trace.proof),
        f"{len(trace.path):,} spans of {len(trace.steps):,} steps ({steps}) in {shown.seconds(trace.seconds)}",
    ]
    if trace.cut:
        lines.append(
            "the beginning is cut off: the engine keeps so many calls and no more; record fewer seconds"
        )
    if isinstance(trace.device_start, p.NA):
        lines.append(f"no device track: {trace.device_start.na}")
    return [*lines, f"written: {out}   (open it at https://ui.perfetto.dev)"]


def _comparison(before: s.SpanReport, after: s.SpanReport) -> list[str]:
    lines = [
        f"A  {build_line(before.build)}",
        f"   {proof_line(before.proof)}",
        f"B  {build_line(after.build)}",
        f"   {proof_line(after.proof)}",
    ]
    builds = differences(before.build, after.build)
    lines.append(
        f"they differ in: {'; '.join(builds)}" if builds else "both are of one build with the same flags"
    )
    steps = {kind.kind: kind for kind in before.kinds}, {kind.kind: kind for kind in after.kinds}
    for kind, found in pairs(before, after).items():
        old, new = (_steps(each.get(kind)) for each in steps)
        lines += ["", f"{kind}: A {old}, B {new}; milliseconds a step"]
        head = ("span", "A", "B", "B - A", "B / A")
        lines += shown.table(head, [_compared(pair) for pair in found], frozenset((1, 2, 3, 4)))
    return lines


def _steps(kind: s.KindSpans | None) -> str:
    return "no step" if kind is None else f"{kind.steps:,} steps of {kind.rows / kind.steps:.1f} rows"


def _compared(pair: Pair) -> tuple[str, ...]:
    node = pair.node
    return (
        "  " * node.depth + shown.plain(node.name),
        "--" if pair.before is None else f"{1000 * pair.before.wall:,.3f}",
        "--" if pair.after is None else f"{1000 * pair.after.wall:,.3f}",
        "--" if pair.difference is None else f"{1000 * pair.difference:+,.3f}",
        "--" if pair.ratio is None else f"{pair.ratio:.2f}",
    )
