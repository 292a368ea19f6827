"""Connections: who is at the other end, how many there may be, and the end of those that stop reading."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from ..json_errors import JsonErrors
from .listening import Peer, peer_of
from .protocol import Problem, Role

MOST_CONNECTIONS = 64
LARGEST_BODY = 256 * 1024  # bytes
IDLE = 60.0  # seconds without a whole request
STALL = 5.0  # seconds in which a reader took nothing of what waits for it
_REFUSED_KEPT = 64  # connections past the cap that are kept until they ask; those beyond are told at once
FULL = Problem(
    error="too many connections",
    message=f"{MOST_CONNECTIONS} connections are open",
    hint="close a console and try again",
)
_FULL_BODY = msgspec.json.encode(FULL)
_FULL_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)

# aiohttp logs a traceback for each malformed request: noise on the socket must not become noise in the log.
_QUIET = logging.getLogger("arc.control.http")
_QUIET.setLevel(logging.CRITICAL)


class Connection(JsonErrors):
    """One connection and its role."""

    peer: Peer
    role: Role
    refused: bool = False  # past the cap: every request is answered 503
    _waiting_bytes: int = 0
    _progress: float = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._manager
        assert isinstance(server, ControlHttp) and isinstance(transport, asyncio.Transport)
        self.peer = peer_of(transport.get_extra_info("socket"))
        watching = transport.get_extra_info("sockname") == server.watch_path
        trusted = self.peer.uid in (0, os.geteuid())
        self.role = "operator" if trusted and not watching else "viewer"
        open_now = len(server.connections)
        self.refused = open_now >= MOST_CONNECTIONS
        super().connection_made(transport)
        if open_now >= MOST_CONNECTIONS + _REFUSED_KEPT:
            transport.write(_FULL_ANSWER)  # it lies there to be read, though the connection is over
            transport.close()

    def stalled(self, now: float) -> bool:
        """True when bytes have waited for the reader for STALL seconds and it took none of them."""
        transport = self.transport
        waiting = transport.get_write_buffer_size() if isinstance(transport, asyncio.WriteTransport) else 0
        if waiting == 0 or waiting < self._waiting_bytes or not self._waiting_bytes:
            self._progress = now
        self._waiting_bytes = waiting
        return waiting > 0 and now - self._progress > STALL

    def abort(self) -> None:
        """End it now; what waits to be sent is dropped."""
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()

    def refusal(self, status: int, exc: BaseException | None, message: str | None) -> tuple[int, bytes]:
        problem = Problem(
            error="malformed",
            message=(message or HTTPStatus(status).phrase).splitlines()[0],
            hint="speak HTTP/1.1: curl --unix-socket PATH http://arc/v1/hello",
        )
        return status, msgspec.json.encode(problem)


class ControlHttp(web.Server):
    """aiohttp's low-level server with our connections."""

    def __init__(
        self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], watch_path: str | None
    ) -> None:
        super().__init__(handler, request_factory=self._request)
        self.watch_path = watch_path

    def __call__(self) -> Connection:
        return Connection(
            self,
            loop=self._loop,
            keepalive_timeout=IDLE,
            tcp_keepalive=False,
            access_log=None,  # pyright: ignore[reportArgumentType]  # how aiohttp spells "none"
            logger=_QUIET,
            lingering_time=1.0,
            auto_decompress=False,
        )

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, self._loop, client_max_size=LARGEST_BODY
        )

    def cut_off_stalled(self) -> list[Connection]:
        """Abort the connections whose reader stalls, and those past the cap that ask nothing; says which stalled."""
        now = time.monotonic()
        stalled = [each for each in self.connections if isinstance(each, Connection) and each.stalled(now)]
        for connection in stalled:
            connection.abort()
        return stalled
