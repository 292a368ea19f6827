"""How the commands show values: one spelling for numbers, ages and what is not available."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence

from ..engine.control.protocol import NA, Trimmed


def seconds(value: float) -> str:
    """12 ms, 3.2 s, 4:05, 2:04:05, 3 d 4 h: short enough for a table, exact enough to act on."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
    return f"{hours // 24} d {hours % 24} h"


def optional_seconds(value: float | None) -> str:
    return "--" if value is None else seconds(value)


def count(value: float) -> str:
    return f"{value:,.0f}"


def mebibytes(value: int | NA) -> str:
    return f"NA ({value.na})" if isinstance(value, NA) else f"{value / 2**20:,.1f} MiB"


def trimmed(done: Trimmed) -> str:
    cap = "unbounded" if done.cap is None else f"cap {mebibytes(done.cap)}"
    return f"freed {mebibytes(done.freed)}, {mebibytes(done.held)} held, {cap}"


def clock(moment: float) -> str:
    """The time of day, with the date when it is not today's."""
    local = time.localtime(moment)
    today = time.localtime()[:3] == local[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", local)


def plain(text: str) -> str:
    """Text of others without what would act on the terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()
) -> list[str]:
    """Columns padded to their widest cell; those in `right` line up right. The last column is not padded."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def width() -> int:
    return shutil.get_terminal_size((100, 24)).columns
