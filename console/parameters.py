"""Kinds of command line values that several commands take, each checked before a command begins its work."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click
import msgspec

from ..engine.control import protocol as p
from .exits import Failure
from .files import check_place


class FiniteRange(click.FloatRange):
    """A finite number within bounds: every comparison with NaN is false, so a range alone lets it pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number


class NewFile(click.Path):
    """A file to write in the end. That it can be is checked at once: what is measured must not be lost for a typo."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            check_place(path)
        except Failure as failure:
            self.fail(failure.message, param, ctx)
        return path


class Line(click.ParamType):
    """One line of text for people, as the engine takes it (protocol.Line)."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            return msgspec.json.decode(msgspec.json.encode(text), type=p.Line)
        except UnicodeEncodeError:
            self.fail(f"{value!r} is not UTF-8", param, ctx)
        except msgspec.ValidationError:
            self.fail("it is one line of at most 500 characters, without control characters", param, ctx)
