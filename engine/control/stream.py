"""GET /v1/stream: server-sent events to one console.

A reader has no queue of its own. What it is sent next is always the newest snapshot, and the events after the last one
that it got, out of the engine's one ring: so a slow reader costs a number, and what the ring has lost is told as a gap.
"""

from __future__ import annotations

import asyncio
import math
import time

import msgspec
from aiohttp import web

from . import protocol as p
from .endpoints import Endpoint
from .engine_port import ControlPort
from .errors import problem
from .handlers import Handlers
from .history import TICK

HEARTBEAT = 5.0  # seconds of silence before a sign of life
_MOST_EVENTS = 256  # in one write: a reader that resumes from far back gets them in pieces


class Streams:
    """The open streams, which all end with a reason when the engine stops."""

    def __init__(self, port: ControlPort, handlers: Handlers) -> None:
        self._port = port
        self._handlers = handlers
        self._ending: str | None = None

    def end(self, reason: str) -> None:
        self._ending = reason

    async def serve(
        self, request: web.BaseRequest, endpoint: Endpoint, query: p.StreamQuery
    ) -> web.StreamResponse:
        cursor = _resume_from(request, query, self._port.events.last)
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        period = 1 / query.hz if query.hz else math.inf
        due = 0.0 if query.hz else math.inf  # the first snapshot at once
        sent = time.monotonic()
        while self._ending is None:
            now = time.monotonic()
            cursor, chunks, more = self._events(cursor)
            if now >= due:
                wait = min(period / 2, 0.2)
                chunks.append(
                    _message(
                        "snapshot", await self._handlers.encoded_snapshot(query.window, query.sequences, wait)
                    )
                )
                due = _next_due(now, period)
            if not chunks and now - sent >= HEARTBEAT:
                chunks.append(_message("heartbeat", msgspec.json.encode(p.Heartbeat(time.time()))))
            if chunks:
                # Returns once the transport has room again: meanwhile newer snapshots replace the unsent ones.
                await response.write(b"".join(chunks))
                sent = now
            await asyncio.sleep(0 if more else max(0.0, min(due - time.monotonic(), TICK)))
        await response.write(_message("bye", msgspec.json.encode(p.Bye(self._ending))))
        return response

    def _events(self, cursor: int) -> tuple[int, list[bytes], bool]:
        """The new cursor, the messages for what came after the old one, and whether there are more already."""
        if self._port.events.last == cursor:
            return cursor, [], False
        gap, events = self._port.events.since(cursor, _MOST_EVENTS)
        chunks: list[bytes] = []
        if gap is not None:
            chunks.append(_message("gap", msgspec.json.encode(gap), gap.last))
        chunks += [_message("event", msgspec.json.encode(event), event.number) for event in events]
        last = events[-1].number if events else self._port.events.last
        return last, chunks, len(events) == _MOST_EVENTS


def _next_due(now: float, period: float) -> float:
    """A multiple of the period, about one from now: consoles of one rate tick together and share their snapshots."""
    return math.inf if math.isinf(period) else (math.floor(now / period + 0.5) + 1) * period


def _message(event: str, data: bytes, number: int | None = None) -> bytes:
    head = f"event: {event}\n" if number is None else f"id: {number}\nevent: {event}\n"
    return b"%sdata: %s\n\n" % (head.encode(), data)


def _resume_from(request: web.BaseRequest, query: p.StreamQuery, last: int) -> int:
    given = request.headers.get("Last-Event-ID")
    if given is None:
        return last if query.since is None else query.since
    if not (given.isascii() and given.isdecimal() and len(given) <= 18):
        raise problem(
            400, "bad request", "Last-Event-ID is the number of an event", "leave it out to see new events"
        )
    return int(given)
