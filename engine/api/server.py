"""The HTTP server under the application: its errors in the API's one form, and an end that waits for nobody long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError

from ..json_errors import JsonErrors
from .errors import ApiError, internal_error, unsupported_encoding

LAST_ANSWERS_SECONDS = 3.0
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_NEVER = 3600.0  # aiohttp's own limits, which it waits for twice: the cut comes before them


class ApiRunner(web.AppRunner):
    """It cancels a handler at once when its client goes away, which ends its sequences."""

    def __init__(self, app: web.Application, last_answers: float) -> None:
        """`last_answers`: seconds at the end for clients to read what is theirs. By then the engine has drained."""
        self._log = _server_log()
        self._last_answers = last_answers
        super().__init__(
            app, handler_cancellation=True, access_log=None, logger=self._log, shutdown_timeout=_NEVER
        )

    async def _make_server(self) -> web.Server:
        """aiohttp's, with our connections in it."""
        made = await super()._make_server()
        return _Server(
            _in_one_form(made.request_handler), request_factory=made.request_factory, log=self._log
        )

    async def cleanup(self) -> None:
        cut = asyncio.get_running_loop().call_later(self._last_answers, self._cut_off)
        try:
            await super().cleanup()
        finally:
            cut.cancel()

    def _cut_off(self) -> None:
        """A client that does not read would keep its handler, and with it the process."""
        open_ones = self.server.connections if isinstance(self.server, web.Server) else []
        for connection in open_ones:
            if isinstance(connection.transport, asyncio.WriteTransport):
                connection.transport.abort()
        self._log.warning(
            "%d connections were cut off: their clients did not read the last answers within %g s",
            len(open_ones),
            self._last_answers,
        )


def _in_one_form(handler: Handler) -> Handler:
    """Errors that aiohttp finds before the application's own middlewares: an Expect that it does not know."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as refused:
            if refused.status < 400:
                raise
            words = _one_line(refused.text or refused.reason)
            error = ApiError(refused.status, words, code=HTTPStatus(refused.status).name.lower())
            return web.Response(status=error.status, body=error.body(), content_type="application/json")

    return answer


class _Server(web.Server):
    def __init__(self, handler: Handler, *, request_factory: object, log: logging.Logger) -> None:
        super().__init__(
            handler,
            request_factory=request_factory,  # pyright: ignore[reportArgumentType]  (as aiohttp made it)
            handler_cancellation=True,
        )
        self._log = log

    def __call__(self) -> web.RequestHandler:
        return _Connection(
            self,
            loop=self._loop,
            access_log=None,  # pyright: ignore[reportArgumentType]  # how aiohttp spells "none"
            logger=self._log,
        )


class _Connection(JsonErrors):
    def refusal(self, status: int, exc: BaseException | None, message: str | None) -> tuple[int, bytes]:
        if isinstance(exc, ContentEncodingError):  # one that this aiohttp knows and cannot unpack
            error = unsupported_encoding()
        elif isinstance(exc, HttpProcessingError) or status < 500:
            words = _one_line(message or str(exc))
            self.logger.info("not HTTP: %s", words)
            error = ApiError(
                status, f"this is no HTTP request that can be read: {words}", code="invalid_http"
            )
        else:
            error = internal_error(
                exc if isinstance(exc, Exception) else RuntimeError(message or "no answer")
            )
        return error.status, error.body()


def _one_line(text: str) -> str:
    """aiohttp's words without the line that points at the place, at most 200 characters, printable."""
    words = " ".join(text.replace("^", " ").split())
    return "".join(each if each.isprintable() else "?" for each in words)[:200]


def _server_log() -> logging.Logger:
    """Where the HTTP server reports. What a client does, noise or going away, is one line and not a traceback."""
    log = logging.getLogger("arc.api.http")
    log.addFilter(_in_one_line)
    return log


_CLIENTS_DOING: tuple[tuple[type[Exception], str], ...] = (
    (HttpProcessingError, "not HTTP"),
    (web.RequestPayloadError, "a body that cannot be read"),  # its handler has answered 400
    (ConnectionError, "a client went away"),
)


def _in_one_line(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    words = next((words for kind, words in _CLIENTS_DOING if isinstance(error, kind)), None)
    if words is not None:
        record.msg, record.args, record.exc_info = f"{words}: {_one_line(str(error))}", None, None
        record.levelno, record.levelname = logging.INFO, "INFO"
        return logging.getLogger(record.name).isEnabledFor(logging.INFO)
    return True
