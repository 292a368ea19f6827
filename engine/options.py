"""The command line's form of the settings: one option per flag, generated from the registry.

`arc serve`, `arc check` and the engine's own entry take the same options through this one decorator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .config import profile_files
from .flags import FLAGS, Flag, environment_name, show

_OVERRIDES = "arc.overrides"  # key in click's context, where the options gather "flag=value"


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a click command --profile, --model, --set and one option per flag.

    The command is called with `profile: str | None` and `overrides: tuple[str, ...]` ("flag=value", as typed and
    not yet checked): what `config.load` takes.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        overrides = click.get_current_context().meta.get(_OVERRIDES, [])
        return function(*args, overrides=tuple(overrides), **kwargs)

    options = [
        click.option(
            "--profile",
            metavar="NAME",
            shell_complete=complete_profile,
            help="Profile to run; `arc profiles` lists them.",
        ),
        click.option(
            "--model",
            metavar="PATH",
            expose_value=False,
            callback=_gather_as("model.path"),
            help="Short for --model.path.",
        ),
        click.option(
            "--set",
            "assignments",
            metavar="FLAG=VALUE",
            multiple=True,
            expose_value=False,
            callback=_gather,
            help="Set any flag; may be repeated.",
        ),
        *(_option(flag) for flag in FLAGS.values()),
    ]
    decorated: Callable[..., Any] = call
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def complete_profile(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The shell's completions for a profile's name."""
    return [name for name in profile_files(Path.cwd()) if name.startswith(incomplete)]


def _option(flag: Flag) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    words = ["on", "off"] if flag.kind == "bool" else [*flag.words, *map(str, flag.choices)]

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return click.option(
        f"--{flag.name}",
        flag.name.replace(".", "_"),
        metavar="VALUE",
        expose_value=False,
        callback=_gather_as(flag.name),
        shell_complete=complete,
        help=f"{flag.meaning}: {flag.allowed}. [{show(flag.default)}; {environment_name(flag)}]",
    )


def _gather(context: click.Context, _parameter: click.Parameter, assignments: tuple[str, ...]) -> None:
    context.meta.setdefault(_OVERRIDES, []).extend(assignments)


def _gather_as(name: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def gather(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            _gather(context, parameter, (f"{name}={value}",))

    return gather
