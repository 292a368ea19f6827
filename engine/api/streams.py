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

    `send` is no coroutine: a token goes from the engine to the socket in one turn of the event loop, and no task is
    woken for it.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.begun = (
            asyncio.get_running_loop().create_future()
        )  # done: there is a first event, and `begin` is due
        self._held: list[bytes] = []  # events from before `begin`
        self._response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",  # a proxy that buffers would turn the stream into one late answer
            }
        )
        self._chunked: bool | None = None  # None until the status line is out

    @property
    def open(self) -> bool:
        return self._chunked is not None

    @property
    def full(self) -> bool:
        """The client reads slower than tokens come: what is pending should wait and go out joined.

        Never true once the connection closes, so that the next `send` finds out.
        """
        transport = self._request.transport
        return (
            transport is not None and not transport.is_closing() and transport.get_write_buffer_size() > FULL
        )

    def send(self, events: bytes) -> None:
        """Hand events to the socket in one write, without waiting for the client to read them.

        That is what aiohttp's own write does, which only a coroutine can call.
        """
        if self._chunked is None:
            self._held.append(events)
            if not self.begun.done():
                self.begun.set_result(None)
            return
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        transport.write(b"%x\r\n%b\r\n" % (len(events), events) if self._chunked else events)

    async def begin(self) -> None:
        """Send the status line, and what there is by then."""
        writer = await self._response.prepare(self._request)
        assert isinstance(writer, StreamWriter)
        self._chunked = writer.chunked
        for events in self._held:
            self.send(events)
        self._held.clear()

    async def end(self, events: bytes) -> web.StreamResponse:
        """Send the last events and wait until the client has taken them."""
        if not self.open:
            await self.begin()
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._response.write_eof(events)
        except TimeoutError:
            if (transport := self._request.transport) is not None:
                transport.abort()
            raise ConnectionResetError("the client did not read the end of its stream") from None
        return self._response
