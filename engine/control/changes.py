"""Flag changes while the engine runs: atomic, versioned, inside what was reserved at start, for a time if asked.

Pure of threads, clocks and torch: the engine thread calls `apply` and `expire` at step borders and passes the time.

Invariant: a flag's runtime value is that of the last accepted change that named it, unless that change was limited in
time and the time is over; then it is that of the last accepted change before it that was not limited. A flag that no
change names any more has the value of the layers below.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..config import Layer, Layered, Origin, Refused, Settings
from ..flags import FlagError, FlagReason, Value, check, lookup, parse, show
from .commands import Actor, SetFlags, StaleVersion
from .events import EventLog
from .protocol import Applied, Change

Envelope = Callable[[Mapping[str, Value]], Mapping[str, FlagError]]
"""Why the engine, as it was started, cannot have these new effective values: flag name -> error; empty when it can."""

Drains = Callable[[Settings, Settings], tuple[str, ...]]
"""What has to end before the new settings are met, in words: "12 running sequences above the new cap"."""

OnChange = Callable[[Settings, Settings], None]
"""Put the new settings in force. When it raises, the old ones stay."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A time-limited change of one flag that is yet to end."""

    flag: str
    until: float  # time.time(), for people
    back_to: Value


@dataclass(frozen=True, slots=True)
class _Limited:
    deadline: float  # on the clock of `now`
    until: float
    base: Layered | None  # the runtime layer to come back to; None: there was none
    blocked: bool = False  # its end was refused; tried again after the next accepted change


class FlagChanges:
    """The one holder of the settings in force. All methods are the engine thread's; the attributes anyone may read."""

    def __init__(
        self,
        settings: Settings,
        events: EventLog,
        *,
        envelope: Envelope,
        drains: Drains,
        on_change: OnChange,
    ) -> None:
        self.settings = settings
        self.pending: tuple[Pending, ...] = ()
        self._events = events
        self._envelope = envelope
        self._drains = drains
        self._on_change = on_change
        self._limited: dict[str, _Limited] = {}

    @property
    def next_deadline(self) -> float | None:
        """When `expire` is next due, on the clock of `now`: an idle engine waits no longer than that."""
        return min((each.deadline for each in self._limited.values() if not each.blocked), default=None)

    def apply(self, command: SetFlags, *, step: int, now: float) -> Applied:
        """All of the command, in force from `step` on. Raises StaleVersion or Refused, with nothing changed.

        A change supersedes a pending end of an earlier one of the same flag.
        """
        if command.expect_version is not None and command.expect_version != self.settings.version:
            raise StaleVersion(command.expect_version, self.settings.version)
        actor = command.actor
        wall = time.time()
        origin = Origin(
            Layer.RUNTIME,
            f"uid {actor.uid} pid {actor.pid}",
            uid=actor.uid,
            pid=actor.pid,
            reason=actor.reason or None,
            step=step,
            time=wall,
        )
        try:
            runtime, new = self._wanted(command, origin)
        except Refused as refused:
            self._note_refusal(command, refused, step)
            raise
        until = None if command.ttl is None else wall + command.ttl
        old = self.settings
        changes = {name: Change(old[name], new[name]) for name in runtime}
        drains = self._drains(old, new)
        if not command.dry_run and new is not old:
            self._put_in_force(new)
            self._limit(runtime, old, command.ttl, now, until)
            text = f"{describe(changes)}{_because(actor.reason)}{_lasting(command.ttl)}"
            self._note("flags", text, step, changes, new.version, actor=actor, until=until)
        return Applied(
            step=step,
            version=new.version,
            changes=changes,
            drains=drains,
            until=until,
            dry_run=command.dry_run,
        )

    def expire(self, *, step: int, now: float) -> None:
        """End the time-limited changes that are due: those that ended together go back together.

        A value that can no longer come back, because of what was changed since, stays and is announced; it is tried
        again after each accepted change.
        """
        due = {
            name: each.base
            for name, each in self._limited.items()
            if each.deadline <= now and not each.blocked
        }
        while due:
            try:
                new = self._checked(due)
            except Refused as refused:
                for error in refused.errors:
                    self._block(error.flag, error.message, step)
                    due.pop(error.flag)
                continue
            old = self.settings
            try:
                self._put_in_force(new)
            except Exception as error:  # the engine goes on with the old settings, and says so
                for name in due:
                    self._block(name, f"putting it in force failed: {error!r}", step)
                return
            for name in due:
                del self._limited[name]
            self._publish_pending()
            changes = {name: Change(old[name], new[name]) for name in due}
            self._note("reverted", f"{describe(changes)} (the time was over)", step, changes, new.version)
            return

    def _wanted(self, command: SetFlags, origin: Origin) -> tuple[dict[str, Layered | None], Settings]:
        """The runtime layers that the command asks for and the settings with them.

        Refused names every flag at fault, not only those of the first check that failed: the rest goes on to the next.
        """
        runtime, errors = _typed(command, origin)
        try:
            return runtime, self._checked(runtime, errors)
        except Refused as refused:
            # A conflict may come of a value that is refused for itself: then it is no reason of its own.
            own = [error for error in refused.errors if error.reason is not FlagReason.CONFLICT]
            raise Refused(own or refused.errors) from None

    def _checked(self, runtime: Mapping[str, Layered | None], errors: Sequence[FlagError] = ()) -> Settings:
        """The settings with these runtime layers, if registry and envelope allow them. `errors`: found before."""
        found = list(errors)
        new = self.settings
        try:
            new = self.settings.with_layers(runtime)
        except Refused as refused:
            found += refused.errors
        faulty = {error.flag for error in found if error.reason is not FlagReason.CONFLICT}
        values = {
            name: _below(self.settings, name) if layered is None else layered.value
            for name, layered in runtime.items()
            if name not in faulty
        }
        found += self._envelope(values).values()
        if found:
            raise Refused(found)
        return new

    def _put_in_force(self, new: Settings) -> None:
        self._on_change(self.settings, new)
        self.settings = new
        self._limited = {
            name: _Limited(each.deadline, each.until, each.base) for name, each in self._limited.items()
        }

    def _limit(
        self,
        runtime: Mapping[str, Layered | None],
        old: Settings,
        ttl: float | None,
        now: float,
        until: float | None,
    ) -> None:
        for name in runtime:
            before = self._limited.pop(name, None)
            if ttl is not None and until is not None:
                base = before.base if before is not None else _runtime_layer(old, name)
                self._limited[name] = _Limited(now + ttl, until, base)
        self._publish_pending()

    def _publish_pending(self) -> None:
        self.pending = tuple(
            Pending(name, each.until, each.base.value if each.base else _below(self.settings, name))
            for name, each in self._limited.items()
        )

    def _block(self, name: str, why: str, step: int) -> None:
        before = self._limited[name]
        self._limited[name] = _Limited(before.deadline, before.until, before.base, blocked=True)
        text = f"{name} stays {show(self.settings[name])} though its time is over: {why}"
        self._events.add("revert refused", text, step=step, flag=name, why=why)

    def _note(
        self,
        kind: str,
        text: str,
        step: int,
        changes: Mapping[str, Change],
        version: int,
        *,
        actor: Actor | None = None,
        until: float | None = None,
    ) -> None:
        self._events.add(
            kind,
            text,
            step=step,
            uid=actor.uid if actor else None,
            pid=actor.pid if actor else None,
            version=version,
            changes={name: {"old": change.old, "new": change.new} for name, change in changes.items()},
            reason=actor.reason if actor else "",
            until=until,
        )

    def _note_refusal(self, command: SetFlags, refused: Refused, step: int) -> None:
        if command.dry_run:
            return
        self._events.add(
            "refused",
            f"flags: {refused}",
            step=step,
            uid=command.actor.uid,
            pid=command.actor.pid,
            refused={error.flag: error.reason for error in refused.errors},
        )


def _typed(command: SetFlags, origin: Origin) -> tuple[dict[str, Layered | None], list[FlagError]]:
    """The runtime layers asked for, and an error for each flag that does not exist or cannot have its value."""
    runtime: dict[str, Layered | None] = dict.fromkeys(command.unset)
    errors: list[FlagError] = []
    for name, value in command.changes.items():
        try:
            flag = lookup(name)
            typed = parse(flag, value) if isinstance(value, str) else check(flag, value)
            runtime[name] = Layered(typed, origin)
        except FlagError as error:
            errors.append(error)
    return runtime, errors


def _runtime_layer(settings: Settings, name: str) -> Layered | None:
    top = settings.layers(name)[-1]
    return top if top.origin.layer is Layer.RUNTIME else None


def _below(settings: Settings, name: str) -> Value:
    return next(
        layered.value
        for layered in reversed(settings.layers(name))
        if layered.origin.layer is not Layer.RUNTIME
    )


def describe(changes: Mapping[str, Change]) -> str:
    """sched.max_running 16→32, sched.paused off→on"""
    return ", ".join(f"{name} {show(change.old)}→{show(change.new)}" for name, change in changes.items())


def _because(reason: str) -> str:
    return f' "{reason}"' if reason else ""


def _lasting(ttl: float | None) -> str:
    return f" for {ttl:g} s" if ttl is not None else ""
