"""The control server: its own thread and event loop, so that neither a busy API nor a long step delays an answer."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import msgspec
from aiohttp import web

from ..accepting import AcceptTrouble
from . import paths
from . import protocol as p
from .audit import Audit, Entry
from .connections import FULL, MOST_CONNECTIONS, Connection, ControlHttp
from .endpoints import Endpoint, Match, match
from .engine_port import ControlPort
from .errors import Answer, problem
from .handlers import Call, Handler, Handlers
from .history import PER_SECOND, TICK, History
from .listening import Listening
from .stream import Streams

_log = logging.getLogger("arc.control")

LONGEST_MESSAGE = 500  # characters
BODY_WAIT = 5.0  # seconds for a request's body to arrive
_STOP_WAIT = 2.0  # seconds for open answers when the engine stops
_NEVER = 3600.0  # aiohttp's own limit, which it waits for twice: the cut comes before it
_BY_ITSELF = ("reverted", "revert refused")  # events of the engine's own doing that the audit log keeps


class ControlServer:
    """Serves a port on bound sockets from `start` until `stop`."""

    def __init__(
        self,
        port: ControlPort,
        listening: Listening,
        recorder: str | p.NA,
        api: str | p.NA = p.NA("this engine serves no HTTP API"),  # noqa: B008  (frozen)
    ) -> None:
        """`recorder`: the flight recorder's file, `api`: the base of the HTTP API's address; or why there is none."""
        self._port = port
        self._listening = listening
        folder = paths.private_folder(paths.state_folder())
        self._audit = Audit(folder / f"{port.info.name}.audit.jsonl", port.events)
        self._history = History(port.counters, port.step_ring)
        self._handlers = Handlers(port, self._history, self._audit, recorder, api)
        self._streams = Streams(port, self._handlers)
        self._audited = port.events.last
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._http: ControlHttp | None = None
        self._thread = threading.Thread(target=self._run, name="arc-control", daemon=True)

    def start(self) -> None:
        """Returns when the socket answers."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self, reason: str = "the engine stops") -> None:
        """Tell the streams why, finish what is being answered, and release the name."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end, reason)
            self._thread.join()
        self._audit.close()
        self._listening.close()

    @property
    def open_connections(self) -> int:
        return 0 if self._http is None else len(self._http.connections)

    def _end(self, reason: str) -> None:
        self._streams.end(reason)
        self._stopping.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(AcceptTrouble(_log))
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._failure = error
            _log.exception("the control server ended")
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        watch_path = self._listening.watch_path
        server = self._http = ControlHttp(self._answer, None if watch_path is None else str(watch_path))
        runner = web.ServerRunner(server, shutdown_timeout=_NEVER)
        await runner.setup()
        for bound in (self._listening.socket, self._listening.watch_socket):
            if bound is not None:
                await web.SockSite(runner, bound, backlog=MOST_CONNECTIONS).start()
        self._ready.set()
        ticks = 0
        while not self._stopping.is_set():
            started = self._loop.time()
            self._tick(server, ticks)
            ticks += 1
            await self._pause(max(0.0, TICK - (self._loop.time() - started)))
        cut = self._loop.call_later(_STOP_WAIT, self._cut_off, server)
        await runner.cleanup()
        cut.cancel()

    def _cut_off(self, server: ControlHttp) -> None:
        """A console that does not read would keep its answer, and with it the engine's end."""
        left = [each for each in server.connections if isinstance(each, Connection)]
        for connection in left:
            connection.abort()
        _log.warning("%d consoles were cut off: they did not read the end within %g s", len(left), _STOP_WAIT)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _tick(self, server: ControlHttp, ticks: int) -> None:
        self._history.tick()
        if self._port.events.last != self._audited:
            self._audit_by_itself()
        if ticks % PER_SECOND == 0:
            for connection in server.cut_off_stalled():
                peer = connection.peer
                text = f"a console (uid {peer.uid}, pid {peer.pid}) stopped reading and was cut off"
                self._port.events.add("cut off", text, uid=peer.uid, pid=peer.pid)

    def _audit_by_itself(self) -> None:
        _, events = self._port.events.since(self._audited)
        for event in events:
            if event.kind in _BY_ITSELF:
                version = self._port.settings.version
                self._audit.write(
                    Entry(
                        time=event.time,
                        uid=None,
                        gid=None,
                        pid=None,
                        command=event.kind,
                        version=event.data.get("version", version),
                        difference=event.data.get("changes", {}),
                        result="ok" if event.kind == "reverted" else "refused",
                        reason="",
                        detail=event.text,
                    )
                )
        self._audited = events[-1].number if events else self._audited

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request, whatever happens in it."""
        try:
            return await self._dispatch(request)
        except Answer as answer:
            return _problem(answer.status, answer.problem)
        except ConnectionError:
            raise  # the console is gone; aiohttp ends the connection
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.path)
            text = f"{request.method} {request.path} failed: {error!r}"
            self._port.events.add("fault", text)
            return _problem(500, p.Problem(error="fault", message=text, hint="`arc dump` for a report"))

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        if connection.refused:
            raise Answer(503, FULL)
        endpoint, parts = _find(request)
        _lower_role(connection, request.headers.get(p.ROLE_HEADER))
        if endpoint.role == "operator" and connection.role != "operator":
            raise problem(
                403,
                "role",
                f"a viewer may not {request.method} {endpoint.path}",
                "ask as the engine's own user, on its own socket, without lowering the role",
            )
        query = _query(request, endpoint)
        if endpoint.stream:
            return await self._streams.serve(request, endpoint, query)
        body = None if endpoint.body is None else await _body(request, endpoint.body)
        handler: Handler = getattr(self._handlers, endpoint.handler)
        answer = await handler(Call(connection, query, body, parts))
        encoded = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
        return web.Response(body=encoded, content_type="application/json")


def _problem(status: int, body: p.Problem) -> web.Response:
    if len(body.message) > LONGEST_MESSAGE:  # it quotes what was sent, which may be all of a body
        body = msgspec.structs.replace(body, message=body.message[: LONGEST_MESSAGE - 1] + "…")
    response = web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
    if status in (408, 413, 503):
        response.force_close()
    return response


def _find(request: web.BaseRequest) -> tuple[Endpoint, dict[str, str]]:
    found = match(request.method, request.path)
    if isinstance(found, Match):
        return found.endpoint, found.parts
    if found:
        raise problem(405, "method", f"{request.path} takes {', '.join(found)}, not {request.method}")
    raise problem(404, "no such path", f"there is no {request.path}", "GET /v1/schema lists what there is")


def _lower_role(connection: Connection, wanted: str | None) -> None:
    """A connection may become a viewer; nothing makes it an operator again."""
    if wanted is None:
        return
    if wanted not in ("viewer", "operator"):
        raise problem(400, "bad request", f"{p.ROLE_HEADER} is viewer or operator")
    if wanted == "operator" and connection.role == "viewer":
        raise problem(
            403, "role", "this connection is a viewer's, and no request can raise it", "connect anew"
        )
    connection.role = wanted


_PATTERNS = {
    repr(p.LINE): "is one line of text, without control characters",
    repr(p.WORDS): "is one line of text that is not blank, without control characters",
}


def _plainly(error: Exception) -> str:
    """msgspec's report, but for patterns, which it quotes: what they ask for."""
    what, _, place = str(error).rpartition(" - at ")
    for pattern, words in _PATTERNS.items():
        if what.endswith(pattern):
            return f"{place.strip('`').removeprefix('$.')} {words}"
    return str(error)


def _query(request: web.BaseRequest, endpoint: Endpoint) -> Any:
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name in given:
            raise problem(400, "bad request", f"{name} is given twice")
        given[name] = value
    try:
        return msgspec.convert(given, endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise problem(
            400, "bad request", f"in the query: {_plainly(error)}", "GET /v1/schema says what may stand there"
        ) from None


async def _body(request: web.BaseRequest, wanted: type[msgspec.Struct]) -> Any:
    """The decoded body. No body at all is an empty one, where nothing in it is required."""
    try:
        async with asyncio.timeout(BODY_WAIT):
            raw = await request.read()
    except TimeoutError:
        raise problem(408, "half a message", f"the body did not arrive within {BODY_WAIT:.0f} s") from None
    except web.HTTPRequestEntityTooLarge:
        raise problem(413, "too large", "the body is larger than any message can be") from None
    except web.RequestPayloadError:
        raise problem(400, "malformed", "the body ended early or is not what its header says") from None
    try:
        return msgspec.json.decode(raw or b"{}", type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise problem(
            400, "bad request", f"in the body: {_plainly(error)}", "GET /v1/schema says what may stand there"
        ) from None
