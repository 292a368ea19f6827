"""`arc bench`: the load generator and the experiments, each a command of its own that is imported when it runs."""

from __future__ import annotations

import click

from ..lazy import LazyCommand

# name: (module:command, summary), as in the table of `arc` itself
BENCHES: dict[str, tuple[str, str]] = {
    "run": (".bench.run:run", "Send one kind of work and measure: throughput, latencies, goodput, errors."),
    "shattering": (
        ".bench.shattering:shattering",
        "The scheduler's own law: B sequences at D lengths, B / D a step.",
    ),
    "admission": (
        ".bench.admission:admission",
        "Bucketed against ragged admission: is shattering confirmed here?",
    ),
    "layouts": (".bench.layouts:layouts", "The paged cache and both dense ones on the same work."),
    "spec": (".bench.spec:spec", "What speculation is worth at each depth."),
    "growth": (".bench.growth:growth", "What a step costs as rows, context and waiting requests grow."),
    "allocator": (".bench.allocator:allocator", "The bounded allocator, by the engine's own bench."),
    "consoles": (".bench.consoles:consoles", "What attached consoles cost the engine."),
    "compare": (".bench.compare:compare", "Compare two results, cell by cell."),
}


class _Benches(click.Group):
    """Without a command's name it is `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Benches)
def bench() -> None:
    """Send load to an OpenAI endpoint and measure it; prove or refute what is said of an engine.

    `arc bench --url URL ...` is `arc bench run --url URL ...`.
    """


for _name, (_target, _summary) in BENCHES.items():
    bench.add_command(LazyCommand(_name, _target, _summary))
