"""The control side's view of the engine thread, and what it may ask of it (engine/control/engine_port.py).

`call`, `published`, `request_publish` and the attributes are for any thread; everything else here runs on the engine
thread at a step border.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, assert_never

from ..config import Settings
from ..control import commands
from ..control.changes import FlagChanges, Pending
from ..control.engine_port import Published, Table
from ..control.events import EventLog
from ..control.protocol import (
    NA,
    Applied,
    Cancelled,
    DrainStarted,
    Flushed,
    Graphs,
    Instruments,
    MemoryPart,
    Pages,
    Speculation,
    Trimmed,
)
from ..control.span_messages import Build, SpanReport, Trace
from ..flags import FlagError, FlagReason, Value
from ..memory.allocator import Allocator
from ..memory.cap import Cap
from ..profiler.profiler import Profiler
from ..profiler.sites import Detail
from ..scheduler.types import SchedulerConfig
from ..sequence import FinishReason
from ..telemetry.records import StepRecord
from ..version import UNKNOWN
from .engine import Engine
from .graphs import DecodeGraphs
from .handle import LocalHandle
from .interface import EngineInfo
from .sequence_table import SequenceTable, glance

log = logging.getLogger("arc.engine")

STEPS_KEPT = 4096
TABLE_KEPT = 5.0  # seconds that a whole table stays: whoever reads on has asked for another by then
FEW_ROWS = 64  # of a table that nobody wants: should no border ever come again, it says what ran


def scheduler_config(settings: Settings) -> SchedulerConfig:
    """The scheduler's part of the settings."""
    admission, losers = settings.get_str("admission.policy"), settings.get_str("admission.bucket_losers")
    order = settings.get_str("sched.order")
    assert admission in ("ragged", "bucketed") and losers in ("wait", "preempt")
    assert order in ("fcfs", "prefix", "priority")
    return SchedulerConfig(
        max_running=settings.get_int("sched.max_running"),
        max_step_tokens=settings.get_int("sched.max_step_tokens"),
        prefill_chunk=settings.get_int("sched.prefill_chunk"),
        order=order,
        paused=settings.get_bool("sched.paused"),
        admission=admission,
        bucket_losers=losers,
        prefix_cache=settings.get_bool("cache.prefix"),
        page_cap=settings.get_int_or_none("cache.page_cap"),
        spec_depth=settings.get_int("spec.depth"),
    )


class StepRing:
    """The newest steps, for whoever attaches late; the flight recorder is told of each as well."""

    def __init__(self) -> None:
        self.records: deque[StepRecord] = deque(maxlen=STEPS_KEPT)
        self.opened: Callable[[int, int], None] = lambda _index, _rows: None
        self.closed: Callable[[StepRecord], None] = lambda _record: None

    def step_opened(self, index: int, rows: int) -> None:
        self.opened(index, rows)

    def step_closed(self, record: StepRecord) -> None:
        self.records.append(record)
        self.closed(record)


class EnginePort:
    """Implements ControlPort over an engine thread of this process."""

    def __init__(
        self,
        *,
        engine: Engine,
        handle: LocalHandle,
        info: EngineInfo,
        settings: Settings,
        events: EventLog,
        ring: StepRing,
        memory: tuple[MemoryPart, ...],
        graphs: DecodeGraphs | str,
        profiler: Profiler,
        allocator: Allocator,
        put_in_force: Callable[[Settings], None],
        on_drained: Callable[[], None],
        no_drafts: str | None,
    ) -> None:
        """`put_in_force` applies what lies outside the scheduler (log level, kernels). `on_drained` is called once,
        on the engine thread, when a drain has come to its end. `no_drafts`: why this engine cannot speculate."""
        self.info = info
        self.counters = engine.counters
        self.events = events
        self.step_ring = ring.records
        self._engine = engine
        self._handle = handle
        self._memory = memory
        self._graphs = graphs
        self._profiler = profiler
        self._allocator = allocator
        self._put_in_force = put_in_force
        self._on_drained = on_drained
        self._no_drafts = no_drafts
        self._changes = FlagChanges(
            settings, events, envelope=self._envelope, drains=self._drains, on_change=self._on_change
        )
        self._arm(settings)
        self._draining = False
        self._drain_until: float | None = None
        self._drain_done = False
        self._wanted = False
        self._table = SequenceTable(engine.scheduler)
        self._table_wanted = False
        self._whole: Table | None = None  # the newest whole table
        self._profile(settings)
        self._published = self._build()
        engine.at_end = self._table.ended
        engine.at_border = self._at_border
        engine.idle_until = self._idle_until

    # -- from any thread ------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self._changes.settings

    @property
    def pending(self) -> tuple[Pending, ...]:
        return self._changes.pending

    def published(self) -> Published:
        return self._published

    def request_publish(self, *, table: bool = False) -> None:
        if table:
            self._table_wanted = True
        self._wanted = True
        self._engine.inbox.poke()

    def call(self, command: commands.Command) -> Future[Any]:
        return self._engine.inbox.call(lambda: self._carry_out(command))

    def memory(self) -> tuple[MemoryPart, ...]:
        return self._memory

    def graphs(self) -> Graphs:
        if isinstance(self._graphs, str):
            return Graphs(captured=(), replays=NA(self._graphs), plain={}, refused={})
        return Graphs(
            captured=self._graphs.captured.get(1, ()),
            replays=sum(self._graphs.replays.copy().values()),
            plain=dict(self._graphs.plain.copy()),
            refused={str(size): reason for size, reason in self._graphs.refused.items()},
            verifying={str(queries): rows for queries, rows in self._graphs.captured.items() if queries > 1},
        )

    def spans(self, window: float) -> SpanReport | NA:
        return self._profiler.report(self.build(), window) or _never_profiled()

    def trace(self, seconds: float) -> Trace | NA:
        return self._profiler.trace(self.build(), seconds) or _never_profiled()

    def instruments(self) -> Instruments:
        return self._profiler.instruments()

    def build(self) -> Build:
        """What a report about this engine names."""
        info, settings = self.info, self.settings
        known = info.revision != UNKNOWN
        return Build(
            version=info.version,
            revision=info.revision,
            dirty=info.revision.endswith("-dirty") if known else NA("the revision is not known"),
            model=info.model,
            dtype=info.dtype,
            device=info.device,
            profile=settings.profile,
            flags={name: settings[name] for name in settings.differs()},
        )

    # -- at a step border -----------------------------------------------------------------------------------------

    def _at_border(self) -> None:
        now = time.monotonic()
        due = self._changes.next_deadline
        if due is not None and due <= now:
            self._changes.expire(step=self._engine.steps, now=now)
        if self._draining and not self._drain_done:
            self._go_on_draining(now)
        if self._go_on_with_the_table() or self._wanted:
            self._wanted = False
            self._profiler.flush()
            self._published = self._build()

    def _idle_until(self) -> float | None:
        if self._table.under_way or self._table_wanted:
            return time.monotonic()
        waits = [self._changes.next_deadline, self._drain_until if not self._drain_done else None]
        return min((each for each in waits if each is not None), default=None)

    def _go_on_with_the_table(self) -> bool:
        """Whether a table is whole now. Who asks while one is being written gets the one after it."""
        if self._table_wanted and not self._table.under_way:
            self._table_wanted = False
            self._table.begin(self._engine.newest)
        if not self._table.under_way:
            return False
        done = self._table.go_on(self._engine.steps - 1)
        self._whole = done or self._whole
        return done is not None

    def _carry_out(self, command: commands.Command) -> object:
        step, now = self._engine.steps, time.monotonic()
        match command:
            case commands.SetFlags():
                return self._set_flags(command, step, now)
            case commands.Cancel():
                return self._cancel(command, step)
            case commands.Drain():
                return self._drain(command, step, now)
            case commands.FlushPrefix():
                return self._flush_prefix(step)
            case commands.TrimAllocator():
                return self._trim(step)
            case _:
                assert_never(command)

    def _set_flags(self, command: commands.SetFlags, step: int, now: float) -> Applied:
        return self._changes.apply(command, step=step, now=now)

    def _cancel(self, command: commands.Cancel, step: int) -> Cancelled:
        known = self._engine.sequences
        ids = tuple(known) if command.ids is None else command.ids
        found = [known[each] for each in dict.fromkeys(ids) if each in known]
        detail = f"cancelled by uid {command.actor.uid}"
        if command.actor.reason:
            detail += f": {command.actor.reason}"
        self._engine.end(found, FinishReason.CANCELLED, detail)
        ended = dict.fromkeys(seq.id for seq in found)
        return Cancelled(
            step=step,
            ended=tuple(ended),
            unknown=tuple(each for each in dict.fromkeys(ids) if each not in ended),
            left=len(known),
        )

    def _drain(self, command: commands.Drain, step: int, now: float) -> DrainStarted:
        self._handle.drain()
        self._draining = True
        until = None if command.deadline is None else now + command.deadline
        # A second drain may only bring the end nearer: whoever asked for the first one relies on it.
        if until is not None:
            self._drain_until = until if self._drain_until is None else min(until, self._drain_until)
        scheduler = self._engine.scheduler
        return DrainStarted(
            step=step,
            running=scheduler.running_count,
            waiting=scheduler.waiting_count,
            until=None if self._drain_until is None else time.time() + self._drain_until - now,
        )

    def _go_on_draining(self, now: float) -> None:
        engine = self._engine
        if engine.sequences and self._drain_until is not None and now >= self._drain_until:
            engine.end(
                list(engine.sequences.values()),
                FinishReason.CANCELLED,
                "the engine's drain reached its deadline",
            )
        if not engine.sequences and not engine.inbox.pending_requests:
            self._drain_done = True
            self._on_drained()

    def _flush_prefix(self, step: int) -> Flushed:
        flush = self._engine.scheduler.pages.flush()
        return Flushed(step=step, dropped=flush.dropped, kept=flush.kept, why_kept=flush.why_kept or "")

    def _trim(self, step: int) -> Trimmed:
        if self._allocator.cap is None:
            raise commands.Unsupported("alloc.enabled is off: there is nothing to trim")
        freed = self._allocator.trim()
        cap = self._allocator.cap
        return Trimmed(step=step, freed=freed, held=self._allocator.counters.held, cap=cap.bytes)

    # -- flags ----------------------------------------------------------------------------------------------------

    def _envelope(self, values: Mapping[str, Value]) -> Mapping[str, FlagError]:
        """Why this engine, as it was started, cannot have these values."""
        refused: dict[str, FlagError] = {}
        cap = values.get("cache.page_cap")
        if isinstance(cap, int) and cap > self.info.pages:
            refused["cache.page_cap"] = FlagError(
                "cache.page_cap",
                FlagReason.BOUNDS,
                f"cache.page_cap: {cap} is more than the {self.info.pages} pages reserved at start",
            )
        depth = values.get("spec.depth")
        if depth and self._no_drafts is not None:
            refused["spec.depth"] = FlagError(
                "spec.depth", FlagReason.CONFLICT, f"spec.depth cannot be {depth}: {self._no_drafts}"
            )
        return refused

    def _drains(self, old: Settings, new: Settings) -> tuple[str, ...]:
        drains: list[str] = []
        running, cap = self._engine.scheduler.running_count, new.get_int("sched.max_running")
        if cap < old.get_int("sched.max_running") and running > cap:
            drains.append(
                f"{running - cap} running sequences above the new cap of {cap} finish before any is admitted"
            )
        pages, used = new.get_int_or_none("cache.page_cap"), self._engine.scheduler.pages.used
        if pages is not None and used > pages:
            drains.append(
                f"{used - pages} pages above the new cap of {pages} come back as their sequences end"
            )
        return tuple(drains)

    def _on_change(self, old: Settings, new: Settings) -> None:
        self._profile(new)  # first: it asks the device, so it is the one that may fail
        self._put_in_force(new)
        self._engine.scheduler.configure(scheduler_config(new))
        self._engine.runner.depth = new.get_int("spec.depth")
        self._arm(new)

    def _profile(self, settings: Settings) -> None:
        detail = Detail[settings.get_str("profile.detail").upper()]
        self._profiler.configure(settings.get_bool("profile.enabled"), detail)

    def _arm(self, settings: Settings) -> None:
        before = self._allocator.cap
        self._allocator.configure(
            settings.get_bool("alloc.enabled"), settings.get_int_or_none("alloc.cap_mib")
        )
        cap = self._allocator.cap
        if cap is None or cap == before:
            return
        log.info("the allocator holds %s", _bound(cap))
        if cap.bytes is None:
            self.events.add("allocator", f"the allocator holds {_bound(cap)}", step=self._engine.steps)

    # -- what is published ----------------------------------------------------------------------------------------

    def _build(self) -> Published:
        engine = self._engine
        scheduler, pages, now = engine.scheduler, engine.scheduler.pages, time.monotonic()
        old = self._whole is not None and now - self._whole.taken > TABLE_KEPT
        if old and not self._table.under_way:  # else slow steps take long to write the one after it
            self._whole = None
        return Published(
            taken=now,
            step=engine.steps - 1,
            running=scheduler.running_count,
            waiting=scheduler.waiting_count,
            waiting_by_reason={str(reason): count for reason, count in scheduler.waiting_by_reason().items()},
            effective_batch=engine.counters.effective_batch,
            pages=Pages(total=self.info.pages, used=pages.used, cached=pages.cached, free=pages.free),
            draining=self._draining,
            table=self._whole or glance(scheduler, FEW_ROWS, engine.steps - 1),
            speculation=self._speculation(),
            allocator=self._allocator.state(),
        )

    def _speculation(self) -> Speculation:
        if self._no_drafts is not None:
            return Speculation(depth=NA(self._no_drafts))
        counters = self._engine.counters
        return Speculation(
            depth=self._engine.runner.depth,
            rows=counters.draft_rows,
            drafted=tuple(counters.drafted),
            accepted=tuple(counters.accepted),
            undrafted=dict(counters.undrafted),
        )


def _never_profiled() -> NA:
    return NA("nothing was recorded yet: `arc set profile.enabled=on`")


def _bound(cap: Cap) -> str:
    return (
        f"as much as it comes to: {cap.why}"
        if cap.bytes is None
        else f"{cap.bytes >> 20:,} MiB at most: {cap.why}"
    )
