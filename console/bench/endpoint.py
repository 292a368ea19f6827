"""One streamed completion over HTTP/1.1 on asyncio streams: what a load generator needs and nothing more.

A connection serves one request: there is no pool whose stale connections would have to be told from refusals, so no
request is ever sent twice. The time to connect is part of the latency, as for a client that comes for the first time.
"""

from __future__ import annotations

import asyncio
import ssl
import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass

_MOST_HEAD = 64 * 1024  # bytes of status line and headers
_MOST_EVENT = 4 * 1024 * 1024  # bytes of one event: memory is bounded whatever the server sends
_READ = 256 * 1024


class EndpointError(Exception):
    """The request failed. `kind` is a stable word to count by; the message is for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Address:
    """Where an OpenAI endpoint listens."""

    host: str
    port: int
    tls: bool
    prefix: str  # of every path: "" or "/something", without the closing /v1

    @classmethod
    def of(cls, url: str) -> Address:
        """From http://host:port, with or without /v1 at its end. Raises ValueError that says what is wrong."""
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http:// or https:// address, such as http://127.0.0.1:8000/v1")
        if parts.query or parts.fragment or parts.username:
            raise ValueError(f"{url!r}: only scheme, host, port and path are taken")
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), tls, prefix)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"

    @property
    def authority(self) -> str:
        return urllib.parse.urlsplit(self.url).netloc


async def events(
    address: Address, path: str, body: bytes, key: str | None, patience: float
) -> AsyncIterator[bytes]:
    """The data of each server-sent event of one POST, as it arrives. Raises EndpointError, also after `patience` s."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(patience):
            context = ssl.create_default_context() if address.tls else None
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, limit=_MOST_HEAD
            )
            writer.write(_request(address, path, body, key))
            await writer.drain()
            status, headers = await _head(reader)
            content = _content(reader, headers)
            if status != 200:
                raise await _refusal(status, headers, content)
            rest = b""
            async for data in content:
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:  # an event of this API has one line of data
                    if line.startswith(b"data:"):
                        yield line[5:].strip()
                if len(rest) > _MOST_EVENT:
                    raise EndpointError("event too long", f"an event of more than {_MOST_EVENT:,} bytes")
    except TimeoutError:
        raise EndpointError("timeout", f"no end within {patience:g} s") from None
    except (ConnectionError, ssl.SSLError, OSError) as error:
        kind = "connection refused" if isinstance(error, ConnectionRefusedError) else "connection lost"
        raise EndpointError(kind, f"{type(error).__name__}: {error}") from None
    except asyncio.IncompleteReadError:
        raise EndpointError("cut off", "the connection ended in the middle of the answer") from None
    except (asyncio.LimitOverrunError, ValueError) as error:
        raise EndpointError("not HTTP", f"the answer is no HTTP/1.1: {error}") from None
    finally:
        if writer is not None:
            writer.transport.abort()  # nothing more is wanted of it, and a close would wait


def _request(address: Address, path: str, body: bytes, key: str | None) -> bytes:
    lines = [
        f"POST {address.prefix}{path} HTTP/1.1",
        f"Host: {address.authority}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers (RFC 9112, sections 4 and 5). Names and encodings in lower case."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(first[:80])
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if "transfer-encoding" in headers:
        headers["transfer-encoding"] = headers["transfer-encoding"].lower()
    return int(rest[:3]), headers


def _content(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") == "chunked":
        return _chunked(reader)
    return _sized(reader, int(headers["content-length"]) if "content-length" in headers else None)


async def _sized(reader: asyncio.StreamReader, size: int | None) -> AsyncIterator[bytes]:
    """A body of so many bytes, or one that ends with the connection."""
    left = size
    while left is None or left > 0:
        data = await reader.read(_READ if left is None else min(left, _READ))
        if not data:
            if left is not None:
                raise asyncio.IncompleteReadError(b"", left)
            return
        if left is not None:
            left -= len(data)
        yield data


async def _chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A body in chunks (RFC 9112, section 7.1). One that breaks off raises IncompleteReadError."""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            return
        left = size
        while left:
            data = await reader.read(min(left, _READ))
            if not data:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(data)
            yield data
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk does not end where it says")


async def _refusal(status: int, headers: dict[str, str], content: AsyncIterator[bytes]) -> EndpointError:
    body = b""
    async for data in content:
        body += data
        if len(body) > _MOST_HEAD:
            break
    text = body[:500].decode("utf-8", "replace").strip()
    after = f" (Retry-After: {headers['retry-after']})" if "retry-after" in headers else ""
    return EndpointError(f"HTTP {status}", f"{text or 'no body'}{after}")
