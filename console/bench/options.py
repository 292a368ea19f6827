"""What the commands of `arc bench` have in common: where to send, what to send, and where results go."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ...engine.flags import Value
from ..durations import Duration
from ..engine_option import complete_flag, engine_option
from ..exits import Failure
from ..files import check_place
from ..parameters import NewFile
from .load import Bounds
from .runner import Site, site
from .work import SHAPES, Lengths

Decorated = Callable[..., Any]

VOCAB = 2048  # ids that nearly every vocabulary has


class LengthsType(click.ParamType):
    """64, or 16..512."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Lengths:
        if isinstance(value, Lengths):
            return value
        low, dots, high = str(value).partition("..")
        try:
            lengths = Lengths(int(low), int(high) if dots else int(low))
        except ValueError:
            self.fail(f"{value!r} is no number of tokens: write 64 or 16..512", param, ctx)
        if not 1 <= lengths.low <= lengths.high:
            self.fail(f"{value!r}: at least 1, and the lower one first", param, ctx)
        return lengths


class ShapeType(click.ParamType):
    """The name of a shape, or a JSONL trace."""

    name = "work"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | Path:
        if isinstance(value, Path) or value in SHAPES:
            return value
        path = Path(str(value))
        if not path.is_file():
            self.fail(f"{value!r} is none of {', '.join(SHAPES)}, and no file", param, ctx)
        return path

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        del ctx, param
        return [CompletionItem(name) for name in SHAPES if name.startswith(incomplete)]


def _chain(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


site_options = _chain(
    click.option("--url", metavar="URL", help="An OpenAI endpoint; else the address of the arc engine that runs here."),
    engine_option,
    click.option("--model", metavar="ID", help="Needed where the endpoint serves several."),
    click.option("--endpoint", type=click.Choice(["completions", "chat"]), default="completions", show_default=True,
                 help="chat sends text and only of a trace that has it."),
    click.option("--timeout", type=Duration(), default="10m", show_default=True, help="For one request."),
)  # fmt: skip

out_options = _chain(
    click.option("--out", type=NewFile(), help="Write the results as JSON."),
    click.option("--json", "as_json", is_flag=True, help="Print the results as JSON."),
    click.option("--plot", is_flag=False, flag_value="-", metavar="[FILE.png]",
                 help="Draw the curves in the terminal, and into FILE."),
)  # fmt: skip

set_option = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="FLAG=VALUE",
    shell_complete=complete_flag,
    help="A live flag for the time of the measurement; it is put back. May be repeated.",
)
repeats_option = click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Passes, each of a seed of its own.",
)
seed_option = click.option("--seed", type=int, default=0, show_default=True, help="Of the first pass.")
vocab_option = click.option(
    "--vocab", type=click.IntRange(32), default=VOCAB, show_default=True,
    help="Prompts are drawn from token ids below this.",
)  # fmt: skip
bound_option = click.option(
    "--bound",
    "bounds",
    multiple=True,
    metavar="NAME=MS",
    help="What a good answer keeps, in milliseconds, of ttft, tpot or e2e. Goodput counts those that keep all.",
)


def site_of(url: str | None, engine: str | None, model: str | None, endpoint: Any, timeout: float) -> Site:
    """The API key comes from the environment, as the engine's does."""
    return site(url, engine, model, endpoint, os.environ.get("ARC_API_KEY"), timeout)


def assigned(assignments: tuple[str, ...]) -> dict[str, Value]:
    """FLAG=VALUE, each once. Values stay text: the engine's own registry reads them."""
    changes: dict[str, Value] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name or not text:
            raise click.BadParameter(f"{assignment!r} gives no flag a value: write FLAG=VALUE")
        if name in changes:
            raise click.BadParameter(f"{name} is given twice")
        changes[name] = text
    return changes


def bounds_of(given: tuple[str, ...]) -> Bounds:
    values: dict[str, float] = {}
    for each in given:
        name, _, text = each.partition("=")
        if name not in ("ttft", "tpot", "e2e"):
            raise click.BadParameter(f"{each!r}: a bound is of ttft, tpot or e2e, such as ttft=500")
        try:
            values[name] = float(text) / 1000
        except ValueError:
            raise click.BadParameter(f"{each!r}: {text!r} is no number of milliseconds") from None
        if not values[name] > 0:
            raise click.BadParameter(f"{each!r}: a bound is above zero")
    return Bounds(**values)


def checked_plot(plot: str | None) -> Path | None:
    """The PNG to write, before anything is measured: a misspelt name must not cost a run."""
    if plot in (None, "-"):
        return None
    path = Path(plot)
    if path.suffix != ".png":
        raise Failure(f"--plot {plot}: only FILE.png is written")
    from .chart import require_matplotlib

    require_matplotlib(path)
    check_place(path)
    return path
