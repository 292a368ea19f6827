"""One method for each endpoint. Reads show published state; changes are carried out by the engine thread."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from ..config import Refused
from ..core.interface import Closed
from . import protocol as p
from . import span_messages as s
from . import views
from .allocator_messages import Allocator
from .audit import Audit, Entry
from .commands import (
    Actor,
    Cancel,
    Command,
    Drain,
    FlushPrefix,
    SetFlags,
    StaleVersion,
    TrimAllocator,
    Unsupported,
)
from .connections import Connection
from .endpoints import openapi
from .engine_port import ControlPort, Published
from .errors import Answer, problem
from .history import History
from .table_json import TableJson, encoded

FRESH_WAIT = 0.03  # seconds that a read waits for the engine to publish; else it shows the older state
WATCHED = 0.25  # seconds: while a step is under way, a state as young as that is shown at once
FRESH_ENOUGH = 0.02  # seconds: younger than that is as good as new
_POLL = 0.002
COMMAND_WAIT = 60.0  # seconds that a change waits for a step border


@dataclass(frozen=True, slots=True)
class Call:
    """One request, decoded and allowed."""

    connection: Connection
    query: Any
    body: Any
    parts: dict[str, str] = field(default_factory=dict)

    def actor(self, reason: str) -> Actor:
        peer = self.connection.peer
        return Actor(uid=peer.uid, gid=peer.gid, pid=peer.pid, reason=reason)


Handler = Callable[[Call], Coroutine[Any, Any, "msgspec.Struct | bytes"]]


class Handlers:
    def __init__(
        self, port: ControlPort, history: History, audit: Audit, recorder: str | p.NA, api: str | p.NA
    ) -> None:
        self._port = port
        self._history = history
        self._audit = audit
        self._recorder = recorder
        self._api = api
        self._schema = msgspec.json.encode(openapi(port.info.version))
        self._table_json = TableJson()
        self._snapshots: dict[tuple[float, bool], tuple[float, bytes]] = {}
        self._commanded = (
            -math.inf
        )  # when the last command was answered: what was published before is out of date

    # -- reads ----------------------------------------------------------------------------------------------------

    async def hello(self, call: Call) -> p.Hello:
        return views.hello(self._port, call.connection.peer, call.connection.role, self._recorder, self._api)

    async def kernels(self, call: Call) -> p.Kernels:
        return views.kernels(self._port)

    async def schema(self, call: Call) -> bytes:
        return self._schema

    async def snapshot(self, call: Call) -> bytes:
        return await self.encoded_snapshot(call.query.window, call.query.sequences, FRESH_WAIT)

    async def history(self, call: Call) -> p.History:
        return self._history_since(call.query.since, float(call.query.step))

    async def sequences(self, call: Call) -> bytes:
        table = (await self._fresh_table(FRESH_WAIT)).table
        limit: int | None = call.query.limit
        whole = limit is None or limit >= len(table.rows)
        rows = await (self._table_json.rows(table) if whole else encoded(table.rows[:limit]))
        return _with_rows(views.sequences(table, limit), rows)

    async def events(self, call: Call) -> p.Events:
        gap, events = self._port.events.since(call.query.since, call.query.limit)
        last = events[-1].number if events else self._port.events.last
        return p.Events(last=last, gap=gap, events=tuple(events))

    async def flags(self, call: Call) -> p.Flags:
        return views.flags(self._port.settings, self._port.pending)

    async def config(self, call: Call) -> p.Config:
        return views.config(self._port.settings)

    async def memory(self, call: Call) -> p.Memory:
        return views.memory(self._port.memory())

    async def spans(self, call: Call) -> s.SpanReport | p.NA:
        await self._fresh(FRESH_WAIT)  # with a state, the sums up to its step are published
        return self._port.spans(call.query.window)

    async def trace(self, call: Call) -> s.Trace | p.NA:
        await self._fresh(FRESH_WAIT)
        return self._port.trace(call.query.seconds)

    async def allocator(self, call: Call) -> Allocator:
        published = await self._fresh(FRESH_WAIT)
        recent, _ = self._history.window(call.query.window)
        return Allocator(
            seconds=recent.seconds, steps=recent.steps, window=recent.allocator, now=published.allocator
        )

    async def encoded_snapshot(self, window: float, with_sequences: bool, wait: float) -> bytes:
        """The newest snapshot as JSON. Consoles that ask alike at the same moment share one."""
        key = (window, with_sequences)
        await (self._fresh_table(wait) if with_sequences else self._fresh(wait))
        now = time.monotonic()
        made = self._snapshots.get(key)
        if made is None or made[0] < max(now - FRESH_ENOUGH, self._commanded):
            shot = views.snapshot(self._port, self._history, window)
            if with_sequences:
                content = _with_rows(shot, await self._table_json.rows(self._port.published().table))
            else:
                content = msgspec.json.encode(shot)
            self._snapshots = {k: v for k, v in self._snapshots.items() if now - v[0] <= FRESH_ENOUGH}
            made = self._snapshots[key] = (now, content)
        return made[1]

    async def _fresh(self, wait: float) -> Published:
        """A state published from now on, if a step border comes within `wait`; else the newest there is."""
        asked = time.monotonic()
        published = self._port.published()
        if published.taken >= max(asked - FRESH_ENOUGH, self._commanded):
            return published
        self._port.request_publish()
        under_way = self._port.counters.step_open_since is not None
        if under_way and wait <= FRESH_WAIT and published.taken >= max(asked - WATCHED, self._commanded):
            return published
        while published.taken < asked and time.monotonic() - asked < wait:
            await asyncio.sleep(_POLL)
            published = self._port.published()
        return published

    async def _fresh_table(self, wait: float) -> Published:
        """As `_fresh`, of a state with a whole table that was begun after the last command. Where none is done within
        `wait`, the newest state, whose table may be of before or not whole.
        """
        asked = time.monotonic()
        since = asked - (FRESH_ENOUGH if self._port.counters.step_open_since is None else WATCHED)
        published = self._port.published()
        if self._serves(published, since):
            if published.table.taken < asked - FRESH_ENOUGH:
                self._port.request_publish(table=True)  # for the next one who asks
            return published
        self._port.request_publish(table=True)
        while not self._serves(published, asked) and time.monotonic() - asked < wait:
            await asyncio.sleep(_POLL)
            published = self._port.published()
        return published

    def _serves(self, published: Published, since: float) -> bool:
        table = published.table
        return table.whole and table.taken >= since and table.began >= self._commanded

    def _history_since(self, since: float, step: float) -> p.History:
        samples = self._history.samples(step, since)
        start = samples[0].time - samples[0].seconds if samples else time.time()
        _, events = self._port.events.since(0)
        marks = tuple(event for event in events if event.kind == "mark" and event.time >= start)
        return p.History(step=step, bounds=views.LATENCY_BOUNDS, samples=samples, marks=marks)

    # -- flags ----------------------------------------------------------------------------------------------------

    async def patch_flags(self, call: Call) -> p.Applied:
        body: p.FlagsPatch = call.body
        return await self._set_flags(
            call,
            "set",
            SetFlags(
                actor=call.actor(body.reason),
                changes=body.changes,
                expect_version=body.expect_version,
                ttl=body.ttl,
                dry_run=body.dry_run,
            ),
        )

    async def delete_flag(self, call: Call) -> p.Applied:
        query: p.DeleteQuery = call.query
        actor = call.actor(query.reason)
        command = SetFlags(actor=actor, unset=(call.parts["name"],), expect_version=query.expect_version)
        return await self._set_flags(call, "unset", command)

    async def pause(self, call: Call) -> p.Applied:
        command = SetFlags(actor=call.actor(call.body.reason), changes={"sched.paused": True})
        return await self._set_flags(call, "pause", command)

    async def resume(self, call: Call) -> p.Applied:
        command = SetFlags(actor=call.actor(call.body.reason), changes={"sched.paused": False})
        return await self._set_flags(call, "resume", command)

    async def _set_flags(self, call: Call, name: str, command: SetFlags) -> p.Applied:
        asked = {**command.changes, **dict.fromkeys(command.unset)}
        try:
            applied: p.Applied = await self._on_engine(command)
        except Answer as answer:
            self._note(command.actor, name, asked, answer.problem.error, detail=answer.problem.message)
            raise
        if not applied.dry_run:
            difference = {flag: [change.old, change.new] for flag, change in applied.changes.items()}
            self._note(command.actor, name, difference, "ok", version=applied.version)
        return applied

    # -- actions --------------------------------------------------------------------------------------------------

    async def drain(self, call: Call) -> p.DrainStarted:
        body: p.DrainBody = call.body
        started: p.DrainStarted = await self._act(
            call,
            "drain",
            Drain(actor=call.actor(body.reason), deadline=body.deadline),
            {"deadline": body.deadline},
        )
        left = started.running + started.waiting
        deadline = "" if body.deadline is None else f", at most {body.deadline:g} s"
        self._event(call, "drain", f"draining {left} sequences{deadline}", body.reason, step=started.step)
        return started

    async def cancel(self, call: Call) -> p.Cancelled:
        body: p.CancelBody = call.body
        if body.all == bool(body.ids):
            raise problem(400, "bad request", "give either ids or all", '{"ids": ["..."]} or {"all": true}')
        command = Cancel(actor=call.actor(body.reason), ids=None if body.all else body.ids)
        done: p.Cancelled = await self._act(call, "cancel", command, {"ids": body.ids, "all": body.all})
        text = f"cancelled {len(done.ended)}, {done.left} left"
        self._event(
            call,
            "cancel",
            text,
            body.reason,
            step=done.step,
            ended=len(done.ended),
            unknown=list(done.unknown),
        )
        return done

    async def flush(self, call: Call) -> p.Flushed:
        done: p.Flushed = await self._act(call, "flush", FlushPrefix(actor=call.actor(call.body.reason)), {})
        kept = f", kept {done.kept}: {done.why_kept}" if done.kept else ""
        self._event(
            call, "flush", f"dropped {done.dropped} prefix pages{kept}", call.body.reason, step=done.step
        )
        return done

    async def trim(self, call: Call) -> p.Trimmed:
        done: p.Trimmed = await self._act(call, "trim", TrimAllocator(actor=call.actor(call.body.reason)), {})
        self._event(
            call, "trim", f"freed {done.freed} bytes, {done.held} held", call.body.reason, step=done.step
        )
        return done

    async def reset(self, call: Call) -> p.CountersReset:
        self._history.reset()
        self._commanded = time.monotonic()
        self._event(call, "reset", "the shown counters begin anew", call.body.reason)
        self._note(call.actor(call.body.reason), "reset", {}, "ok")
        return p.CountersReset(time.time())

    async def mark(self, call: Call) -> p.Marked:
        event = self._event(call, "mark", call.body.text, "", step=self._port.published().step)
        self._note(call.actor(""), "mark", {"text": call.body.text}, "ok")
        return p.Marked(event)

    async def dump(self, call: Call) -> p.Dump:
        """Everything that can be known without the engine thread's help: it may be the one that hangs."""
        port = self._port
        published = await self._fresh_table(FRESH_WAIT)
        gap, events = port.events.since(0)
        dumped = p.Dump(
            time=time.time(),
            hello=await self.hello(call),
            snapshot=views.snapshot(port, self._history, 60.0),
            sequences=views.sequences(published.table),
            config=views.config(port.settings),
            memory=views.memory(port.memory()),
            history=self._history_since(0.0, 1.0),
            events=p.Events(last=port.events.last, gap=gap, events=tuple(events)),
            steps=tuple(port.step_ring.copy()),
            threads=_thread_stacks(),
        )
        self._event(call, "dump", "everything known was dumped", call.body.reason)
        self._note(call.actor(call.body.reason), "dump", {}, "ok")
        return dumped

    async def _act(self, call: Call, name: str, command: Command, asked: dict[str, Any]) -> Any:
        try:
            done = await self._on_engine(command)
        except Answer as answer:
            self._event(call, "refused", f"{name}: {answer.problem.message}", command.actor.reason)
            self._note(command.actor, name, asked, answer.problem.error, detail=answer.problem.message)
            raise
        self._note(command.actor, name, asked, "ok")
        return done

    # -- the engine thread ----------------------------------------------------------------------------------------

    async def _on_engine(self, command: Command) -> Any:
        """The command's result. A command that found no step border in time is taken back whole."""
        future = self._port.call(command)
        waiter = asyncio.wrap_future(future)
        done, _ = await asyncio.wait({waiter}, timeout=COMMAND_WAIT)
        if not done and future.cancel():
            since = self._port.counters.step_open_since
            doing = (
                f"a step is under way for {time.monotonic() - since:.0f} s"
                if since
                else "no step is under way"
            )
            raise problem(
                504,
                "no step border",
                f"the engine came to no step border in {COMMAND_WAIT:.0f} s ({doing}); nothing was done",
                "`arc dump` says what its threads do",
            )
        try:
            return await waiter
        except Exception as error:
            _refuse(error)
        finally:
            self._commanded = time.monotonic()

    def _event(
        self, call: Call, kind: str, text: str, reason: str, *, step: int | None = None, **data: Any
    ) -> p.Event:
        peer = call.connection.peer
        because = f' "{reason}"' if reason else ""
        return self._port.events.add(kind, text + because, step=step, uid=peer.uid, pid=peer.pid, **data)

    def _note(
        self,
        actor: Actor,
        command: str,
        difference: dict[str, Any],
        result: str,
        *,
        detail: str = "",
        version: int | None = None,
    ) -> None:
        self._audit.write(
            Entry(
                time=time.time(),
                uid=actor.uid,
                gid=actor.gid,
                pid=actor.pid,
                command=command,
                version=self._port.settings.version if version is None else version,
                difference=difference,
                result=result,
                reason=actor.reason,
                detail=detail,
            )
        )


def _with_rows(answer: p.Sequences | p.Snapshot, rows: msgspec.Raw) -> bytes:
    return msgspec.json.encode(msgspec.structs.asdict(answer) | {"sequences": rows})


def _refuse(error: Exception) -> NoReturn:
    """The engine's refusal as an answer."""
    if isinstance(error, StaleVersion):
        stale = p.Problem(
            error="stale version",
            message=str(error),
            hint="read the flags again, and change them if you still want to",
            version=error.version,
        )
        raise Answer(409, stale) from None
    if isinstance(error, Refused):
        refused = {each.flag: p.Refusal(each.reason, each.message) for each in error.errors}
        raise Answer(
            422,
            p.Problem(
                error="refused",
                message=str(error),
                hint="nothing was applied; correct these and send all of them again",
                refused=refused,
            ),
        ) from None
    if isinstance(error, Unsupported):
        raise problem(501, "unsupported", str(error)) from None
    if isinstance(error, Closed):
        hint = "`arc events` and the log say why; start it again with `arc serve`"
        raise problem(503, "stopped", str(error), hint) from None
    raise error


def _thread_stacks() -> tuple[p.ThreadStack, ...]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return tuple(
        p.ThreadStack(
            name=names.get(ident, f"thread {ident}"),
            stack=tuple(line.rstrip() for line in traceback.format_stack(frame)),
        )
        for ident, frame in sys._current_frames().items()
    )
