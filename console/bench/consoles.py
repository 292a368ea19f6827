"""`arc bench consoles`: what attached consoles cost the engine, and how fast its control socket answers meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..exits import Failure
from ..parameters import FiniteRange
from . import options, provenance
from .chart import Chart, Series
from .load import Bounds
from .result import Cell, Pass, Result, now, spread_of
from .run import bar, finish, head
from .runner import Pace, Runner, Site, Work
from .watching import beside
from .work import Lengths, Plan

ARMS = (0, 1, 8)


@click.command()
@options.site_options
@click.option(
    "--rows", type=click.IntRange(1, 1024), default=32, show_default=True, help="Requests under way."
)
@click.option(
    "--output",
    type=click.IntRange(1),
    default=640,
    show_default=True,
    help="Tokens a request: so long that attaching itself is not what is measured.",
)
@click.option("--hz", type=FiniteRange(0.2, 20), default=4.0, show_default=True, help="Pictures a second.")
@options.vocab_option
@options.repeats_option
@options.seed_option
@options.out_options
def consoles(
    *, url: str | None, engine: str | None, model: str | None, endpoint: Any, timeout: float, rows: int, output: int,
    hz: float, vocab: int, repeats: int, seed: int, out: Path | None, as_json: bool, plot: str | None,
) -> None:  # fmt: skip
    """Measure output with no console attached, with one and with eight, in turn; and the time of a snapshot."""
    picture = options.checked_plot(plot)
    at = options.site_of(url, engine, model, endpoint, timeout)
    if at.socket is None:
        raise Failure(
            "consoles attach to an arc engine's control socket: name it with --engine, or leave --url out"
        )
    passes, times = measure(at, rows, output, hz, vocab, repeats, seed)
    cells = [
        Cell(name=_name(arm), labels={"consoles": arm}, revision=at.server.revision, passes=tuple(found))
        for arm, found in passes.items()
    ]
    command = {"rows": rows, "output": output, "hz": hz, "vocab": vocab, "repeats": repeats, "seed": seed}
    answered = _answered(times, rows)
    result = Result(
        kind="consoles", created=now(), command=command, client=provenance.client(), server=at.server,
        cells=tuple(cells), notes=(answered,),
    )  # fmt: skip
    spreads = [spread_of(cell.passes, "output_tok_s") for cell in cells]
    values = tuple(None if spread is None else spread.median for spread in spreads)
    drawn = [
        Chart(
            "output tok/s", "consoles", tuple(map(str, ARMS)), (Series("median", values),), "tok/s", bars=True
        )
    ]
    finish(result, [*head(at.server), *lines(cells, hz, rows), answered], drawn, out, as_json, plot, picture)


def measure(
    at: Site, rows: int, output: int, hz: float, vocab: int, repeats: int, seed: int
) -> tuple[dict[int, list[Pass]], list[float]]:
    """Passes by the number of consoles, the arms in turned order every other time; seconds of each snapshot."""
    passes: dict[int, list[Pass]] = {arm: [] for arm in ARMS}
    plan = Plan("uniform", Lengths(64, 64), Lengths(output, output), rows, vocab, at.context)
    work = Work(plan, None, rows, rows)
    with bar(rows * (2 + len(ARMS) * repeats), "requests") as tick:
        runner = Runner(at, Bounds(), tick)
        runner.warm_up(work, Pace(rows, None), seed)
        for number in range(repeats):
            for arm in ARMS if number % 2 else reversed(ARMS):
                with beside("watch", str(at.socket), str(arm), str(hz)):
                    # Seeds apart: no pass finds another's prefixes in the cache.
                    passes[arm].append(runner.one(work, Pace(rows, None), 1000 * arm + seed + number))
        with beside("poll", str(at.socket)) as poller:
            runner.one(work, Pace(rows, None), -seed - 1)
        assert poller.stdout is not None
        return passes, sorted(json.loads(poller.stdout.read()))


def _name(arm: int) -> str:
    return "1 console" if arm == 1 else f"{arm} consoles"


def lines(cells: list[Cell], hz: float, rows: int) -> list[str]:
    base = spread_of(cells[0].passes, "output_tok_s")
    assert base is not None
    found = [f"{rows} rows, consoles at {hz:g} Hz; median (least .. most) of {len(cells[0].passes)}"]
    for cell in cells:
        spread = spread_of(cell.passes, "output_tok_s")
        assert spread is not None
        found.append(
            f"{cell.name:<12} {spread.median:>9,.0f} tok/s  ({spread.least:,.0f} .. {spread.most:,.0f})   "
            f"ratio to none {spread.median / base.median:.3f}"
        )
    return found


def _answered(times: list[float], rows: int) -> str:
    if not times:
        return "GET /v1/snapshot: NA (none was answered)"
    p50, p99 = times[len(times) // 2], times[int(0.99 * len(times))]
    return (
        f"GET /v1/snapshot under {rows} rows: p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms, "
        f"longest {1000 * times[-1]:.1f} ms of {len(times):,}"
    )
