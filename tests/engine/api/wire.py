"""Bytes on a socket: requests written by hand, and answers read as they come."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from .conftest import Served


def post(path: str, body: Any, *headers: str) -> bytes:
    """One HTTP/1.1 POST as bytes; `body` bytes are sent as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


@asynccontextmanager
async def connection(api: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection with a small receive buffer, closed at the end."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (api.host, api.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2048)
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """The next whole answer on a connection: status, headers (lower case), body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") != "chunked":
        return int(status.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return int(status.split()[1]), headers, body


def events(body: bytes) -> list[Any]:
    """The events of a stream, decoded; each is one `data:` line and a blank one."""
    blocks = body.split(b"\n\n")
    assert blocks.pop() == b""
    assert all(block.startswith(b"data: ") and b"\n" not in block for block in blocks)
    return [block if block == b"data: [DONE]" else json.loads(block[6:]) for block in blocks]
