"""What the console asks an engine to do. Each call has its own connection and thread: a change may wait a step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from ...engine.control import protocol as p
from ..client import Client
from ..exits import Failure

T = TypeVar("T", bound=msgspec.Struct)
Done = Callable[[T | Failure], None]


class EngineCalls:
    """`back` brings an answer to the screen's own thread. As a viewer all of them are refused, by the engine itself."""

    def __init__(self, path: Path, viewer: bool, back: Callable[[Callable[[], None]], None]) -> None:
        self._path = path
        self._viewer = viewer
        self._back = back

    def patch(self, patch: p.FlagsPatch, done: Done[p.Applied]) -> None:
        self._call(lambda client: client.patch("/v1/flags", patch, p.Applied), done)

    def unset(self, flag: str, done: Done[p.Applied]) -> None:
        self._call(lambda client: client.delete(f"/v1/flags/{flag}", p.Applied), done)

    def cancel(self, id_: str, done: Done[p.Cancelled]) -> None:
        body = p.CancelBody(ids=(id_,), reason="arc top")
        self._call(lambda client: client.post("/v1/actions/cancel", body, p.Cancelled), done)

    def mark(self, text: str, done: Done[p.Marked]) -> None:
        self._call(lambda client: client.post("/v1/actions/mark", p.MarkBody(text=text), p.Marked), done)

    def trim(self, done: Done[p.Trimmed]) -> None:
        body = p.ReasonBody(reason="arc top")
        self._call(lambda client: client.post("/v1/actions/trim", body, p.Trimmed), done)

    def _call(self, ask: Callable[[Client], T], done: Done[T]) -> None:
        def run() -> None:
            answer: T | Failure
            try:
                with Client(self._path, viewer=self._viewer) as client:
                    answer = ask(client)
            except Failure as failure:
                answer = failure
            self._back(lambda: done(answer))

        threading.Thread(target=run, name="arc-call", daemon=True).start()
