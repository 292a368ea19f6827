"""`arc bench spec`: what speculation is worth at each depth, the depths in turn on one running engine."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from ...engine.control.protocol import NA
from ..exits import Failure
from ..held_flags import flags_of
from . import options, provenance
from .chart import Chart, Series
from .load import Bounds
from .request import Endpoint
from .result import Cell, Pass, Result, Spread, now, spread_of
from .run import bar, finish, head
from .runner import Pace, Runner, Site, Work, holding
from .work import Job, Lengths, Plan

FLAG = "spec.depth"
# Drafts are only accepted where text goes on as text does: random tokens would measure nothing.
OPENINGS = (
    "The morning after the storm the whole family walked down to the harbour, and",
    "She had not expected a letter from her sister so soon, and when it came",
    "There was in the village an old man who kept bees, of whom it was said that",
    "In those days the king sent messengers over the mountains, and they",
    "It is seldom wise to promise what one has not yet, her aunt replied; for",
    "The carriage stopped before the door, and everyone in the drawing room",
    "And when the seven years were past, the people of that city said",
    "Nothing could have been more agreeable than the evening, until Mr. Hale",
)


@dataclass(frozen=True, slots=True)
class TextWork(Work):
    """Openings of prose, each with a number of its own before it, so that no prompt is another's prefix."""

    def jobs(self, seed: int) -> Iterator[Job]:
        rng = random.Random(f"openings {seed}")
        for number in itertools.count(1):
            yield Job(f"{seed}.{number}. {rng.choice(OPENINGS)}", self.plan.output.middle)


class Drafts(msgspec.Struct, frozen=True):
    """Cumulative counts, of an engine that has them: drafts verified and accepted, by their place in a row."""

    draft_rows: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


class _Depth(msgspec.Struct, frozen=True):
    depth: int | NA


class _Snapshot(msgspec.Struct, frozen=True):
    life: Drafts
    speculation: _Depth = _Depth(NA("this engine does not say"))


def drafts(at: Site) -> Drafts:
    with at.control() as control:
        return msgspec.json.decode(control.raw("GET", "/v1/snapshot"), type=_Snapshot).life


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Over the passes of one depth."""

    by_place: tuple[float | None, ...]  # share of the drafts at this place in a row that were accepted
    rows: int  # rows whose drafts were verified
    accepted: int

    @property
    def a_row(self) -> float | None:
        """Accepted drafts a verified row: tokens beyond the one that a step brings anyway."""
        return self.accepted / self.rows if self.rows else None

    def named(self, depth: int) -> dict[str, float | NA]:
        """For a file: each share and the tokens a row, NA where nothing was drafted."""
        none = NA("no drafts were verified")
        shares = {
            f"accepted at {place}": none if share is None else share
            for place, share in enumerate(self.by_place[:depth], 1)
        }
        return shares | {"accepted a row": none if self.a_row is None else self.a_row}

    @classmethod
    def between(cls, pairs: list[tuple[Drafts, Drafts]]) -> Acceptance:
        places = max((len(end.drafted) for _, end in pairs), default=0)

        def total(name: str, place: int) -> int:
            return sum(
                _at(getattr(end, name), place) - _at(getattr(start, name), place) for start, end in pairs
            )

        shares = tuple(
            total("accepted", place) / drafted if (drafted := total("drafted", place)) else None
            for place in range(places)
        )
        rows = sum(end.draft_rows - start.draft_rows for start, end in pairs)
        return cls(shares, rows, sum(total("accepted", place) for place in range(places)))


def _at(counts: tuple[int, ...], place: int) -> int:
    return counts[place] if place < len(counts) else 0


@click.command()
@options.site_options
@click.option("--deepest", type=click.IntRange(1, 16), default=4, show_default=True, help="Depths 0 to this.")
@click.option(
    "--rows", type=click.IntRange(1, 1024), default=8, show_default=True, help="Requests under way."
)
@click.option("--requests", type=click.IntRange(1), default=32, show_default=True, help="A pass.")
@click.option("--output", type=click.IntRange(1), default=128, show_default=True, help="Tokens a request.")
@options.repeats_option
@options.seed_option
@options.out_options
def spec(
    *, url: str | None, engine: str | None, model: str | None, endpoint: Endpoint, timeout: float, deepest: int,
    rows: int, requests: int, output: int, repeats: int, seed: int, out: Path | None, as_json: bool, plot: str | None,
) -> None:  # fmt: skip
    """Measure output at every depth of speculation, in turn, with the drafts accepted by their place.

    The depth is changed while the engine runs and put back. Greedy, on openings of prose.
    """
    picture = options.checked_plot(plot)
    at = options.site_of(url, engine, model, endpoint, timeout)
    with at.control() as control:
        flag = flags_of(control).get(FLAG)
        if flag is None:
            raise Failure(f"this engine has no flag {FLAG}: it does not speculate")
        if flag.high is not None and deepest > flag.high:
            raise Failure(f"{FLAG} may be {flag.allowed}: --deepest {deepest} is more")
    passes, counted = measure(at, deepest, rows, requests, output, repeats, seed)
    accepted = {depth: Acceptance.between(pairs) for depth, pairs in counted.items()}
    cells = [
        Cell(
            name=f"depth {depth}", labels={"depth": depth}, flags={FLAG: depth}, revision=at.server.revision,
            passes=tuple(found), counted=accepted[depth].named(depth),
        )
        for depth, found in passes.items()
    ]  # fmt: skip
    said = lines(cells, accepted)
    result = Result(
        kind="spec", created=now(), client=provenance.client(), server=at.server, cells=tuple(cells), notes=tuple(said),
        command={
            "deepest": deepest, "rows": rows, "requests": requests, "output": output, "repeats": repeats, "seed": seed,
            "endpoint": endpoint,
        },
    )  # fmt: skip
    finish(result, [*head(at.server), *said], [_chart(cells)], out, as_json, plot, picture)


def measure(
    at: Site, deepest: int, rows: int, requests: int, output: int, repeats: int, seed: int
) -> tuple[dict[int, list[Pass]], dict[int, list[tuple[Drafts, Drafts]]]]:
    depths = range(deepest + 1)
    passes: dict[int, list[Pass]] = {depth: [] for depth in depths}
    counted: dict[int, list[tuple[Drafts, Drafts]]] = {depth: [] for depth in depths}
    plan = Plan("uniform", Lengths(32, 32), Lengths(output, output), rows, options.VOCAB, at.context)
    work = TextWork(plan, None, requests, rows)
    with bar(rows + requests * (deepest + 1) * repeats, "requests") as tick:
        runner = Runner(at, Bounds(), tick)
        runner.warm_up(work, Pace(rows, None), -seed - 1)
        for number in range(repeats):
            for depth in depths if number % 2 else reversed(depths):
                with holding(at, {FLAG: depth}, f"arc bench spec, depth {depth}") as held:
                    start = drafts(at)
                    # The same openings at every depth, but never the same prompt: the prefix cache must not matter.
                    one = runner.one(work, Pace(rows, None), 100 * (seed + number) + depth, held=held)
                    counted[depth].append((start, drafts(at)))
                passes[depth].append(one)
    return passes, counted


def lines(cells: list[Cell], accepted: dict[int, Acceptance]) -> list[str]:
    base = spread_of(cells[0].passes, "output_tok_s")
    assert base is not None
    found = ["median tok/s (least .. most); accepted: share of the drafts at each place in a row"]
    for cell in cells:
        spread = spread_of(cell.passes, "output_tok_s")
        failed = sum(sum(each.errors.values()) for each in cell.passes)
        rate = "NA (no request ended well)" if spread is None else _rate(spread, base)
        depth = int(cell.labels["depth"])
        said = _accepted(accepted[depth], depth)
        found.append(f"{cell.name}  {rate}  {said}" + (f"  FAILED {failed}" if failed else ""))
    return found


def _rate(spread: Spread, base: Spread) -> str:
    span = f"({spread.least:,.1f} .. {spread.most:,.1f})"
    return f"{spread.median:>9,.1f} tok/s {span}  {spread.median / base.median:.3f}x"


def _accepted(said: Acceptance, depth: int) -> str:
    if said.a_row is None:
        return "accepted NA (no drafts were verified)"
    places = "  ".join("NA" if share is None else f"{100 * share:.0f} %" for share in said.by_place[:depth])
    return f"accepted {places}; {said.a_row:.2f} a row"


def _chart(cells: list[Cell]) -> Chart:
    spreads = [spread_of(cell.passes, "output_tok_s") for cell in cells]
    values = tuple(None if spread is None else spread.median for spread in spreads)
    points = tuple(str(cell.labels["depth"]) for cell in cells)
    return Chart("output tok/s", "depth", points, (Series("median", values),), "tok/s", bars=True)
