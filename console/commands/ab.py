"""`arc ab`: which of two values of a live flag is better for the traffic that an engine serves now."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from ...engine.control.protocol import NA
from .. import shown
from ..ab.experiment import Experiment, Progress, default_guards
from ..ab.metrics import METRICS, metric_of
from ..ab.plan import ALPHA, Guard, Plan, divided
from ..ab.report import Report, lines
from ..client import find
from ..durations import Duration
from ..engine_option import complete_flag, engine_option, print_json
from ..exits import Exit, Failure
from ..files import write_whole
from ..parameters import FiniteRange, NewFile


def _complete_metric(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in METRICS if name.startswith(incomplete)]


@click.command()
@click.argument("assignment", metavar="FLAG=FIRST,SECOND", shell_complete=complete_flag)
@click.option(
    "--metric",
    required=True,
    metavar="NAME",
    shell_complete=_complete_metric,
    help="What is compared: itl_p95, ttft_p50, output_tok_s ...; a wrong name lists them.",
)
@click.option(
    "--for", "seconds", type=Duration(), required=True, metavar="TIME", help="At most so long: 10m, 2h ..."
)
@click.option(
    "--block", type=Duration(), metavar="TIME", help="A value stays in force so long. [15s, or less]"
)
@click.option("--washout", type=Duration(), metavar="TIME", help="Of each block, not measured. [a fifth]")
@click.option(
    "--guard",
    "guards",
    multiple=True,
    metavar="NAME=FACTOR",
    help="Stop when it is worse by more than FACTOR in two pairs in a row; `none` for no guard. "
    "[ttft_p95=3 and itl_p95=3]",
)
@click.option(
    "--margin",
    type=FiniteRange(0, 100, min_open=True),
    metavar="PERCENT",
    help="Stop also when the difference is surely smaller than this.",
)
@click.option(
    "--alpha",
    type=FiniteRange(0.0001, 0.5),
    default=ALPHA,
    show_default=True,
    help="How often a difference may be found where there is none, all looks together.",
)
@click.option("--seed", type=int, help="Of the order of the blocks. [from the clock]")
@click.option("--out", type=NewFile(), help="Write the report as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@engine_option
def ab(
    *, assignment: str, metric: str, seconds: float, block: float | None, washout: float | None,
    guards: tuple[str, ...], margin: float | None, alpha: float, seed: int | None, out: Path | None, as_json: bool,
    engine: str | None,
) -> None:  # fmt: skip
    """Switch a live flag back and forth on the engine's own traffic and estimate what it does to a metric.

    Blocks come in pairs, one of each value in random order. The old value comes back at the end, on Ctrl-C, when the
    engine drains, and, by the engine itself, when this process dies. Ends early when decided or when a guard is hurt.
    """
    flag, values = _assigned(assignment)
    about = metric_of(metric)
    length, wash = divided(seconds, block, washout)
    plan = Plan(
        flag=flag, values=values, metric=about, seconds=seconds, block=length, washout=wash,
        guards=_guards(guards) if guards else default_guards(about, METRICS),
        alpha=alpha, margin=None if margin is None else margin / 100, seed=time.time_ns() if seed is None else seed,
    )  # fmt: skip
    line = _Line()
    experiment = Experiment(plan, find(engine), line.show)
    with _signals(experiment):
        report = experiment.run()
    line.end()
    _finish(report, out, as_json)


def _assigned(assignment: str) -> tuple[str, tuple[str, str]]:
    name, equals, text = assignment.partition("=")
    first, comma, second = text.partition(",")
    if not (name and equals and first and comma and second) or "," in second:
        raise click.BadParameter(
            f"{assignment!r}: write FLAG=FIRST,SECOND, such as sched.prefill_chunk=64,256"
        )
    return name, (first, second)


def _guards(given: tuple[str, ...]) -> tuple[Guard, ...]:
    if given == ("none",):
        return ()
    found: list[Guard] = []
    for each in given:
        name, _, text = each.partition("=")
        try:
            limit = float(text.removesuffix("x"))
        except ValueError:
            raise click.BadParameter(
                f"{each!r}: write NAME=FACTOR, such as ttft_p95=1.5, or none alone"
            ) from None
        if not 1 < limit < 1e6:
            raise click.BadParameter(f"{each!r}: a guard's factor is above 1")
        found.append(Guard(metric_of(name), limit))
    return tuple(found)


@contextmanager
def _signals(experiment: Experiment) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal end the experiment in order: the flag is given back before we go."""
    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        before[number] = signal.signal(number, lambda *_, name=name: experiment.stop(f"stopped by {name}"))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Line:
    """One line on a terminal's stderr that follows the experiment."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()

    def show(self, progress: Progress) -> None:
        if self._live and progress.report is None:
            click.echo(f"\r\x1b[K{said(progress)[: shown.width() - 1]}", nl=False, err=True)

    def end(self) -> None:
        if self._live:
            click.echo("\r\x1b[K", nl=False, err=True)


def said(progress: Progress) -> str:
    plan = progress.plan
    found = progress.estimate
    ratio = (
        f"no look yet, the first after {progress.look} pairs"
        if found is None
        else f"ratio {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"
    )
    arm = "" if progress.arm < 0 else plan.shown(progress.arm)
    spoilt = f"  {progress.spoilt} left out" if progress.spoilt else ""
    return (
        f"pair {progress.pair + 1} of {plan.pairs}  {arm}  {plan.metric.name} {ratio}{spoilt}  "
        f"{shown.seconds(progress.seconds_left)} left"
    )


def _finish(report: Report, out: Path | None, as_json: bool) -> None:
    raw = msgspec.json.format(msgspec.json.encode(report), indent=2)
    try:
        if out is not None:
            write_whole(out, raw + b"\n")
    finally:  # a disk that is full by now does not cost the report
        if as_json:
            print_json(raw)
        else:
            for line in lines(report):
                click.echo(line)
    if out is not None:
        click.echo(f"written: {out}", err=True)
    if report.restored is False or (
        report.end in ("engine", "connection") and isinstance(report.restored, NA)
    ):
        raise SystemExit(Exit.ERROR)
    if report.end == "taken over":
        raise Failure(report.why)
