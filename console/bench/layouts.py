"""`arc bench layouts`: the paged cache and both designs of the dense one, on the same mixed work.

The question that this answers: what a dense cache costs, with a dead prefix that is masked or one that is cut off, and
how many copies on the device each needs a token.
"""

from __future__ import annotations

import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import click

from ...engine.control.protocol import NA, Value
from ...engine.flags import FLAGS
from .. import shown
from ..exits import Failure
from . import engines, options, provenance, scrape
from .chart import Chart, Series
from .load import Bounds
from .result import Cell, Pass, Result, Server, now, spread_of
from .run import bar, finish
from .runner import Pace, Runner, Site, Work
from .work import Lengths, Plan

LAYOUTS: dict[str, tuple[str, ...]] = {  # the prefix cache is off for all: a dense cache has none
    "paged": ("cache.layout=paged", "cache.prefix=off"),
    "dense, mask": ("cache.layout=dense", "cache.dead_prefix=mask", "cache.prefix=off"),
    "dense, strip": ("cache.layout=dense", "cache.dead_prefix=strip", "cache.prefix=off"),
}
# arc:cache_copies_total has each operation of the dense layout; an allocation is no copy
_COPIES = re.compile(r'^arc:cache_copies_total\{[^}]*operation="([^"]+)"[^}]*\} (\S+)$', re.M)
_ALLOCATIONS = frozenset({"clone_in.alloc"})


@dataclass(frozen=True, slots=True)
class Copies:
    """Cumulative counts. `made` is None where the engine has no such counter."""

    tokens: int  # generated
    made: float | None  # copies on the device, of a row's layer or of a layer each


def copies(at: Site) -> Copies:
    assert at.socket is not None
    key = at.target.key
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{at.server.url}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as page:
        return counted(scrape.life(at.socket).generation_tokens, page.read().decode())


def counted(tokens: int, metrics: str) -> Copies:
    found = _COPIES.findall(metrics)
    made = sum(float(value) for operation, value in found if operation not in _ALLOCATIONS)
    return Copies(tokens, made if found else None)


def per_token(start: Copies, end: Copies) -> float | NA:
    if end.made is None:
        return NA("this engine counts no copies of its cache")
    tokens = end.tokens - start.tokens
    return (end.made - (start.made or 0)) / tokens if tokens else NA("no token was generated")


@click.command()
@click.option("--model", metavar="FOLDER", help="[the carried model]")
@click.option(
    "--rows", type=click.IntRange(1, 1024), default=32, show_default=True, help="Requests under way."
)
@click.option("--requests", type=click.IntRange(1), default=96, show_default=True, help="A pass.")
@click.option("--prompt", type=options.LengthsType(), default="16..512", show_default=True, help="Tokens.")
@click.option("--output", type=options.LengthsType(), default="32..256", show_default=True, help="Tokens.")
@options.repeats_option
@options.seed_option
@options.out_options
def layouts(
    *, model: str | None, rows: int, requests: int, prompt: Lengths, output: Lengths, repeats: int, seed: int,
    out: Path | None, as_json: bool, plot: str | None,
) -> None:  # fmt: skip
    """Start an engine for each layout in turn and send it the same mixed work; copies a token are counted."""
    picture = options.checked_plot(plot)
    missing = [name for name in ("cache.layout", "cache.dead_prefix") if name not in FLAGS]
    if missing:
        raise Failure(f"this arc has no flag {' nor '.join(missing)}: its engine has the paged cache alone")
    passes: dict[str, list[Pass]] = {name: [] for name in LAYOUTS}
    ratios: dict[str, list[float | NA]] = {name: [] for name in LAYOUTS}
    servers: list[Server] = []
    with bar((rows + requests) * len(LAYOUTS) * repeats, "requests") as tick:
        for number in range(repeats):
            for name in LAYOUTS if number % 2 else reversed(LAYOUTS):
                with engines.started(model, (*LAYOUTS[name], f"sched.max_running={rows + 1}")) as engine:
                    at = engine.site()
                    servers.append(at.server)
                    plan = Plan("mixed", prompt, output, rows, options.VOCAB, at.context)
                    work, pace = Work(plan, None, requests, rows), Pace(rows, None)
                    runner = Runner(at, Bounds(), tick)
                    runner.warm_up(work, pace, seed + number)
                    start = copies(at)
                    passes[name].append(runner.one(work, pace, seed + number))
                    ratios[name].append(per_token(start, copies(at)))
    cells = [
        Cell(name=name, labels={"layout": name}, flags=_flags(name),
             revision=servers[0].revision, passes=tuple(found))
        for name, found in passes.items()
    ]  # fmt: skip
    said = lines(cells, ratios)
    result = Result(
        kind="layouts", created=now(), client=provenance.client(), server=servers[0], cells=tuple(cells),
        notes=tuple(said),
        command={
            "model": model, "rows": rows, "requests": requests, "prompt": str(prompt), "output": str(output),
            "repeats": repeats, "seed": seed,
        },
    )  # fmt: skip
    spreads = [spread_of(cell.passes, "output_tok_s") for cell in cells]
    values = tuple(None if spread is None else spread.median for spread in spreads)
    drawn = [Chart("output tok/s", "layout", tuple(LAYOUTS), (Series("median", values),), "tok/s")]
    finish(result, said, drawn, out, as_json, plot, picture)


def _flags(name: str) -> dict[str, Value]:
    return {flag: value for flag, _, value in (each.partition("=") for each in LAYOUTS[name])}


def lines(cells: list[Cell], ratios: dict[str, list[float | NA]]) -> list[str]:
    base = spread_of(cells[0].passes, "output_tok_s")
    rows = []
    for cell in cells:
        spread = spread_of(cell.passes, "output_tok_s")
        failed = sum(sum(each.errors.values()) for each in cell.passes)
        known = [value for value in ratios[cell.name] if not isinstance(value, NA)]
        why = next((value.na for value in ratios[cell.name] if isinstance(value, NA)), "")
        rate = "NA" if spread is None else f"{spread.median:,.1f} ({spread.least:,.1f} .. {spread.most:,.1f})"
        share = "NA" if spread is None or base is None else f"{spread.median / base.median:.3f}"
        each = f"{sorted(known)[len(known) // 2]:,.1f}" if known else f"NA ({why})"
        rows.append((cell.name, rate, share, each, f"{failed} failed" if failed else ""))
    return shown.table(("layout", "tok/s, median (least .. most)", "to paged", "copies a token", ""), rows)
