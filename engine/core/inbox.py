"""The one way into the engine thread: what others want of it, taken in at a step border.

Order at a border: commands (flag changes among them), cancellations, new sequences. A change is never
half-applied inside a step, and its answer can name the step at which it took effect (docs/design.md, "One step").
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ..sequence import FinishReason, Request
from .interface import Closed


@dataclass(frozen=True, slots=True)
class Cancellation:
    request_id: str
    reason: FinishReason
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Something to run on the engine thread between two steps; its result or exception goes to `answer`."""

    run: Callable[[], Any]
    answer: Future[Any]


@dataclass(frozen=True, slots=True)
class Taken:
    calls: list[Call]
    cancellations: list[Cancellation]
    requests: list[Request]


class Inbox:
    """Thread-safe, unbounded by itself: the door (`sched.max_waiting`) bounds requests before they come here."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._calls: deque[Call] = deque()
        self._cancellations: deque[Cancellation] = deque()
        self._requests: deque[Request] = deque()
        self._poked = False
        self._closed: str | None = None

    def submit(self, request: Request) -> None:
        """Raises Closed when nobody will ever take it in."""
        with self._wake:
            if self._closed is not None:
                raise Closed(self._closed)
            self._requests.append(request)
            self._wake.notify()

    def cancel(self, cancellation: Cancellation) -> None:
        with self._wake:
            self._cancellations.append(cancellation)
            self._wake.notify()

    def call(self, run: Callable[[], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._wake:
            if self._closed is not None:
                answer.set_exception(Closed(self._closed))
                return answer
            self._calls.append(Call(run, answer))
            self._wake.notify()
        return answer

    def poke(self) -> None:
        """Wake an idle engine, so that it publishes a fresh state."""
        with self._wake:
            self._poked = True
            self._wake.notify()

    def close(self, why: str) -> None:
        """Refuse requests and calls from now on. What is in the inbox stays there to be taken and answered."""
        with self._wake:
            self._closed = why

    @property
    def pending_requests(self) -> int:
        return len(self._requests)

    def take(self) -> Taken | None:
        """All that has come in since the last border; None when nothing has (the usual case, without a lock)."""
        if not (self._calls or self._cancellations or self._requests):
            return None
        with self._wake:
            taken = Taken(list(self._calls), list(self._cancellations), list(self._requests))
            self._calls.clear()
            self._cancellations.clear()
            self._requests.clear()
            return taken

    def wait(self, timeout: float | None) -> None:
        """Block until something comes in or somebody pokes, at most `timeout` seconds."""
        with self._wake:
            if not (self._calls or self._cancellations or self._requests or self._poked):
                self._wake.wait(timeout)
            self._poked = False
