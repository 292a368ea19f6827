"""`arc kernels`: who computes what, here or in a running engine. What needs torch becomes `python -m arc.kernels.…`."""

from __future__ import annotations

import importlib.util
import os
import sys

import click
import msgspec

from ...engine.control import protocol as p
from .. import shown
from ..client import connect
from ..engine_option import engine_option, json_option, print_json
from ..exits import Failure

_PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}


@click.group(invoke_without_command=True)
@engine_option
@json_option
@click.option("--running", is_flag=True, help="Of the running engine, and not of this machine.")
@click.pass_context
def kernels(context: click.Context, engine: str | None, as_json: bool, running: bool) -> None:
    """Show which backend runs each operation, and why others do not.

    Without an engine named: what this machine would run. `aot` compiles every kernel for every card and needs none;
    `bench` measures them on the card that is here.
    """
    if context.invoked_subcommand is not None:
        return
    if engine is None and not running and not as_json:
        _become("arc.kernels.table", ())
    with connect(engine) as client:
        answer = client.get("/v1/kernels", p.Kernels)
    if as_json:
        print_json(msgspec.json.encode(answer))
        return
    click.echo(f"{answer.dtype} on {answer.device}")
    rows = [
        (
            line.operation,
            line.backend,
            "; ".join(f"{name}: {reason}" for name, reason in line.refused.items()),
        )
        for line in answer.operations
    ]
    for line in [*shown.table(("operation", "backend", "refused"), rows), *_graphs(answer.graphs)]:
        click.echo(line)


def _graphs(graphs: p.Graphs) -> list[str]:
    if isinstance(graphs.replays, p.NA):
        return [f"graphs: NA ({shown.plain(graphs.replays.na)})"]
    captured = f"{_numbers(graphs.captured)} rows"
    captured += "".join(
        f"; of {_numbers(rows)} rows of up to {queries} queries" for queries, rows in graphs.verifying.items()
    )
    plain = "; ".join(f"{count:,} {reason}" for reason, count in graphs.plain.items()) or "none"
    lines = [f"graphs of {captured}: {graphs.replays:,} steps replayed; run as ever: {plain}"]
    return lines + [f"no graph of {size}: {shown.plain(reason)}" for size, reason in graphs.refused.items()]


def _numbers(rows: tuple[int, ...]) -> str:
    return ", ".join(map(str, rows)) or "no"


@kernels.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def aot(arguments: tuple[str, ...]) -> None:
    """Compile every kernel for every card; fail where one spills or does not fit."""
    _become("arc.kernels.triton.aot", arguments, needs="triton")


@kernels.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Measure the kernels on this machine's card."""
    _become("arc.kernels.bench", arguments)


def _become(module: str, arguments: tuple[str, ...], needs: str = "torch") -> None:
    """Replace this process by `python -m module`: the console imports no torch."""
    for package in ("torch", needs):
        if importlib.util.find_spec(package) is None:  # looks, without importing it
            raise Failure(f"this needs the package {package}, which comes with arc-console[engine]")
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: no file of the operator's folder may pose as a module.
    command = [sys.executable, "-P", "-m", module, *arguments]
    os.execve(sys.executable, command, {"OMP_WAIT_POLICY": "PASSIVE", **os.environ})
