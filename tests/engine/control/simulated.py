"""A small engine behind the control port: its own thread, steps, sequences and real flag changes, no model.

It is not a mock: commands run at its step borders, in order, through the same FlagChanges that the real engine uses.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arc.engine.config import Settings, load
from arc.engine.control.changes import FlagChanges, Pending
from arc.engine.control.commands import Cancel, Command, Drain, FlushPrefix, SetFlags, Unsupported
from arc.engine.control.engine_port import Published, Table
from arc.engine.control.events import EventLog
from arc.engine.control.protocol import (
    NA,
    Cancelled,
    DrainStarted,
    Event,
    Flushed,
    Graphs,
    Instruments,
    MemoryPart,
    Pages,
    SequenceView,
    Speculation,
)
from arc.engine.control.recorder import Recorder
from arc.engine.control.span_messages import SpanReport, Trace
from arc.engine.core.interface import Closed, EngineInfo, KernelUse
from arc.engine.flags import FlagError, FlagReason, Value
from arc.engine.sequence import FinishReason, WaitReason
from arc.engine.telemetry.records import Counters, StepRecord

PAGES = 256
RESERVED_RUNNING = 128  # sched.max_running cannot be raised past this


@dataclass
class Work:
    """One request: so many tokens to generate."""

    id: str
    number: int
    left: int
    arrived: float = field(default_factory=time.monotonic)
    running: bool = False
    done: int = 0


class SimulatedEngine:
    """`step_seconds`: how long a step takes; the test may change it while it runs."""

    def __init__(self, name: str = "sim", folder: Path | None = None, step_seconds: float = 0.002) -> None:
        self.info = EngineInfo(
            name=name, model="sim-1M", model_path="carried", model_type="deepseek_v3", parameters=1_000_000,
            dtype="bfloat16", device="cpu", max_model_len=2048, vocab_size=2048, page_size=32, pages=PAGES,
            version="0.1.0", revision="0000000", pid=os.getpid(), started=time.time(), profile="default",
            kernels=(KernelUse(operation="rope", backend="torch", refused={"triton": "the device is cpu"}),),
        )  # fmt: skip
        self.counters = Counters()
        self.counters.pages_total = self.counters.pages_free = PAGES
        self._recorder: Recorder | None = None
        self.events = EventLog(sink=self._to_recorder)
        self.step_ring: deque[StepRecord] = deque(maxlen=4096)
        self.step_seconds = step_seconds
        self.span_report: SpanReport | NA = NA("nothing was recorded yet")
        self.finished: list[str] = []
        self.lost: list[str] = []
        settings = load(folder=folder or Path("/nonexistent"), environ={})
        self.changes = FlagChanges(
            settings, self.events, envelope=_envelope, drains=self._drains, on_change=lambda old, new: None
        )
        self._wake = threading.Condition()
        self._commands: deque[tuple[Command, Future[Any]]] = deque()
        self._incoming: deque[Work] = deque()
        self._work: list[Work] = []
        self._numbers = 0
        self._steps = 0
        self._asked = self._lists_all = False
        self._stop = False
        self._draining = False
        self._published = self._publish()
        self._thread = threading.Thread(target=self._run, name="sim-engine", daemon=True)

    # -- the control port -----------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self.changes.settings

    @property
    def pending(self) -> tuple[Pending, ...]:
        return self.changes.pending

    def published(self) -> Published:
        return self._published

    def request_publish(self, *, table: bool = False) -> None:
        with self._wake:
            self._lists_all |= table
            self._asked = True
            self._wake.notify()

    def call(self, command: Command) -> Future[Any]:
        future: Future[Any] = Future()
        with self._wake:
            if self._stop:
                future.set_exception(Closed("the engine has stopped"))
            else:
                self._commands.append((command, future))
                self._wake.notify()
        return future

    def graphs(self) -> Graphs:
        return Graphs(
            captured=(1, 2),
            replays=7,
            plain={"prompt rows": 3},
            refused={"4 rows": "out of memory"},
            verifying={"3": (1, 2)},
        )

    def spans(self, window: float) -> SpanReport | NA:
        return self.span_report

    def trace(self, seconds: float) -> Trace | NA:
        return NA("this engine records no calls")

    def instruments(self) -> Instruments:
        off = NA("profile.enabled is off")
        return Instruments(spans=False, detail="layer", verdict="none", text="off", open_span=off)

    def memory(self) -> list[MemoryPart]:
        return [
            MemoryPart(component="weights", place="host", bytes=2_000_000),
            MemoryPart(component="KV", place="host", bytes=1_000_000),
            MemoryPart(component="graphs", place="host", bytes=NA("no graphs on the CPU")),
        ]

    def _to_recorder(self, event: Event) -> None:
        if self._recorder is not None:
            self._recorder.event(event)

    def record(self, recorder: Recorder) -> None:
        self._recorder = recorder

    # -- what a test does -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stop = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, tokens: int, name: str | None = None) -> str:
        with self._wake:
            self._numbers += 1
            work = Work(name or f"req-{self._numbers}", self._numbers, tokens)
            self._incoming.append(work)
            self._wake.notify()
        return work.id

    def wait_finished(self, count: int, timeout: float = 20.0) -> bool:
        end = time.monotonic() + timeout
        while len(self.finished) < count and time.monotonic() < end:
            time.sleep(0.002)
        return len(self.finished) >= count

    # -- the engine thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._border()
            if self._stop:
                return
            if self._admit():
                self._step()
            else:
                self._idle()

    def _border(self) -> None:
        with self._wake:
            commands, self._commands = list(self._commands), deque()
            incoming, self._incoming = list(self._incoming), deque()
            asked, self._asked = self._asked, False
        self._work += incoming
        for command, future in commands:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(self._carry_out(command))
                except Exception as error:
                    future.set_exception(error)
        self.changes.expire(step=self._steps, now=time.monotonic())
        self._gauges()
        if asked:
            self._published = self._publish()

    def _admit(self) -> list[Work]:
        if not self.settings.get_bool("sched.paused"):
            for work in self._work:
                if sum(each.running for each in self._work) >= self.settings.get_int("sched.max_running"):
                    break
                work.running = True
        return [work for work in self._work if work.running]

    def _idle(self) -> None:
        deadline = self.changes.next_deadline
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._wake:
            if not (self._commands or self._incoming or self._asked or self._stop):
                self._wake.wait(timeout)

    def _step(self) -> None:
        counters = self.counters
        started = counters.step_open_since = time.monotonic()
        self._gauges()
        if self._recorder is not None:
            self._recorder.opened(self._steps, counters.running)
        time.sleep(self.step_seconds)
        rows = [work for work in self._work if work.running]
        for work in rows:
            work.left -= 1
            work.done += 1
            if work.done == 1:
                counters.time_to_first_token.observe(time.monotonic() - work.arrived)
                counters.prompt_tokens += 10
                counters.prefix_queries += 10
                counters.prefix_hits += 4
        ended = [work for work in rows if work.left <= 0]
        self._work = [work for work in self._work if work.left > 0]
        self.finished += [work.id for work in ended]
        counters.finished[FinishReason.LENGTH] += len(ended)
        counters.generation_tokens += len(rows)
        counters.steps += 1
        counters.effective_batch = len(rows)
        now = time.monotonic()
        self.step_ring.append(
            StepRecord(
                index=self._steps, started=started, wall=now - started, schedule=0.0, forward=now - started,
                sample=0.0, publish=0.0, admitted=len(rows), rows=len(rows), decode_rows=len(rows), prompt_rows=0,
                prompt_tokens=0, waiting=counters.waiting, finished=len(ended), preempted=0,
                pages_used=len(rows), pages_cached=0, pages_free=PAGES - len(rows),
            )
        )  # fmt: skip
        if self._recorder is not None:
            self._recorder.closed(self.step_ring[-1])
        self._steps += 1
        counters.last_step_at, counters.step_open_since = now, None

    def _gauges(self) -> None:
        running = sum(work.running for work in self._work)
        counters = self.counters
        counters.running, counters.waiting = running, len(self._work) - running
        counters.pages_used, counters.pages_free = running, PAGES - running

    def _carry_out(self, command: Command) -> Any:
        if isinstance(command, SetFlags):
            return self.changes.apply(command, step=self._steps, now=time.monotonic())
        if isinstance(command, Cancel):
            known = {work.id for work in self._work}
            wanted = known if command.ids is None else set(command.ids)
            ended = sorted(known & wanted)
            self._work = [work for work in self._work if work.id not in wanted]
            self.counters.finished[FinishReason.CANCELLED] += len(ended)
            unknown = tuple(each for each in command.ids or () if each not in known)
            return Cancelled(step=self._steps, ended=tuple(ended), unknown=unknown, left=len(self._work))
        if isinstance(command, Drain):
            self._draining = True
            running = sum(work.running for work in self._work)
            until = None if command.deadline is None else time.time() + command.deadline
            return DrainStarted(
                step=self._steps, running=running, waiting=len(self._work) - running, until=until
            )
        if isinstance(command, FlushPrefix):
            return Flushed(
                step=self._steps, dropped=3, kept=1, why_kept="1 page is held by running sequences"
            )
        raise Unsupported("this engine has no allocator of its own: there is nothing to trim")

    def _publish(self) -> Published:
        running = [work for work in self._work if work.running]
        waiting = [work for work in self._work if not work.running]
        reason = WaitReason.PAUSED if self.settings.get_bool("sched.paused") else WaitReason.RUNNING_CAP
        now = time.monotonic()
        rows = tuple(_view(work, reason, now) for work in running + waiting)
        if not self._lists_all:
            rows = rows[:64]
        return Published(
            taken=now,
            step=self._steps - 1,
            running=len(running),
            waiting=len(waiting),
            waiting_by_reason={reason.value: len(waiting)} if waiting else {},
            effective_batch=self.counters.effective_batch,
            pages=Pages(PAGES, len(running), 0, PAGES - len(running)),
            draining=self._draining,
            table=Table(
                began=now,
                taken=now,
                step=self._steps - 1,
                total=len(self._work),
                parts=(rows,),
                whole=len(rows) == len(self._work),
            ),
            speculation=Speculation(depth=NA("simulated")),
        )

    def _drains(self, old: Settings, new: Settings) -> tuple[str, ...]:
        above = sum(work.running for work in self._work) - new.get_int("sched.max_running")
        return (f"{above} running sequences above sched.max_running end first",) if above > 0 else ()


def _view(work: Work, reason: WaitReason, now: float) -> SequenceView:
    return SequenceView(
        id=work.id, number=work.number, status="running" if work.running else "waiting",
        wait_reason=None if work.running else reason.value, priority=0, prompt_tokens=10, output_tokens=work.done,
        max_tokens=work.done + work.left, computed=10 + work.done, cached_prefix=4, pages=int(work.running),
        preemptions=0, age=now - work.arrived, queued=0.0 if work.running else None,
        first_token=0.0 if work.done else None, since_token=0.0 if work.done else None,
    )  # fmt: skip


def _envelope(changes: Mapping[str, Value]) -> dict[str, FlagError]:
    errors: dict[str, FlagError] = {}
    running = changes.get("sched.max_running")
    if isinstance(running, int) and running > RESERVED_RUNNING:
        message = f"sched.max_running cannot be {running}: room for {RESERVED_RUNNING} was reserved at start"
        errors["sched.max_running"] = FlagError("sched.max_running", FlagReason.BOUNDS, message)
    return errors
