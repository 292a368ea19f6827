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
from .run import bar, finish, head
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
    steps: int
    made: float | None  # copies on the device, of a row's layer or of a layer each


def copies(at: Site) -> Copies:
    assert at.socket is not None
    key = at.target.key
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{at.server.url}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as page:
        life = scrape.life(at.socket)
        return counted(life.generation_tokens, life.steps, page.read().decode())


def counted(tokens: int, steps: int, metrics: str) -> Copies:
    found = _COPIES.findall(metrics)
    made = sum(float(value) for operation, value in found if operation not in _ALLOCATIONS)
    return Copies(tokens, steps, made if found else None)


@dataclass(frozen=True, slots=True)
class Rates:
    """Copies over one or more passes."""

    a_token: float | NA
    a_step: float | NA

    @classmethod
    def between(cls, pairs: list[tuple[Copies, Copies]]) -> Rates:
        if any(start.made is None or end.made is None for start, end in pairs):
            none = NA("this engine counts no copies of its cache")
            return cls(none, none)
        made = sum((end.made or 0) - (start.made or 0) for start, end in pairs)
        tokens = sum(end.tokens - start.tokens for start, end in pairs)
        steps = sum(end.steps - start.steps for start, end in pairs)
        return cls(
            made / tokens if tokens else NA("no token was generated"),
            made / steps if steps else NA("no step ran"),
        )


@click.command()
@click.option("--model", metavar="FOLDER", help="[the carried model]")
@click.option(
    "--rows", type=click.IntRange(1, 1024), default=32, show_default=True, help="Requests under way."
)
@click.option("--requests", type=click.IntRange(1), default=96, show_default=True, help="A pass.")
@click.option("--prompt", type=options.LengthsType(), default="16..512", show_default=True, help="Tokens.")
@click.option("--output", type=options.LengthsType(), default="32..256", show_default=True, help="Tokens.")
@options.vocab_option
@options.repeats_option
@options.seed_option
@options.out_options
def layouts(
    *, model: str | None, rows: int, requests: int, prompt: Lengths, output: Lengths, vocab: int, repeats: int,
    seed: int, out: Path | None, as_json: bool, plot: str | None,
) -> None:  # fmt: skip
    """Start an engine for each layout in turn and send it the same mixed work; copies a token are counted."""
    picture = options.checked_plot(plot)
    missing = [name for name in ("cache.layout", "cache.dead_prefix") if name not in FLAGS]
    if missing:
        raise Failure(f"this arc has no flag {' nor '.join(missing)}: its engine has the paged cache alone")
    passes: dict[str, list[Pass]] = {name: [] for name in LAYOUTS}
    counts: dict[str, list[tuple[Copies, Copies]]] = {name: [] for name in LAYOUTS}
    servers: dict[str, Server] = {}
    with bar((rows + requests) * len(LAYOUTS) * repeats, "requests") as tick:
        for number in range(repeats):
            for name in LAYOUTS if number % 2 else reversed(LAYOUTS):
                with engines.started(model, (*LAYOUTS[name], f"sched.max_running={rows + 1}")) as engine:
                    at = engine.site()
                    _same_revision(servers, name, at.server)
                    plan = Plan("mixed", prompt, output, rows, vocab, at.context)
                    work, pace = Work(plan, None, requests, rows), Pace(rows, None)
                    runner = Runner(at, Bounds(), tick)
                    runner.warm_up(work, pace, seed + number)
                    start = copies(at)
                    passes[name].append(runner.one(work, pace, seed + number))
                    counts[name].append((start, copies(at)))
    rates = {name: Rates.between(pairs) for name, pairs in counts.items()}
    cells = [
        Cell(
            name=name, labels={"layout": name}, flags=_flags(name), revision=servers[name].revision,
            passes=tuple(found),
            counted={"copies a token": rates[name].a_token, "copies a step": rates[name].a_step},
        )
        for name, found in passes.items()
    ]  # fmt: skip
    said = lines(cells, rates)
    result = Result(
        kind="layouts", created=now(), client=provenance.client(), server=servers["paged"], cells=tuple(cells),
        notes=tuple(said),
        command={
            "model": model, "rows": rows, "requests": requests, "prompt": str(prompt), "output": str(output),
            "vocab": vocab, "repeats": repeats, "seed": seed,
        },
    )  # fmt: skip
    spreads = [spread_of(cell.passes, "output_tok_s") for cell in cells]
    values = tuple(None if spread is None else spread.median for spread in spreads)
    drawn = [Chart("output tok/s", "layout", tuple(LAYOUTS), (Series("median", values),), "tok/s", bars=True)]
    finish(result, [*head(servers["paged"]), *said], drawn, out, as_json, plot, picture)


def _flags(name: str) -> dict[str, Value]:
    return {flag: value for flag, _, value in (each.partition("=") for each in LAYOUTS[name])}


def _same_revision(servers: dict[str, Server], name: str, server: Server) -> None:
    """Note the engine of a layout. Raises Failure where it is of another revision than those before it."""
    for other, before in servers.items():
        if before.revision != server.revision:
            raise Failure(
                f"the files changed meanwhile: {other} ran {before.revision}, {name} would run {server.revision}"
            )
    servers.setdefault(name, server)


def lines(cells: list[Cell], rates: dict[str, Rates]) -> list[str]:
    base = spread_of(cells[0].passes, "output_tok_s")
    rows = []
    for cell in cells:
        spread = spread_of(cell.passes, "output_tok_s")
        failed = sum(sum(each.errors.values()) for each in cell.passes)
        rate = "NA" if spread is None else f"{spread.median:,.1f} ({spread.least:,.1f} .. {spread.most:,.1f})"
        share = "NA" if spread is None or base is None else f"{spread.median / base.median:.3f}"
        copied = (_number(rates[cell.name].a_token), _number(rates[cell.name].a_step))
        rows.append((cell.name, rate, share, *copied, f"{failed} failed" if failed else ""))
    header = ("layout", "tok/s, median (least .. most)", "to paged", "copies a token", "a step", "")
    return shown.table(header, rows, frozenset({2, 3, 4}))


def _number(value: float | NA) -> str:
    return f"NA ({value.na})" if isinstance(value, NA) else f"{value:,.1f}"
