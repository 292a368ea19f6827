"""Ends connections on which no request is being served for long: a head that never ends, a client that forgot.

The event loop has a bounded number of file descriptors, and the operator's socket takes from the same: connections that
ask nothing must not use them up.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

IDLE_SECONDS = 60.0
MOST_IDLE = 512  # past it the longest idle ones go at once


class IdleConnections:
    """Knows by `middleware` which connections are being served, and ends the others when `sweep` is called."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS, most_idle: int = MOST_IDLE) -> None:
        self._idle_seconds = idle_seconds
        self._most_idle = most_idle
        self._serving: dict[web.RequestHandler, int] = {}  # requests under way
        self._idle_since: dict[
            web.RequestHandler, float
        ] = {}  # rebuilt by each sweep, so the gone are forgotten

    def middleware(self) -> Middleware:
        @web.middleware
        async def watch(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            self._serving[connection] = self._serving.get(connection, 0) + 1
            try:
                return await handler(request)
            finally:
                self._serving[connection] -= 1
                if not self._serving[connection]:
                    del self._serving[connection]
                    self._idle_since[connection] = time.monotonic()

        return watch

    def sweep(self, server: web.Server) -> int:
        """End what has been idle too long, or is one too many; how many connections that were."""
        now = time.monotonic()
        idle = [each for each in server.connections if each not in self._serving]
        since = self._idle_since = {each: self._idle_since.get(each, now) for each in idle}
        idle.sort(key=since.__getitem__)
        surplus = max(0, len(idle) - self._most_idle)
        ended = [
            each
            for place, each in enumerate(idle)
            if place < surplus or now - since[each] > self._idle_seconds
        ]
        for connection in ended:
            if isinstance(connection.transport, asyncio.WriteTransport):
                connection.transport.abort()
        return len(ended)

    async def keep_sweeping(self, server: web.Server, every: float = 1.0) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(every)
            self.sweep(server)
