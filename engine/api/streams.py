"""Server-sent events over one connection."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.http_writer import StreamWriter

LAST_SECONDS = (
    120.0  # for the client to take the end of a stream; a stopped client does not hold its place for ever
)
FULL = 65_536  # bytes that wait for the client in this process; past it, chunks are held and joined


class EventStream:
    """One response of `text/event-stream`. The status line goes out with the first event, so that a request that
    fails before it has an ordinary error answer. Raises ConnectionError when the client is gone.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",  # a proxy that buffers would turn the stream into one late answer
            }
        )
        self._writer: StreamWriter | None = None

    @property
    def open(self) -> bool:
        return self._writer is not None

    @property
    def full(self) -> bool:
        """The client reads slower than tokens come: what is pending should wait and go out joined.

        Never true once the connection closes, so that the next `send` finds out.
        """
        transport = self._request.transport
        return (
            transport is not None and not transport.is_closing() and transport.get_write_buffer_size() > FULL
        )

    async def send(self, events: bytes) -> None:
        """Hand events to the socket in one write, without waiting for the client to read them."""
        writer = self._writer or await self._begin()
        await writer.write(events, drain=False)

    async def end(self, events: bytes) -> web.StreamResponse:
        """Send the last events and wait until the client has taken them."""
        await self.send(events)
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._response.write_eof()
        except TimeoutError:
            if (transport := self._request.transport) is not None:
                transport.abort()
            raise ConnectionResetError("the client did not read the end of its stream") from None
        return self._response

    async def _begin(self) -> StreamWriter:
        writer = await self._response.prepare(self._request)
        assert isinstance(writer, StreamWriter)
        self._writer = writer
        return writer
