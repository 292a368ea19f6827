"""A long table as JSON, in pieces: encoding holds the interpreter, and the engine thread waits meanwhile.

Whole and not by the page: pages would be of two tables, or the engine would have to keep tables for readers that never
come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from .engine_port import Table
from .protocol import SequenceView

PIECE = 500  # rows that are encoded at a time


class TableJson:
    """The rows of the newest table; who asks for the same one again, or at the same time, shares it."""

    def __init__(self) -> None:
        self._table: Table | None = None
        self._encoding: asyncio.Task[msgspec.Raw] | None = None

    async def rows(self, table: Table) -> msgspec.Raw:
        if self._table is not table or self._encoding is None:
            self._table = table
            self._encoding = asyncio.create_task(encoded(table.rows))
        return await asyncio.shield(self._encoding)  # one reader that goes away takes it from no other


async def encoded(rows: Sequence[SequenceView]) -> msgspec.Raw:
    pieces: list[bytes] = []
    for start in range(0, len(rows), PIECE):
        pieces.append(msgspec.json.encode(rows[start : start + PIECE])[1:-1])
        await asyncio.sleep(0)  # others of this loop, and by its wait for sockets the engine thread
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")
