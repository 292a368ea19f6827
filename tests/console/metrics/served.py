"""A real HTTP server that gives the pages it was told to, one after the other, or does worse."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Server(http.server.ThreadingHTTPServer):
    """`answer` may be replaced at any time; `asked` counts the requests."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self.answer = answer
        self.asked = 0
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news here."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/metrics"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.asked += 1
        self.server.answer(self)

    def log_message(self, format: str, *args: object) -> None:
        pass


def page(text: str | bytes, status: int = 200, **headers: str) -> Answer:
    """`headers` with _ for -; None as a declared length leaves it out."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        content = text if isinstance(text, bytes) else text.encode()
        handler.send_response(status)
        given = {"Content-Length": str(len(content)), **{k.replace("_", "-"): v for k, v in headers.items()}}
        for name, value in given.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def pages(*texts: str) -> Answer:
    """One after the other; the last one stays."""
    left = list(texts)

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        page(left.pop(0) if len(left) > 1 else left[0])(handler)

    return answer


@contextmanager
def serving(answer: Answer, port: int = 0) -> Iterator[Server]:
    server = Server(answer, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
