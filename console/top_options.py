"""What the commands that open the console have in common: its options, and what it needs of a terminal."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Callable
from typing import Any

import click

Decorated = Callable[..., Any]

VIEWS = ("overview", "sequences", "spans", "allocator", "flags", "events")
THEMES = ("arc-dark", "arc-light", "arc-safe", "arc-ansi")


def _view_index(_context: click.Context, _parameter: click.Parameter, name: str) -> int:
    return VIEWS.index(name)


view_option: Callable[[Decorated], Decorated] = click.option(
    "--view", type=click.Choice(VIEWS), default="overview", show_default=True, callback=_view_index,
    help="The view to start with.",
)  # fmt: skip

theme_option: Callable[[Decorated], Decorated] = click.option(
    "--theme", type=click.Choice(THEMES), default="arc-dark", show_default=True, envvar="ARC_TOP_THEME",
    help="arc-safe is made for colour blindness, arc-ansi has the terminal's own 16 colours.",
)  # fmt: skip

ascii_option: Callable[[Decorated], Decorated] = click.option(
    "--ascii", "ascii_text", is_flag=True, help="No Unicode glyphs, as where the locale has none."
)


def has_terminal() -> bool:
    return sys.stdout.isatty() and sys.stdin.isatty()


def require_terminal(instead: str) -> None:
    """Raises UsageError, which says what to use instead."""
    if not has_terminal():
        raise click.UsageError(f"this is no terminal: {instead}")


def unicode_terminal() -> bool:
    """Whether the terminal can be trusted with braille: the Linux console's font has none."""
    encoding = (sys.stdout.encoding or locale.getpreferredencoding()).lower().replace("-", "")
    return encoding == "utf8" and os.environ.get("TERM") != "linux"
