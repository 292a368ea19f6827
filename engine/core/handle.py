"""The API's side of the engine: submit, cancel, and each step's outputs by one call into the event loop.

All methods of `LocalHandle` run on the API's event loop except `deliver`, which the engine thread calls.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from ..config import Settings
from ..sequence import FinishReason, Output, Request
from ..telemetry.records import Counters
from .inbox import Cancellation, Inbox
from .interface import Closed, Draining, EngineInfo, Health, Receive, TooManyWaiting

_LONGEST_WAIT = 60  # seconds that Retry-After may say
_UNKNOWN_WAIT = 5  # seconds: what it says when nothing has finished lately


class OutputStream(AsyncIterator[Output]):
    """One request's outputs for a reader that awaits them: `push` receives them. A reader that lags gets what it missed
    as one Output: never a backlog of steps."""

    __slots__ = ("_ended", "_pending", "_wake")

    def __init__(self) -> None:
        self._pending: Output | None = None
        self._wake: asyncio.Future[None] | None = None
        self._ended = False

    def push(self, output: Output) -> None:
        self._pending = output if self._pending is None else _merge(self._pending, output)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def __anext__(self) -> Output:
        if self._ended:
            raise StopAsyncIteration
        while self._pending is None:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        output, self._pending = self._pending, None
        self._ended = output.finish is not None
        return output


def _merge(first: Output, second: Output) -> Output:
    logprobs = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = (first.logprobs or ()) + (second.logprobs or ())
    return Output(
        request_id=first.request_id,
        token_ids=first.token_ids + second.token_ids,
        logprobs=logprobs,
        finish=second.finish,
        cached_tokens=max(first.cached_tokens, second.cached_tokens),
    )


class LocalHandle:
    """An EngineHandle over an engine thread of this process."""

    def __init__(
        self,
        info: EngineInfo,
        counters: Counters,
        inbox: Inbox,
        settings: Callable[[], Settings],
    ) -> None:
        """`settings` gives those in force: the door's bounds are live flags."""
        self.info = info
        self.counters = counters
        self._inbox = inbox
        self._settings = settings
        self._receivers: dict[str, Receive] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_ended: Callable[[], None] = lambda: None
        self._finishes: deque[float] = deque(maxlen=64)
        self._draining = False
        self._dead: str | None = None

    def attach(self, loop: asyncio.AbstractEventLoop, on_ended: Callable[[], None] = lambda: None) -> None:
        """Name the event loop that outputs are delivered on, and what to call there when the engine thread has
        ended. Once, before the first submit.
        """
        self._loop = loop
        self._on_ended = on_ended

    def check_room(self, count: int) -> None:
        if self._dead is not None:
            raise Draining(f"the engine has stopped: {self._dead}")
        if self._draining:
            raise Draining("the engine is draining before it stops and takes no new requests")
        waiting, cap = (
            self.counters.waiting + self._inbox.pending_requests,
            self._settings().get_int("sched.max_waiting"),
        )
        if waiting + count > cap:
            raise TooManyWaiting(waiting, cap, self._retry_after())

    def submit(self, request: Request, receive: Receive) -> None:
        self.check_room(1)
        if request.id in self._receivers:
            raise ValueError(f"request id {request.id!r} is in use")
        try:
            self._inbox.submit(request)
        except Closed as closed:
            raise Draining(str(closed)) from None
        self._receivers[request.id] = receive

    def cancel(self, request_id: str, reason: FinishReason) -> None:
        if request_id in self._receivers:
            self._inbox.cancel(Cancellation(request_id, reason))

    def health(self) -> Health:
        if self._dead is not None:
            return Health(ok=False, reason=f"the engine thread has ended: {self._dead}")
        if self._draining:  # so that whoever spreads requests over engines sends no more here
            return Health(
                ok=False, reason="draining: it takes no new requests and stops when the last has ended"
            )
        counters, settings = self.counters, self._settings()
        has_work = counters.running > 0 or (counters.waiting > 0 and not settings.get_bool("sched.paused"))
        since = max(counters.step_open_since or 0.0, counters.last_step_at or 0.0, counters.work_since or 0.0)
        if has_work and since and (quiet := time.monotonic() - since) > settings.get_float("http.stall_s"):
            work = f"{counters.running} running and {counters.waiting} waiting"
            return Health(ok=False, reason=f"no step for {quiet:.0f} s with {work}")
        return Health(ok=True)

    @property
    def open_streams(self) -> int:
        return len(self._receivers)

    def drain(self) -> None:
        """Take no new requests from now on; those in the engine go on."""
        self._draining = True

    def deliver(self, outputs: list[Output]) -> None:
        """Called by the engine thread once a step, with everything that the step brought."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return  # nobody listens any more: the process is on its way out
        loop.call_soon_threadsafe(self._dispatch, outputs)

    def died(self, why: str) -> None:
        """Called by the engine thread when it ends: health turns false, submits are refused."""
        self._dead = why
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_ended)

    def _dispatch(self, outputs: list[Output]) -> None:
        receivers = self._receivers
        for output in outputs:
            if output.finish is None:
                receive = receivers.get(output.request_id)
            else:
                receive = receivers.pop(output.request_id, None)
                self._finishes.append(time.monotonic())
            if receive is not None:
                receive(output)

    def _retry_after(self) -> int:
        """Seconds until a place in the queue is likely free: the mean time between finishes, 1 to 60."""
        now = time.monotonic()
        recent = [at for at in self._finishes if now - at < _LONGEST_WAIT]
        if not recent:
            return _UNKNOWN_WAIT
        return max(1, min(_LONGEST_WAIT, math.ceil((now - recent[0]) / len(recent))))
