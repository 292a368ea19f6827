"""`arc bench run`: one kind of work, sent at a concurrency or a rate, several times."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from ...engine.control.protocol import NA
from .. import shown
from ..engine_option import print_json
from ..exits import Failure
from ..parameters import FiniteRange
from . import options, provenance
from .chart import Chart, Series, lines, png
from .request import Endpoint
from .result import METRICS, Cell, Pass, Result, Server, now, spread_of, write
from .runner import Pace, Runner, Site, Work, holding
from .work import BURSTGPT_BURSTINESS, SHAPES, Lengths, Plan, trace_jobs


@click.command()
@options.site_options
@click.option(
    "--work",
    "shape",
    type=options.ShapeType(),
    default="uniform",
    show_default=True,
    help="uniform, mixed, spread, burstgpt, mooncake, or a JSONL trace.",
)
@click.option(
    "--prompt", type=options.LengthsType(), default="64", show_default=True, help="Tokens: 64, or 16..512."
)
@click.option(
    "--output", type=options.LengthsType(), default="128", show_default=True, help="Tokens: 128, or 32..256."
)
@options.vocab_option
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), metavar="N", help="Requests under way at any time. [8]"
)
@click.option(
    "--rate",
    type=FiniteRange(0.001, 1_000_000),
    metavar="R",
    help="Requests a second, whatever the server does.",
)
@click.option(
    "--burstiness",
    type=FiniteRange(0.01, 1000),
    help="Shape of the gaps at a rate: 1 is Poisson, less is in bursts. [1; 0.5 for burstgpt]",
)
@click.option(
    "--most",
    type=click.IntRange(1, 10_000),
    default=1024,
    show_default=True,
    help="Most requests under way at a rate; later ones wait, and their wait counts.",
)
@click.option(
    "--requests", type=click.IntRange(1), metavar="N", help="A pass. [8 for each under way; a trace: all]"
)
@click.option(
    "--warmup", type=click.IntRange(0), metavar="N", help="Requests before the passes. [as are under way]"
)
@options.bound_option
@options.set_option
@options.repeats_option
@options.seed_option
@options.out_options
def run(
    *, url: str | None, engine: str | None, model: str | None, endpoint: Endpoint, timeout: float, shape: str | Path,
    prompt: Lengths, output: Lengths, vocab: int, concurrency: int | None, rate: float | None,
    burstiness: float | None, most: int, requests: int | None, warmup: int | None, bounds: tuple[str, ...],
    assignments: tuple[str, ...], repeats: int, seed: int, out: Path | None, as_json: bool, plot: str | None,
) -> None:  # fmt: skip
    """Send one kind of work several times and print medians with least and most.

    At a concurrency each answer makes room for the next request. At a rate requests come when they come, and every
    latency counts from that moment. 429, 503 and other failures are counted by kind and never sent again.
    """
    if concurrency is not None and rate is not None:
        raise click.UsageError("--concurrency and --rate are two ways: give one")
    picture = options.checked_plot(plot)
    kept = options.bounds_of(bounds)
    changes = options.assigned(assignments)
    at = options.site_of(url, engine, model, endpoint, timeout)
    trace = shape if isinstance(shape, Path) else None
    pace = _pace(trace, shape, vocab, at, concurrency, rate, burstiness, most)
    under_way = pace.concurrency or 8
    kind = "uniform" if isinstance(shape, Path) else SHAPES[SHAPES.index(shape)]  # pyright: ignore[reportArgumentType]
    plan = Plan(kind, prompt, output, under_way, vocab, at.context)
    _fits(plan, trace)
    if endpoint == "chat" and (
        trace is None or any(not isinstance(job.prompt, str) for job in _first(trace, plan))
    ):
        raise Failure("--endpoint chat sends text: give --work a trace whose lines have a prompt")
    work = Work(
        plan=plan,
        trace=trace,
        requests=requests or (len(trace_jobs(trace, vocab, at.context, 0)) if trace else 8 * under_way),
        warmup=under_way if warmup is None else warmup,
    )
    passes: list[Pass] = []
    with (
        bar(work.warmup + repeats * work.requests, "requests") as tick,
        holding(at, changes, "arc bench run") as held,
    ):
        runner = Runner(at, kept, tick)
        runner.warm_up(work, Pace(under_way, None), seed)
        for number in range(repeats):
            passes.append(runner.one(work, pace, seed + number, held=held))
    cell = Cell(
        name=str(shape), labels={}, flags=changes, revision=at.server.revision, passes=tuple(passes)
    )  # fmt: skip
    command: dict[str, Any] = {
        "work": str(shape), "prompt": str(prompt), "output": str(output), "vocab": vocab, "endpoint": endpoint,
        "concurrency": pace.concurrency, "rate": pace.rate, "burstiness": pace.burstiness, "most": pace.most,
        "requests": work.requests, "warmup": work.warmup, "repeats": repeats, "seed": seed, "bounds": list(bounds),
    }  # fmt: skip
    result = Result(
        kind="run",
        created=now(),
        command=command,
        client=provenance.client(),
        server=at.server,
        cells=(cell,),
    )
    finish(result, [*head(at.server), *table(cell)], charts(cell), out, as_json, plot, picture)
    if not any(each.finished for each in passes):
        raise Failure("no request ended well")


def _pace(
    trace: Path | None, shape: str | Path, vocab: int, at: Site, concurrency: int | None, rate: float | None,
    burstiness: float | None, most: int,
) -> Pace:  # fmt: skip
    """A trace with times is sent at its own times unless told otherwise."""
    if rate is not None:
        chosen = BURSTGPT_BURSTINESS if shape == "burstgpt" else 1.0
        return Pace(None, rate, burstiness or chosen, most)
    timed = trace is not None and all(job.at is not None for job in trace_jobs(trace, vocab, at.context, 0))
    if concurrency is None and timed:
        return Pace(None, None, most=most)
    return Pace(concurrency or 8, None)


def _first(trace: Path, plan: Plan) -> Iterator[Any]:
    return iter(trace_jobs(trace, plan.vocab, plan.context, 0))


def _fits(plan: Plan, trace: Path | None) -> None:
    """Whether the longest request can be served: found out before the run, not in its errors."""
    longest = plan.prompt.high + plan.output.high
    if trace is None and plan.shape != "mooncake" and longest > plan.context:
        raise Failure(
            f"{longest} tokens, prompt and output, do not fit into the model's context of {plan.context}"
        )


# -- what all benches print -------------------------------------------------------------------------------------------


@contextmanager
def bar(length: int, what: str) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=length, label=what, file=sys.stderr, show_pos=True) as shown_bar:
        yield lambda: shown_bar.update(1)


def head(server: Server) -> list[str]:
    """Which engine, in two lines."""
    lines_ = [f"{server.url}  {named(server)}"]
    if server.differs:
        changed = "  ".join(f"{name}={value}" for name, value in server.differs.items())
        lines_.append(f"flags that differ from profile {server.profile}: {changed}")
    return lines_


def named(server: Server) -> str:
    """The build, in words."""
    version, revision, device = (
        f"NA ({value.na})" if isinstance(value, NA) else value
        for value in (server.version, server.revision, server.device)
    )
    return f"{shown.plain(server.model)}, version {version}, revision {revision}, device {device}"


def table(cell: Cell) -> list[str]:
    """One cell's numbers: medians over the passes, the least and the most."""
    first = cell.passes[0]
    lines_ = [
        f"{len(cell.passes)} passes of {first.sent:,} requests; median (least .. most)",
        *(_row(cell, metric) for metric in METRICS),
    ]
    if first.engine is None:
        lines_.append(f"effective batch  NA ({first.no_engine})")
    lines_ += _troubles(cell)
    return [line for line in lines_ if line]


def _row(cell: Cell, metric: str) -> str:
    spread = spread_of(cell.passes, metric)
    if spread is None:
        return ""
    label = METRICS[metric][0]
    return f"{label:<26} {_number(spread.median):>10}   ({_number(spread.least)} .. {_number(spread.most)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _troubles(cell: Cell) -> list[str]:
    errors: dict[str, int] = {}
    messages: dict[str, str] = {}
    for each in cell.passes:
        for kind, count in each.errors.items():
            errors[kind] = errors.get(kind, 0) + count
            messages.setdefault(kind, each.messages[kind][0])
    found = [
        f"FAILED {count:,} x {kind}: {shown.plain(messages[kind])[:160]}" for kind, count in errors.items()
    ]
    late = sum(each.late for each in cell.passes)
    if late:
        found.append(
            f"{late:,} requests were sent late: --most were under way; their wait is in the latencies"
        )
    return found


def charts(cell: Cell) -> list[Chart]:
    """The distribution of first tokens and of gaps, of the pass in the middle."""
    chosen = sorted(cell.passes, key=lambda each: each.output_rate)[len(cell.passes) // 2]
    points = tuple(f"{share}" for share in range(0, 101, 5))
    found: list[Chart] = []
    for title, latency in (("time to first token", chosen.ttft), ("time between tokens", chosen.itl)):
        if latency is not None:
            values = tuple(1000 * value for value in latency.curve)
            curve = Series("of the pass in the middle", values)
            found.append(Chart(f"{title}, ms", "percentile", points, (curve,), "ms"))
    return found


def finish(
    result: Result,
    text: list[str],
    drawn: list[Chart],
    out: Path | None,
    as_json: bool,
    plot: str | None,
    picture: Path | None,
) -> None:
    """Print, draw and write. The file comes first: no long run is lost to a closed pipe, nor to a full disk."""
    try:
        if out is not None:
            write(out, result)
    finally:
        if as_json:
            print_json(msgspec.json.encode(result))
        else:
            for line in text:
                click.echo(line)
            for chart in drawn if plot is not None else ():
                for line in ["", *lines(chart, shown.width())]:
                    click.echo(line)
    if picture is not None:
        png(drawn, picture, f"{named(result.server)}, {result.created}" if result.server else result.created)
    for path in filter(None, (out, picture)):
        click.echo(f"written: {path}", err=True)
