"""`arc bench growth`: a step's time against the rows that decode, against their context, and against who waits."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from ...engine.control.protocol import NA
from ...engine.telemetry.sweeps import PARTS, SNAPSHOT, STEP, Axis, Sweep, Swept, Visit
from .. import shown
from ..exits import Failure
from . import options, provenance
from .chart import Chart, Series
from .engines import ended_in_order
from .fit import Line, Word, exponent, line, word
from .result import Cell, Result, Server, now
from .run import finish

_MODULE = "arc.engine.core.growth"
_SHOWN = (*PARTS, STEP, SNAPSHOT)
_UNIT: dict[Axis, str] = {"rows": "row", "context": "1,000 tokens", "waiting": "1,000 waiting"}
_PER: dict[Axis, int] = {"rows": 1, "context": 1000, "waiting": 1000}


class Values(click.ParamType):
    """1,2,4 or 128..16384, which doubles."""

    name = "values"

    def __init__(self, least: int) -> None:
        self._least = least

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        low, dots, high = str(value).partition("..")
        try:
            found = _doubling(int(low), int(high)) if dots else [int(each) for each in low.split(",")]
        except ValueError:
            self.fail(f"{value!r} are no numbers: write 1,2,4 or 128..16384, which doubles", param, ctx)
        if len(found) < 2 or found != sorted(set(found)) or found[0] < self._least:
            self.fail(f"{value!r}: two at the least, ascending, from {self._least}", param, ctx)
        return tuple(found)


def _doubling(low: int, high: int) -> list[int]:
    if low < 1:
        raise ValueError
    found = []
    while low <= high:
        found.append(low)
        low *= 2
    return found


@click.command()
@click.option(
    "--model", metavar="FOLDER", default="carried", show_default=True, help="Whose steps are timed."
)
@click.option("--rows", type=Values(1), default="1..256", show_default=True, help="That decode, swept.")
@click.option(
    "--contexts",
    type=Values(1),
    default="128..1024",
    show_default=True,
    help="Tokens of each row, swept. The carried model takes 2048.",
)
@click.option(
    "--waiting",
    type=Values(0),
    default="0,10,100,1000,10000",
    show_default=True,
    help="Requests that wait, swept.",
)
@click.option(
    "--sweep",
    "axes",
    type=click.Choice(["rows", "context", "waiting"]),
    multiple=True,
    help="Only this one; may be repeated.",
)
@click.option(
    "--at-rows", type=click.IntRange(1), default=32, show_default=True, help="Where they are not swept."
)
@click.option(
    "--at-context",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Tokens, where they are not swept.",
)
@click.option(
    "--visits",
    type=click.IntRange(2),
    default=12,
    show_default=True,
    help="Of each value, in rounds of random order.",
)
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Timed at each visit.")
@click.option("--threads", type=click.IntRange(1), help="That compute. [as the engine chooses]")
@click.option("--seed", type=int, default=0, show_default=True)
@options.out_options
def growth(
    *, model: str, rows: tuple[int, ...], contexts: tuple[int, ...], waiting: tuple[int, ...], axes: tuple[Axis, ...],
    at_rows: int, at_context: int, visits: int, steps: int, threads: int | None, seed: int, out: Path | None,
    as_json: bool, plot: str | None,
) -> None:  # fmt: skip
    """Measure what a step costs as rows, context and waiting requests grow, and fit each part of it.

    Each sweep is a process of its own with an engine and without a server. Rows decode; no prompt is computed.
    """
    picture = options.checked_plot(plot)
    if importlib.util.find_spec("torch") is None:
        raise Failure("only the console is installed here, and this runs an engine: arc-console[engine]")
    swept: dict[Axis, tuple[int, ...]] = {"rows": rows, "context": contexts, "waiting": waiting}
    found = [
        _run(
            Sweep(model=model, axis=axis, values=values, rows=at_rows, context=at_context, waiting=0, visits=visits,
                  steps=steps, threads=threads, seed=seed)
        )
        for axis, values in swept.items()
        if not axes or axis in axes
    ]  # fmt: skip
    _one_revision(found)
    fits = [fitted for each in found for fitted in fits_of(each)]
    result = Result(
        kind="growth", created=now(), client=provenance.client(), server=_server(found[0]),
        cells=tuple(cell for each in found for cell in _cells(each)), notes=tuple(map(_note, fits)),
        command={
            "model": model, "rows": rows, "contexts": contexts, "waiting": waiting, "axes": axes, "at_rows": at_rows,
            "at_context": at_context, "visits": visits, "steps": steps, "threads": threads, "seed": seed,
        },
    )  # fmt: skip
    drawn = [chart(each) for each in found]
    finish(result, [*_head(found[0]), *lines(found, fits)], drawn, out, as_json, plot, picture)


def _run(sweep: Sweep) -> Swept:
    """In a process of its own, which ends with this command."""
    command = [sys.executable, "-P", "-m", _MODULE, msgspec.json.encode(sweep).decode()]
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}  # as of `arc serve`
    with ended_in_order():
        # In a group of its own: Ctrl-C on a terminal is the bench's, which then ends its engine.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, process_group=0)
        try:
            answer, _ = process.communicate()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        raise Failure(
            f"the process that measures {sweep.axis} ended with {process.returncode}; it said why above"
        )
    return msgspec.json.decode(answer, type=Swept)


def _one_revision(found: Sequence[Swept]) -> None:
    revisions = {each.revision: each.sweep.axis for each in found}
    if len(revisions) > 1:
        said = ", ".join(f"{axis}: {revision}" for revision, axis in revisions.items())
        raise Failure(f"the files changed meanwhile, and sweeps of several revisions do not compare: {said}")


# -- what follows from the times --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fit:
    """Of one part over one sweep. Times in seconds."""

    axis: Axis
    part: str
    fitted: Line
    adds: float  # by the slope, from the first value to the last, as a share of the first value's step
    ratio: float  # the last value's time over the first's
    exponent: float | None  # of what grows, where it can be told
    word: Word


def bests(swept: Swept, part: str) -> dict[int, float]:
    """The median over the visits of each one's best step, by value."""
    return _over_visits(swept, lambda visit: visit.best[part])


def medians(swept: Swept, part: str) -> dict[int, float]:
    """The same of each one's median step."""
    return _over_visits(swept, lambda visit: visit.median[part])


def _over_visits(swept: Swept, time_of: Callable[[Visit], float]) -> dict[int, float]:
    return {
        value: statistics.median(time_of(each) for each in swept.visits if each.value == value)
        for value in swept.sweep.values
    }


def fits_of(swept: Swept) -> list[Fit]:
    """Of every part, over the best step of every visit."""
    first, last = swept.sweep.values[0], swept.sweep.values[-1]
    step = bests(swept, STEP)[first]
    found = []
    for part in _SHOWN:
        points = [(float(each.value), each.best[part]) for each in swept.visits]
        fitted, times = line(points), bests(swept, part)
        said = word(fitted, last - first, step)
        found.append(
            Fit(
                axis=swept.sweep.axis,
                part=part,
                fitted=fitted,
                adds=fitted.slope * (last - first) / step,
                ratio=times[last] / times[first],
                exponent=exponent(points) if said == "grows" else None,
                word=said,
            )
        )
    return found


def _cells(swept: Swept) -> list[Cell]:
    """A cell a value. Of every part, in milliseconds, the median over the visits of their best and of their median."""
    sweep = swept.sweep
    times: dict[str, dict[int, float]] = {}
    for part in _SHOWN:
        times[f"{part}, best, ms"] = bests(swept, part)
        times[f"{part}, median, ms"] = medians(swept, part)
    cells = []
    for value in sweep.values:
        counted: dict[str, float | NA] = {name: 1e3 * by_value[value] for name, by_value in times.items()}
        labels = dict(zip(("rows", "context", "waiting"), sweep.at(value), strict=True))
        cells.append(
            Cell(name=f"{sweep.axis} {value}", labels={"sweep": sweep.axis, **labels}, revision=swept.revision,
                 passes=(), counted=counted)
        )  # fmt: skip
    return cells


def _server(swept: Swept) -> Server:
    none = NA("an engine without a server, in a process of its own")
    return Server(
        url="",
        model=swept.model,
        version=swept.version,
        revision=swept.revision,
        dirty=swept.revision.endswith("-dirty"),
        name=none,
        pid=none,
        device=swept.device,
        dtype=swept.dtype,
        parameters=swept.parameters,
        max_model_len=none,
        page_size=swept.page_size,
        pages=none,
        profile=swept.profile,
        differs=None,
    )


# -- what is shown ----------------------------------------------------------------------------------------------------


def _head(swept: Swept) -> list[str]:
    backends = ", ".join(sorted(set(swept.kernels.values())))
    return [
        f"{swept.model}, {swept.parameters / 1e6:.1f} M parameters, {swept.dtype} on {swept.device}, "
        f"kernels {backends}, {swept.threads} threads, revision {swept.revision}",
        f"{swept.sweep.visits} visits of each value in random order, {swept.sweep.steps} steps a visit; medians over "
        "the visits of each one's best step, and of its median step",
    ]


def lines(found: Sequence[Swept], fits: Sequence[Fit]) -> list[str]:
    said = []
    for each in found:
        said += ["", _where(each.sweep), *_times(each), ""]
        said += _fitted(each.sweep.axis, [one for one in fits if one.axis == each.sweep.axis])
    said += [
        "",
        "border: the inbox and what is outside of the step's record; snapshot: for a console, beside the steps",
        "fits: least squares, relative, over every visit's best step; added: by the slope, of the first step",
        "grows: the slope is 3 standard errors above 0 and adds over 5 % of a step; flat: even 3 errors more add less",
    ]
    return said


def _where(sweep: Sweep) -> str:
    fixed = {"rows": f"{sweep.rows} rows", "context": f"context {sweep.context}", "waiting": "none waiting"}
    others = ", ".join(said for axis, said in fixed.items() if axis != sweep.axis)
    return f"{sweep.axis}: {others}; ms a step"


def _times(swept: Swept) -> list[str]:
    parts = {part: bests(swept, part) for part in _SHOWN}
    middle = medians(swept, STEP)
    rows = []
    for value in swept.sweep.values:
        rows.append(
            (
                f"{value:,}",
                *(_ms(parts[part][value]) for part in (*PARTS, STEP)),
                _ms(middle[value]),
                _ms(parts[SNAPSHOT][value]),
            )
        )
    header = (swept.sweep.axis, *PARTS, "step", "(median)", SNAPSHOT)
    return shown.table(header, rows, frozenset(range(len(header))))


def _fitted(axis: Axis, fits: Sequence[Fit]) -> list[str]:
    rows = [
        (
            each.part,
            _ms(each.fitted.constant),
            f"{each.fitted.slope * 1e6 * _PER[axis]:,.2f} +- {each.fitted.error * 1e6 * _PER[axis]:,.2f}",
            f"{each.adds:+.1%}".replace("%", " %"),
            f"{each.ratio:.2f}",
            "" if each.exponent is None else f"{each.exponent:.2f}",
            each.word,
        )
        for each in fits
    ]
    header = ("", "constant, ms", f"us per {_UNIT[axis]}", "added", "last / first", "exponent", "")
    return shown.table(header, rows, frozenset({1, 2, 3, 4, 5}))


def _note(fit: Fit) -> str:
    """One line of a file."""
    power = "" if fit.exponent is None else f", exponent {fit.exponent:.2f}"
    return (
        f"{fit.axis}, {fit.part}: {fit.word}; {fit.fitted.constant * 1e3:.4g} ms + "
        f"{fit.fitted.slope * 1e6 * _PER[fit.axis]:.4g} us (+- {fit.fitted.error * 1e6 * _PER[fit.axis]:.2g}) per "
        f"{_UNIT[fit.axis]}, {fit.adds:+.1%} of a step, last / first {fit.ratio:.2f}{power}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds < 0.1 else f"{seconds * 1e3:.1f}"


def chart(swept: Swept) -> Chart:
    """The step and its fit; below them, in a picture, its parts."""
    values = swept.sweep.values

    def milliseconds(part: str) -> tuple[float, ...]:
        return tuple(1e3 * each for each in bests(swept, part).values())

    fitted = line([(float(each.value), each.best[STEP]) for each in swept.visits])
    unit, per = _UNIT[swept.sweep.axis], _PER[swept.sweep.axis]
    formula = f"{fitted.constant * 1e3:.2f} ms + {fitted.slope * 1e6 * per:,.1f} us per {unit}"
    return Chart(
        f"a step, by {swept.sweep.axis}",
        swept.sweep.axis,
        tuple(f"{value:,}" for value in values),
        (
            Series("step", milliseconds(STEP)),
            Series(formula, tuple(1e3 * fitted.at(value) for value in values), line_only=True),
            *(Series(part, milliseconds(part)) for part in PARTS),
        ),
        "ms",
        logarithmic=True,
    )
