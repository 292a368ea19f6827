"""Durations as people write them: 90, 30s, 5m, 2h, 1d."""

from __future__ import annotations

import re
from typing import Any

import click

_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST = 30 * 86_400


class Duration(click.ParamType):
    """Seconds, as a float."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _FORM.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is no duration: write 30s, 5m, 2h or 1d", param, ctx)
        seconds = float(found[1]) * _SECONDS[found[2]]
        if not 0 < seconds <= _LONGEST:
            self.fail(f"{value!r} is out of range: more than nothing, at most 30d", param, ctx)
        return seconds
