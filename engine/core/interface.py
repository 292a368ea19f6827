"""The one handle through which the API sees the engine, and the errors that it gives at the door.

Everything here is a value or a call that could cross a process border: no scheduler, cache or model leaks through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ..sequence import FinishReason, Output, Request
from ..telemetry.records import Counters


class KernelUse(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs an operation of the model, and why those that were asked before do not."""

    operation: str
    backend: str
    refused: dict[str, str]  # backend -> reason


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is served, fixed for the life of the process."""

    name: str  # the engine's name on this machine
    model: str  # served model id
    model_path: str
    model_type: str  # deepseek_v2 or deepseek_v3
    parameters: int
    dtype: str
    device: str
    max_model_len: int  # prompt and output together, tokens
    vocab_size: int
    page_size: int
    pages: int
    version: str
    revision: str
    pid: int
    started: float  # time.time()
    profile: str
    kernels: tuple[KernelUse, ...] = ()


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`ok` is false when the engine thread is dead, drains, or has work and made no step for http.stall_s seconds."""

    ok: bool
    reason: str | None = None  # why not, when not ok


class TooManyWaiting(Exception):
    """sched.max_waiting would be passed: HTTP 429 with Retry-After, or 400 where waiting cannot help."""

    def __init__(self, waiting: int, cap: int, retry_after: int) -> None:
        super().__init__(f"{waiting} requests wait already and sched.max_waiting is {cap}")
        self.cap = cap
        self.retry_after = retry_after  # seconds


class Draining(Exception):
    """The engine takes no new work: it is draining before it stops. HTTP 503."""


class Closed(Exception):
    """The engine thread has ended and carries nothing out any more; the message says why."""


Receive = Callable[[Output], None]


class EngineHandle(Protocol):
    """All calls are made on the API's event loop; none of them blocks."""

    info: EngineInfo
    counters: Counters

    def check_room(self, count: int) -> None:
        """Whether `count` requests would be queued now. Raises TooManyWaiting or Draining when not all of them would.

        Submits that follow without another await between find that room, unless preempted sequences take it.
        """
        ...

    def submit(self, request: Request, receive: Receive) -> None:
        """Queue a request. `receive` is called on the loop with each step's Output; the last one carries `finish`.

        All requests of a step are told one after the other, in one turn of the loop: so `receive` is quick, and what
        goes wrong in it is its own affair, for it must not raise.
        Raises TooManyWaiting or Draining at once, with nothing queued.
        """
        ...

    def cancel(self, request_id: str, reason: FinishReason) -> None:
        """End a request in any state. Unknown or finished ids are ignored: the client may race with the end."""
        ...

    def health(self) -> Health: ...
