"""Commands that are imported when they run, so that each starts as fast as what it needs itself."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from .uncollected import uncollected


class LazyCommand(click.Command):
    """Stands for the command `attribute` of `module` (both relative to the console) in help, typos and completion."""

    def __init__(self, name: str, target: str, summary: str) -> None:
        super().__init__(name, short_help=summary)
        self._target = target

    def load(self) -> click.Command:
        module, _, attribute = self._target.partition(":")
        with uncollected():
            command = getattr(import_module(module, __package__), attribute)
        assert isinstance(command, click.Command), self._target
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return self.load().make_context(info_name, args, parent, **extra)
