"""Writing a view to a file: CSV for tables, JSON for the rest."""

from __future__ import annotations

import csv
import io
import time
from pathlib import Path

import msgspec

from ..files import write_whole
from .views.view import Exported


def content(exported: Exported) -> bytes:
    if exported.heads:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(exported.heads)
        rows.writerows([_plain(cell) for cell in row] for row in exported.rows)
        return text.getvalue().encode()
    return msgspec.json.format(msgspec.json.encode(exported.value), indent=2) + b"\n"


def _plain(cell: str) -> str:
    """A spreadsheet takes a cell that starts so for a formula: ids and reasons are other people's text."""
    return "'" + cell if cell[:1] in ("=", "+", "@") or (cell[:1] == "-" and cell != "--") else cell


def write(exported: Exported, folder: Path, moment: time.struct_time) -> Path:
    """A new file; one that is there is never written over. Raises Failure."""
    suffix = "csv" if exported.heads else "json"
    stem = f"arc-{exported.name}-{time.strftime('%Y%m%d-%H%M%S', moment)}"
    path = folder / f"{stem}.{suffix}"
    number = 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.{suffix}"
    write_whole(path, content(exported))
    return path
