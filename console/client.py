"""Talking to an engine: finding its control socket, and asking over it.

Plain http.client over a unix socket: `arc status` pays for no event loop. Every failure is said in words, with what to
do next and the exit code that scripts rely on.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..engine.control import paths
from ..engine.control import protocol as p
from .exits import Exit, Failure

T = TypeVar("T", bound=msgspec.Struct)

_CONNECT_TIMEOUT = struct.pack("@ll", 5, 0)  # struct timeval: seconds, microseconds
_FRESH = 0.5  # seconds
_TRIES = 3
_PAUSE = 0.1  # seconds
_CHANGE_TIMEOUT = 90.0  # a change waits for the end of a step, up to a minute
_READ_TIMEOUT = 8.0  # the control server answers a read from what is published, whatever the engine does


class NoEngine(Failure):
    exit_code = Exit.NO_ENGINE


class Refused(Failure):
    """The engine answered and said no."""

    exit_code = Exit.REFUSED

    def __init__(self, status: int, problem: p.Problem) -> None:
        lines = [problem.message]
        if len(problem.refused) > 1:  # a single one is the message already
            lines = ["refused, nothing was applied:"]
            lines += [f"  {name}: {each.message} ({each.reason})" for name, each in problem.refused.items()]
        if problem.hint:
            lines.append(problem.hint)
        super().__init__("\n".join(lines))
        self.status = status
        self.problem = problem


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One server-sent event. `number` is set for events of the engine's log and for gaps."""

    event: str
    number: int | None
    data: bytes


def connected(path: Path) -> socket.socket:
    """A connected socket, blocking. BlockingIOError when the queue of connections stays full.

    The limit is the kernel's send timeout: with a timeout of Python's own a full queue would be an error at once.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _CONNECT_TIMEOUT)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("arc", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = connected(self._path)
        self.sock.settimeout(self.timeout)

    def ask(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        """The answer, also one that was there before it was asked: an engine that takes no more connections says so and
        ends them."""
        with contextlib.suppress(BrokenPipeError):
            self.request(method, target, body=body, headers=headers)
        return self.getresponse()

    def patience(self, seconds: float) -> None:
        """How long to wait for what is asked next."""
        self.timeout = seconds
        if self.sock is not None:
            self.sock.settimeout(seconds)


class Client:
    """One connection to one engine. Not thread-safe. As a viewer it gives up its right to change anything."""

    def __init__(self, path: Path, *, timeout: float = _CHANGE_TIMEOUT, viewer: bool = False) -> None:
        """`timeout`: seconds for an answer; a read gets no more than _READ_TIMEOUT of it."""
        self.path = path
        self._timeout = timeout
        self._headers = {p.ROLE_HEADER: "viewer"} if viewer else {}
        self._connection = _UnixConnection(path, timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str, answer: type[T], **query: Any) -> T:
        return msgspec.json.decode(self.raw("GET", path, query=query), type=answer)

    def get_fresh(
        self, path: str, answer: type[T], whole: Callable[[T], bool] = lambda _: True, **query: Any
    ) -> T:
        """As `get`, of an answer with an `age`: an engine that nobody watched publishes at its next step border, which
        is worth waiting for a moment. A long step shows by the age of what comes then, or by what is not `whole`."""
        found = self.get(path, answer, **query)
        for _ in range(_TRIES):
            young = found.age < _FRESH  # pyright: ignore[reportAttributeAccessIssue]  # Snapshot and Sequences have it
            if young and whole(found):
                break
            time.sleep(_PAUSE)
            found = self.get(path, answer, **query)
        return found

    def post(self, path: str, body: msgspec.Struct, answer: type[T]) -> T:
        return msgspec.json.decode(self.raw("POST", path, _encoded(body)), type=answer)

    def patch(self, path: str, body: msgspec.Struct, answer: type[T]) -> T:
        return msgspec.json.decode(self.raw("PATCH", path, _encoded(body)), type=answer)

    def delete(self, path: str, answer: type[T], **query: Any) -> T:
        return msgspec.json.decode(self.raw("DELETE", path, query=query), type=answer)

    def raw(
        self, method: str, path: str, body: bytes | None = None, query: dict[str, Any] | None = None
    ) -> bytes:
        """The answer's body as it came. Raises Refused when the engine says no, NoEngine when it does not answer."""
        with self._failures():
            self._connection.patience(min(self._timeout, _READ_TIMEOUT) if method == "GET" else self._timeout)
            response = self._connection.ask(method, _target(path, query), body, self._headers)
            content = response.read()
        if response.status != 200:
            raise _refused(response.status, content)
        return content

    def stream(self, **query: Any) -> Iterator[StreamEvent]:
        """Server-sent events up to `bye`; NoEngine when they break off. The connection is then used up."""
        with self._failures():
            response = self._connection.ask("GET", _target("/v1/stream", query), None, self._headers)
            if response.status != 200:
                raise _refused(response.status, response.read())
            ended = False
            for message in _events(response):
                ended = message.event == "bye"
                yield message
            if not ended:  # http.client takes a stream that breaks off between two chunks for its end
                raise ConnectionResetError

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise NoEngine(f"no engine answers at {self.path}: start one with `arc serve`") from None
        except ConnectionRefusedError:
            raise NoEngine(_killed([self.path])) from None
        except BlockingIOError:
            raise NoEngine(f"{self.path} takes no more connections: close a console and try again") from None
        except PermissionError:
            raise NoEngine(f"{self.path} is another user's: ask its owner for control.group") from None
        except TimeoutError:
            raise NoEngine(
                f"the engine at {self.path} did not answer in time: it may be stopped or out of CPU; `arc ps` lists "
                "those that run, `arc dump --post-mortem` says what its last step was doing"
            ) from None
        except (ConnectionError, http.client.HTTPException) as error:
            raise NoEngine(
                f"the engine at {self.path} went away ({type(error).__name__}): `arc ps` lists those that run, "
                "`arc dump --post-mortem` says what its last step was doing"
            ) from None


def _encoded(body: msgspec.Struct) -> bytes:
    """Raises Failure for what came off a command line and is no text: bytes that are not UTF-8."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise Failure(f"{error.object!r} is not UTF-8, so it cannot be sent") from None


def _target(path: str, query: dict[str, Any] | None) -> str:
    path = urllib.parse.quote(path, errors="surrogateescape")  # names in it came off a command line
    given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urllib.parse.urlencode(given)}" if given else path


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refused(status: int, content: bytes) -> Refused:
    try:
        return Refused(status, msgspec.json.decode(content, type=p.Problem))
    except msgspec.DecodeError:
        shown = content[:200].decode("utf-8", "replace")
        return Refused(
            status, p.Problem(error="unknown answer", message=f"the engine answered {status}: {shown}")
        )


def _events(response: http.client.HTTPResponse) -> Iterator[StreamEvent]:
    event, number = "", None
    for raw in response:
        field, _, value = raw.rstrip(b"\n").partition(b": ")
        if field == b"event":
            event = value.decode()
        elif field == b"id":
            number = int(value)
        elif field == b"data":
            yield StreamEvent(event, number, value)
            event, number = "", None


def find(name: str | None) -> Path:
    """The control socket of the engine called `name`, else of the only one there is."""
    found = paths.sockets()
    if name is not None:
        matching = [path for path in found if path.stem == name]
        if matching:
            return matching[0]
        raise NoEngine(f"no engine is named {name or repr(name)}{_there_are(found)}")
    alive = [path for path in found if answers(path)]
    if len(alive) == 1:
        return alive[0]
    if not alive and found:
        raise NoEngine(_killed(found))
    if not alive:
        raise NoEngine(
            f"no engine runs here: start one with `arc serve` (looked in {paths.runtime_folder()}; "
            "XDG_RUNTIME_DIR must be the engine's own)"
        )
    raise Failure(f"several engines run here: choose one with --engine{_there_are(alive)}")


def answers(path: Path) -> bool:
    """Whether something listens there: the socket of a killed engine stays behind and refuses."""
    try:
        connected(path).close()
    except BlockingIOError:
        return True  # its queue of connections is full: somebody is there
    except OSError:
        return False
    return True


def _killed(left: list[Path]) -> str:
    """Of sockets where nobody listens any more: an engine that ends on purpose takes its own away."""
    named = ", ".join(str(path) for path in left)
    option = "" if left[0].stem == "main" else f" --engine {left[0].stem}"
    return (
        f"no engine answers at {named}: it was killed or crashed. `arc dump --post-mortem{option}` says what its last "
        "step was doing; start one with `arc serve`"
    )


def _there_are(found: list[Path]) -> str:
    return "; there are: " + ", ".join(path.stem for path in found) if found else "; none runs here"


def connect(name: str | None) -> Client:
    return Client(find(name))
