"""`arc bench shattering`: the scheduler's own law, simulated by the engine's code in a process of its own."""

from __future__ import annotations

import click

from .handover import run_module


@click.command()
@click.option(
    "--pairs", metavar="BxD,...", help="Sequences x lengths, such as 32x8,128x32. [those of the law's table]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def shattering(pairs: str | None, as_json: bool) -> None:
    """Run B sequences at D KV lengths through the real scheduler: rows a step, bucketed and ragged.

    No model is needed and none is loaded. Bucketed admission runs B / D of them, ragged admission all.
    """
    arguments = [] if pairs is None else ["--pairs", pairs]
    run_module("arc.engine.scheduler.shattering", [*arguments, *(["--json"] if as_json else [])])
