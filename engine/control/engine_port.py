"""What the control server sees of the engine. The engine's core implements it; tests do with a simulated engine.

The control server runs on its own thread and event loop. Everything here is either a value that is replaced whole and
never changed, a number read without a lock, or a command that the engine thread carries out at a step border.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

import msgspec

from ..config import Settings
from ..core.interface import EngineInfo
from ..telemetry.records import Counters, StepRecord
from .allocator_messages import AllocatorState
from .changes import Pending
from .commands import Command
from .events import EventLog
from .protocol import NA, Graphs, Instruments, MemoryPart, Pages, SequenceView, Speculation
from .span_messages import SpanReport, Trace


@dataclass(frozen=True, kw_only=True)
class Table:
    """Sequences as rows: those that run, then those that wait. Written in pieces over some step borders; a row is its
    sequence as it stood at one of them. What is in `parts` is never changed once it is here.
    """

    began: float  # time.monotonic() before the first row
    taken: float  # and after the last
    step: int  # the last finished step then
    total: int  # sequences that ran or waited then, listed or not
    parts: tuple[Collection[SequenceView], ...]
    whole: bool = True  # it lists all that were there from `began` to `taken`

    @cached_property
    def rows(self) -> tuple[SequenceView, ...]:
        """Put together by who reads them, so that the engine thread copies none."""
        return tuple(chain.from_iterable(self.parts))


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's state at one step border: the gauges agree with each other. The table may be some steps older."""

    taken: float  # time.monotonic()
    step: int  # the last finished step
    running: int
    waiting: int
    waiting_by_reason: dict[str, int]
    effective_batch: int
    pages: Pages
    draining: bool
    table: Table  # the newest whole one while somebody reads them, else the first few of one
    speculation: Speculation
    allocator: AllocatorState | None = None


class ControlPort(Protocol):
    info: EngineInfo
    counters: Counters
    events: EventLog
    step_ring: deque[StepRecord]  # the newest steps, oldest first; readers copy it

    @property
    def settings(self) -> Settings:
        """The settings in force: one consistent set, replaced on change."""
        ...

    @property
    def pending(self) -> tuple[Pending, ...]:
        """Time-limited changes that are yet to end; replaced whole on change."""
        ...

    def published(self) -> Published:
        """The newest published state. Never blocks; `taken` says how old it is."""
        ...

    def request_publish(self, *, table: bool = False) -> None:
        """Ask for a fresh state at the next step border; an idle engine is woken. Nobody asks: none is built.

        `table`: with a whole table that is begun from now on, as soon as it is done. It takes as many step borders as
        it needs, and the state is published again then.
        """
        ...

    def call(self, command: Command) -> Future[Any]:
        """Have the engine thread carry out a command at a step border; the result's type is the command's own."""
        ...

    def graphs(self) -> Graphs:
        """How decode steps ran. Callable from any thread; never blocks."""
        ...

    def spans(self, window: float) -> SpanReport | NA:
        """Where the steps of the last `window` seconds went; NA while nothing was recorded. From any thread."""
        ...

    def trace(self, seconds: float) -> Trace | NA:
        """The single calls of the last `seconds`. From any thread."""
        ...

    def instruments(self) -> Instruments:
        """Whether spans are recorded, and their proof. From any thread."""
        ...

    def memory(self) -> Sequence[MemoryPart]:
        """The parts that the engine knows of, such as weights and KV. Callable from any thread; never blocks."""
        ...
