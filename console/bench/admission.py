"""`arc bench admission`: what bucketed and ragged admission make of uniform and of mixed lengths.

Four arms at several concurrencies: A bucketed and uniform, B bucketed and mixed, C ragged and uniform, D ragged and
mixed. Shattering predicts that tok/s(B) / tok/s(A) falls as the concurrency grows; flat at 1 refutes it for that work.
The arms of one concurrency send the same numbers of prompt and output tokens, so at 1 they must agree: else something
other than admission differs, and the run is void.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ...engine.control.protocol import NA, Value
from .. import shown
from ..exits import Failure
from ..held_flags import flags_of
from ..parameters import FiniteRange
from . import engines, options, provenance
from .chart import Chart, Series
from .load import Bounds
from .request import Endpoint
from .result import Cell, Pass, Result, Spread, Verdict, now
from .run import bar, finish, head
from .runner import Pace, Runner, Site, Work, holding
from .work import Job, Lengths, Plan, balanced, token_ids

ARMS = ("A", "B", "C", "D")
BUCKETED = frozenset("AB")
MIXED = frozenset("BD")
_WARM_UP = 4  # requests


@dataclass(frozen=True, slots=True)
class ArmWork(Work):
    """The same lengths for all arms that send mixed ones, their mean for the others; other tokens for each."""

    arm: str = "A"

    def jobs(self, seed: int) -> Iterator[Job]:
        lengths = random.Random(f"lengths {self.plan.rows} {seed}")
        ids = random.Random(f"{self.arm} {self.plan.rows} {seed}")
        prompts = balanced(self.plan.prompt, self.requests, lengths)
        outputs = balanced(self.plan.output, self.requests, lengths)
        if self.arm not in MIXED:
            prompts, outputs = _evened(prompts), _evened(outputs)
        for prompt, output in zip(prompts, outputs, strict=True):
            yield Job(token_ids(ids, self.plan.vocab, prompt), output)


def _evened(lengths: list[int]) -> list[int]:
    """As many, with the same sum, none more than one token from another."""
    low, more = divmod(sum(lengths), len(lengths))
    return [low + (index < more) for index in range(len(lengths))]


class _Sizes(click.ParamType):
    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            sizes = tuple(sorted({int(each) for each in str(value).split(",")}))
        except ValueError:
            self.fail(f"{value!r}: write numbers with commas, such as 1,8,32", param, ctx)
        if sizes[0] != 1 or len(sizes) < 2 or sizes[-1] > 1024:
            self.fail(
                f"{value!r}: 1, where the arms must agree, and at least another up to 1024",
                param,
                ctx,
            )
        return sizes


@click.command()
@options.site_options
@click.option("--start", is_flag=True, help="Start an engine of its own for it; --model is then its folder.")
@click.option(
    "--sizes", type=_Sizes(), default="1,8,32,64,128", show_default=True, help="Requests under way."
)
@click.option(
    "--prompt", type=options.LengthsType(), default="32..512", show_default=True, help="Of mixed prompts."
)
@click.option(
    "--output", type=options.LengthsType(), default="32..256", show_default=True, help="Of mixed outputs."
)
@options.vocab_option
@click.option(
    "--rounds",
    type=click.IntRange(
        2
    ),  # of one round all is sent at once, and the time that is measured ends with the last sent
    default=3,
    show_default=True,
    help="Requests for each under way.",
)
@click.option(
    "--losers",
    type=click.Choice(["wait", "preempt"]),
    default="wait",
    show_default=True,
    help="What rows outside the bucket do.",
)
@click.option(
    "--tolerance",
    type=FiniteRange(0.01, 1),
    default=0.15,
    show_default=True,
    help="Within which arms agree and a curve is flat.",
)
@options.repeats_option
@options.seed_option
@options.out_options
def admission(
    *, url: str | None, engine: str | None, model: str | None, endpoint: Endpoint, timeout: float, start: bool,
    sizes: tuple[int, ...], prompt: Lengths, output: Lengths, vocab: int, rounds: int, losers: str,
    tolerance: float, repeats: int, seed: int, out: Path | None, as_json: bool, plot: str | None,
) -> None:  # fmt: skip
    """Measure bucketed against ragged admission and say whether bucket shattering is confirmed or refuted.

    Flags are changed while the engine runs and put back: use an engine that serves nobody else.
    """
    picture = options.checked_plot(plot)
    with ExitStack() as stack:
        if start:
            if url is not None or engine is not None:
                raise click.UsageError("--start starts an engine: neither --url nor --engine goes with it")
            flags = (f"sched.max_running={max(sizes) + 1}", f"sched.max_waiting={2 * max(sizes)}")
            at = stack.enter_context(engines.started(model, flags)).site(timeout)
        else:
            at = options.site_of(url, engine, model, endpoint, timeout)
        plan = Plan("mixed", prompt, output, 1, vocab, at.context)
        if prompt.high + output.high > plan.context:
            raise Failure(
                f"{prompt.high + output.high} tokens do not fit into the model's context of {plan.context}"
            )
        before = _others(at)
        cells = measure(at, plan, sizes, rounds, losers, repeats, seed)
        changed = [name for name, value in _others(at).items() if before.get(name) != value]
        verdict = judge(cells, sizes, tolerance, changed)
    command: dict[str, Any] = {
        "sizes": list(sizes), "prompt": str(prompt), "output": str(output), "vocab": vocab, "rounds": rounds,
        "losers": losers, "tolerance": tolerance, "repeats": repeats, "seed": seed, "start": start,
    }  # fmt: skip
    result = Result(
        kind="admission", created=now(), command=command, client=provenance.client(), server=at.server,
        cells=tuple(cells), verdict=verdict,
    )  # fmt: skip
    drawn = charts(cells, sizes)
    finish(result, [*head(at.server), *lines(cells, sizes, verdict)], drawn, out, as_json, plot, picture)


def _others(at: Site) -> dict[str, Value]:
    with at.control() as control:
        return {name: flag.value for name, flag in flags_of(control).items()}


def measure(
    at: Site, plan: Plan, sizes: Sequence[int], rounds: int, losers: str, repeats: int, seed: int
) -> list[Cell]:
    """All cells. The arms of one size follow each other, in turned order every other time, so that drift cancels."""
    passes: dict[tuple[str, int], list[Pass]] = {(arm, size): [] for arm in ARMS for size in sizes}
    common: dict[str, Value] = {"cache.prefix": False, "admission.bucket_losers": losers}
    with at.control() as control:
        cap = flags_of(control)["sched.max_running"].value
    if isinstance(cap, int) and cap <= max(sizes):
        common["sched.max_running"] = (
            max(sizes) + 1
        )  # a cap at a size would pin that row; the engine may refuse
    requests = sum(rounds * size for size in sizes) * len(ARMS) * repeats
    with bar(requests + _WARM_UP, "requests") as tick, holding(at, common, "arc bench admission"):
        runner = Runner(at, Bounds(), tick)
        runner.warm_up(Work(plan, None, _WARM_UP, _WARM_UP), Pace(1, None), seed)
        for number in range(repeats):
            for size in sizes:
                for arm in ARMS if number % 2 else reversed(ARMS):
                    work = ArmWork(replace(plan, rows=size), None, max(rounds * size, 4 * rounds), 0, arm)
                    policy = "bucketed" if arm in BUCKETED else "ragged"
                    with holding(at, {"admission.policy": policy}, f"arc bench admission {arm}") as held:
                        passes[arm, size].append(
                            runner.one(work, Pace(size, None), seed + number, held=held, steady=True)
                        )
    return [
        Cell(
            name=f"{arm} x {size}",
            labels={"arm": arm, "size": size},
            flags={**common, "admission.policy": "bucketed" if arm in BUCKETED else "ragged"},
            revision=at.server.revision,
            passes=tuple(found),
        )
        for (arm, size), found in passes.items()
    ]


def ratio(cells: Sequence[Cell], over: str, under: str, size: int) -> float | NA:
    """tok/s(over) / tok/s(under), the median over the repeats of both, each of which was measured in one turn."""
    found = {cell.labels["arm"]: cell for cell in cells if cell.labels["size"] == size}
    values: list[float] = []
    for one, other in zip(found[over].passes, found[under].passes, strict=True):
        rates = rate(one), rate(other)
        if isinstance(rates[0], NA) or isinstance(rates[1], NA):
            return NA(next(each.na for each in rates if isinstance(each, NA)))
        values.append(rates[0] / rates[1])
    return statistics.median(values)


def rate(one: Pass) -> float | NA:
    """Output tokens a second as the engine counted them, until the last request was sent."""
    return NA(one.no_engine) if one.engine is None else one.engine.output_rate


def judge(cells: Sequence[Cell], sizes: Sequence[int], tolerance: float, changed: Sequence[str]) -> Verdict:
    """Whether tok/s(B) / tok/s(A) falls as sizes grow."""
    spoilt = _spoilt(cells, changed) or _disagree(cells, tolerance)
    if spoilt:
        return Verdict("void", spoilt)
    curve = [ratio(cells, "B", "A", size) for size in sizes]
    values = [value for value in curve if not isinstance(value, NA)]
    if len(values) < len(curve):
        return Verdict(
            "void", f"a ratio is missing: {next(value.na for value in curve if isinstance(value, NA))}"
        )
    said = ", ".join(f"{size}: {value:.2f}" for size, value in zip(sizes, values, strict=True))
    if all(abs(value - 1) <= tolerance for value in values):
        return Verdict("refuted", f"tok/s(B) / tok/s(A) is flat at 1 within {tolerance:g}: {said}")
    rises = [later - before for before, later in itertools.pairwise(values)]
    if values[-1] < values[0] - tolerance and max(rises) <= tolerance:
        return Verdict("confirmed", f"tok/s(B) / tok/s(A) falls as the concurrency grows: {said}")
    return Verdict("void", f"tok/s(B) / tok/s(A) neither falls nor is flat: {said}; measure longer")


def _spoilt(cells: Sequence[Cell], changed: Sequence[str]) -> str:
    """Why the numbers are not what they should be; empty when they are."""
    failed = {cell.name: kind for cell in cells for each in cell.passes for kind in each.errors}
    revisions = sorted({str(cell.revision) for cell in cells})
    if failed:
        return f"requests failed: {', '.join(f'{name}: {kind}' for name, kind in failed.items())}"
    if changed:
        return f"somebody changed {', '.join(changed)} meanwhile"
    return f"the cells are of different revisions: {', '.join(revisions)}" if len(revisions) > 1 else ""


def _disagree(cells: Sequence[Cell], tolerance: float) -> str:
    """At one request under way there is nothing to bucket: every arm must be as fast as A."""
    for arm in ARMS[1:]:
        found = ratio(cells, arm, "A", 1)
        if isinstance(found, NA) or abs(found - 1) > tolerance:
            said = found.na if isinstance(found, NA) else f"{found:.2f}"
            return f"the arms do not agree at 1: {arm} / A is {said}, and {tolerance:g} is allowed"
    return ""


def lines(cells: Sequence[Cell], sizes: Sequence[int], verdict: Verdict) -> list[str]:
    by = {(cell.labels["arm"], cell.labels["size"]): cell for cell in cells}
    rows = []
    for size in sizes:
        rates = [_median([rate(each) for each in by[arm, size].passes]) for arm in ARMS]
        batches = [_median([_batch(each) for each in by[arm, size].passes]) for arm in ARMS]
        ratios = [ratio(cells, "B", "A", size), ratio(cells, "D", "B", size)]
        rows.append(
            (
                str(size),
                *(_cell(value, ",.0f") for value in rates),
                *(_cell(value, ".2f") for value in ratios),
                *(_cell(value, ".2f") for value in batches),
            )
        )
    header = ("under way", *(f"{arm} tok/s" for arm in ARMS), "B/A", "D/B", *(f"{arm} rows" for arm in ARMS))
    missing = {value.na for cell in cells for each in cell.passes if isinstance(value := _batch(each), NA)}
    return [
        "A bucketed, uniform   B bucketed, mixed   C ragged, uniform   D ragged, mixed",
        "tok/s and rows a step (effective batch): the engine's, until the last request was sent; medians",
        *shown.table(header, rows, frozenset(range(len(header)))),
        *(f"NA: {reason}" for reason in sorted(missing)),
        f"{verdict.word}: {verdict.why}",
    ]


def _batch(one: Pass) -> float | NA:
    return NA(one.no_engine) if one.engine is None else one.engine.effective_batch


def _median(values: Sequence[float | NA]) -> float | NA:
    known = [value for value in values if not isinstance(value, NA)]
    if not known:
        return next(value for value in values if isinstance(value, NA))
    return Spread.of(known).median


def _cell(value: float | NA, form: str) -> str:
    return "NA" if isinstance(value, NA) else f"{value:{form}}"


def charts(cells: Sequence[Cell], sizes: Sequence[int]) -> list[Chart]:
    points = tuple(str(size) for size in sizes)
    by = {(cell.labels["arm"], cell.labels["size"]): cell for cell in cells}

    def curve(values: Mapping[int, float | NA]) -> tuple[float | None, ...]:
        return tuple(None if isinstance(value, NA) else value for value in values.values())

    def batches(arm: str) -> tuple[float | None, ...]:
        return curve({size: _median([_batch(each) for each in by[arm, size].passes]) for size in sizes})

    def ratios(over: str, under: str) -> tuple[float | None, ...]:
        return curve({size: ratio(cells, over, under, size) for size in sizes})

    cost = Series("B / A, what mixed lengths cost bucketed admission", ratios("B", "A"))
    worth = Series("D / B, what ragged admission is worth", ratios("D", "B"))
    rows = Series("D", batches("D")), Series("B", batches("B"))
    where = "requests under way"
    return [
        Chart("tok/s ratio", where, points, (cost,), "ratio"),
        Chart("tok/s ratio", where, points, (worth,), "ratio"),
        Chart("effective batch", where, points, rows, "rows"),
    ]
