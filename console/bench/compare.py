"""`arc bench compare`: two results, cell by cell."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ...engine.control.protocol import NA
from .. import shown
from ..engine_option import print_json
from ..exits import Failure
from .result import METRICS, Cell, Result, one_revision, read, spread_of


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one cell in both results. `apart`: their ranges over the repeats do not meet."""

    cell: str
    metric: str
    first: float
    second: float
    ratio: float | None  # None: the first is zero
    apart: bool


@click.command()
@click.argument("first", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("second", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Compare two results of `arc bench --out`: each number of the SECOND relative to the FIRST.

    What else differs between them (machine, model, flags) is said first. A file whose cells were measured on different
    revisions is refused.
    """
    a, b = read(first), read(second)
    if a.kind != b.kind:
        raise Failure(f"{first} is of `arc bench {a.kind}` and {second} of `arc bench {b.kind}`")
    revisions = one_revision(a, str(first)), one_revision(b, str(second))
    if a.command != b.command:
        differing = sorted(
            name for name in a.command | b.command if a.command.get(name) != b.command.get(name)
        )
        raise Failure(f"different work was sent, so nothing compares: {', '.join(differing)} differ")
    found = compared(a, b)
    if not found:
        raise Failure("they have no cell in common")
    if as_json:
        print_json(msgspec.json.encode(found))
        return
    for side, path, revision in (("first ", first, revisions[0]), ("second", second, revisions[1])):
        click.echo(f"{side}  {path}  revision {_shown(revision)}")
    for line in [*differences(a, b), *_table(found)]:
        click.echo(line)


def compared(a: Result, b: Result) -> list[Compared]:
    second = {cell.name: cell for cell in b.cells}
    return [
        each
        for cell in a.cells
        if cell.name in second
        for metric in METRICS
        if (each := _compare(cell, second[cell.name], metric)) is not None
    ]


def _compare(a: Cell, b: Cell, metric: str) -> Compared | None:
    before, after = spread_of(a.passes, metric), spread_of(b.passes, metric)
    if before is None or after is None:
        return None
    return Compared(
        cell=a.name,
        metric=metric,
        first=before.median,
        second=after.median,
        ratio=after.median / before.median if before.median else None,
        apart=before.most < after.least or after.most < before.least,
    )


def differences(a: Result, b: Result) -> list[str]:
    """What differs beside the revision: a ratio is of all of it."""
    found = []
    for name in ("processor", "cores", "system", "python"):
        pair = getattr(a.client, name), getattr(b.client, name)
        if pair[0] != pair[1]:
            found.append(f"also differs: {name}: {pair[0]} | {pair[1]}")
    if a.server is not None and b.server is not None:
        for name in ("model", "device", "dtype", "parameters", "profile", "differs"):
            pair = getattr(a.server, name), getattr(b.server, name)
            if pair[0] != pair[1]:
                found.append(f"also differs: {name}: {_shown(pair[0])} | {_shown(pair[1])}")
        for side, server in (("first", a.server), ("second", b.server)):
            if server.dirty is True:
                found.append(
                    f"the {side} was measured with changes that no commit has: {_shown(server.revision)}"
                )
    return found


def _shown(value: object) -> str:
    return f"NA ({value.na})" if isinstance(value, NA) else str(value)


def _table(found: list[Compared]) -> list[str]:
    rows = [
        (
            each.cell, METRICS[each.metric][0], f"{each.first:,.4g}", f"{each.second:,.4g}",
            "NA" if each.ratio is None else f"{each.ratio:.3f}",
            "" if each.apart else "ranges meet",
        )
        for each in found
    ]  # fmt: skip
    return shown.table(("cell", "metric", "first", "second", "ratio", ""), rows, frozenset({2, 3, 4}))
