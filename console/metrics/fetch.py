"""One page over HTTP, bounded in size and time. Standard library only; meant for a thread of its own.

Redirects are refused: the address that the operator named is the one that is read. No proxy is used.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass

from ..exits import Exit, Failure
from ..shown import plain

MOST_BYTES = 16 * 2**20
TIMEOUT = 5.0  # seconds for everything
_PIECE = 64 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity", "User-Agent": "arc-console"}


class NoPage(Failure):
    """There is no metrics page to be had there, and why: `reason` does not repeat the address."""

    exit_code = Exit.NO_ENGINE

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{plain(url)}: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Address:
    """Where a page is. `shown` is short and tells it from others."""

    url: str
    host: str
    port: int
    target: str
    secure: bool

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" + ("" if self.target == "/metrics" else self.target)


def address(text: str) -> Address:
    """An address as it is written on the command line. Raises Failure with the nearest right thing."""
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise Failure(f"--metrics {plain(text)}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        bare = text.partition("://")[2] or text
        raise Failure(
            f"--metrics {plain(text)}: write http:// or https:// in front, such as http://{plain(bare)}"
        )
    if parts.username is not None or parts.password is not None:
        raise Failure(
            "--metrics: an address with a user and a password is not supported: the page must be readable"
        )
    try:
        parts.hostname.encode("idna")  # what a connection would do, and fail at
    except UnicodeError:
        raise Failure(f"--metrics {plain(text)}: {plain(parts.hostname)!r} is no host's name") from None
    target = (parts.path if parts.path not in ("", "/") else "/metrics") + (
        f"?{parts.query}" if parts.query else ""
    )
    if not target.isascii() or not target.isprintable() or " " in target:
        raise Failure(f"--metrics {plain(text)}: write the path in percent-encoding")
    secure = parts.scheme == "https"
    return Address(text, parts.hostname, port if port is not None else 443 if secure else 80, target, secure)


@dataclass(frozen=True, slots=True)
class Fetched:
    """`at` (time.monotonic()) is when the answer began: the numbers are of then."""

    text: str
    at: float
    seconds: float  # that the answer took to begin


def fetch(where: Address, timeout: float = TIMEOUT) -> Fetched:
    """The page now, over a connection of its own. Raises NoPage."""
    connection = _connection(where, timeout)
    late = threading.Event()
    started = time.monotonic()
    with _failures(where, timeout, late), contextlib.closing(connection):
        connection.connect()
        with _deadline(connection.sock, timeout - (time.monotonic() - started), late):
            connection.request("GET", where.target, headers=_HEADERS)
            response = connection.getresponse()
            at = time.monotonic()
            _check(response)
            content = _content(response)
            if late.is_set():  # what was cut off may look like an end
                raise TimeoutError
    try:
        return Fetched(content.decode("utf-8"), at, at - started)
    except UnicodeDecodeError:
        raise NoPage(where.url, "the answer is no text, so it is no metrics page") from None


def _connection(where: Address, timeout: float) -> http.client.HTTPConnection:
    if where.secure:
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(where.host, where.port, timeout=timeout, context=context)
    return http.client.HTTPConnection(where.host, where.port, timeout=timeout)


@contextlib.contextmanager
def _deadline(connected: socket.socket, seconds: float, late: threading.Event) -> Iterator[None]:
    """Cuts the connection when the time is up: a socket's own timeout starts anew with every byte that drips in."""

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, seconds), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check(response: http.client.HTTPResponse) -> None:
    if response.status in _REDIRECTS:
        target = plain(response.headers.get("Location", "somewhere else"))
        raise _Refused(f"it redirects to {target}: name that address itself, if you mean it")
    if response.status != 200:
        hint = ": SGLang has the page only with --enable-metrics" if response.status == 404 else ""
        raise _Refused(f"it answered {response.status} {plain(response.reason)}{hint}")
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise _Refused(f"it sent the page as {plain(encoding)}, which was not asked for")


def _content(response: http.client.HTTPResponse) -> bytes:
    declared = response.length
    if declared is not None and declared > MOST_BYTES:
        raise _Refused(_too_long())
    pieces: list[bytes] = []
    size = 0
    while piece := response.read(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_BYTES:
            raise _Refused(_too_long())
    if response.length:  # read(n) does not complain of a body that ends before its declared length
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)


def _too_long() -> str:
    return f"its answer is longer than {MOST_BYTES >> 20} MiB, so it is no metrics page"


class _Refused(Exception):
    """The answer came and is not taken."""


@contextlib.contextmanager
def _failures(where: Address, timeout: float, late: threading.Event) -> Iterator[None]:
    """Every failure in words, with the address."""
    slow = f"no whole answer within {timeout:g} s"
    try:
        yield
    except _Refused as refused:
        raise NoPage(where.url, str(refused)) from None
    except (OSError, http.client.HTTPException) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            raise NoPage(where.url, slow) from None
        raise NoPage(where.url, _said(error)) from None


_SAID: tuple[tuple[type[Exception], str], ...] = (  # the first that fits
    (ssl.SSLError, "no TLS there: does it speak http:// ?"),
    (socket.gaierror, "no such host"),
    (ConnectionRefusedError, "nothing listens there"),
    (http.client.IncompleteRead, "the page broke off"),
    (ConnectionResetError, "the connection was closed without a whole answer"),
    (BrokenPipeError, "the connection was closed without a whole answer"),
    (http.client.HTTPException, "the answer is not HTTP"),
)


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    text = next((text for kind, text in _SAID if isinstance(error, kind)), None)
    return text or (isinstance(error, OSError) and error.strerror) or type(error).__name__
