"""Flags that are other than they were for as long as this process says so, and not a moment longer.

Every change is limited in time and renewed: when this process is killed, hangs or loses its connection, the engine
itself puts the old values back. They are given back early by the same change with a moment's limit, so that value,
origin and layers are those from before: a change to the old value would not do that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from ..engine.control import protocol as p
from ..engine.flags import Value, did_you_mean, show
from .client import Client, Refused
from .exits import Failure

_MOMENT = 0.05  # seconds: the limit that gives a value back
_BACK_WITHIN = 90.0  # seconds: a long step may be under way, and the engine takes changes at its border
_POLL = 0.05


class TakenOver(Failure):
    """Somebody else changed a held flag: their value stays, and this process lets go of it."""

    def __init__(self, flag: str, now: object, who: str) -> None:
        super().__init__(
            f"{flag} was changed to {show(now)} by {who}: it is theirs now and was left as it is"
        )
        self.flag = flag


def flags_of(client: Client) -> dict[str, p.FlagView]:
    return {flag.name: flag for flag in client.get("/v1/flags", p.Flags).flags}


class HeldFlags:
    """Holds some of an engine's live flags. Not thread-safe.

    Each operation has a connection of its own: the engine closes those that ask nothing for a minute. `reason` stands
    in every change and tells our changes from those of others: it must be this holder's alone.
    """

    def __init__(self, path: Path, reason: str, ttl: float) -> None:
        self._path = path
        self._reason = reason
        self._ttl = ttl
        self._before: dict[str, p.FlagView] = {}
        self._now: dict[str, Value] = {}

    @property
    def before(self) -> Mapping[str, Value]:
        """Held flag -> the value that it had, and will have again."""
        return {name: flag.value for name, flag in self._before.items()}

    def change(self, changes: Mapping[str, Value], ttl: float | None = None) -> p.Applied:
        """Put these in force, at one step border. Raises Refused, or Failure for a flag that cannot be held."""
        self._note_before(changes)
        held = dict(self._now)
        # Ours from here on: Ctrl-C, or a lost connection, may come between the change and its answer. What is not in
        # force then is told apart by its reason.
        self._now |= changes
        try:
            applied = self._patch(changes, ttl or self._ttl)
        except Refused:
            self._now = held
            raise
        self._now |= {name: change.new for name, change in applied.changes.items()}
        return applied

    def renew(self) -> None:
        """Begin all time limits anew. Raises TakenOver when somebody else's value stands in a held flag."""
        if self._now:
            self.check()
            self._patch(self._now, self._ttl)

    def check(self) -> None:
        """Raises TakenOver unless every held flag has our value by our change."""
        flags = self._flags()
        for name in self._now:
            flag = flags[name]
            if flag.origin.reason != self._reason or flag.until is None:
                self._now.pop(name)
                self._before.pop(name)
                raise TakenOver(name, flag.value, flag.origin.where)

    def give_back(self) -> None:
        """Put the old values back, and wait until they are in force. What somebody else changed meanwhile is left."""
        while self._now:
            try:
                self.check()
                break
            except TakenOver:
                continue
        if not self._now:
            return
        held, self._now = self._now, {}
        self._patch(held, _MOMENT)
        deadline = time.monotonic() + _BACK_WITHIN
        while True:
            flags = self._flags()
            left = [name for name in held if flags[name].origin.reason == self._reason]
            if not left:
                self._before.clear()
                return
            if time.monotonic() > deadline:
                raise Failure(
                    f"{', '.join(left)} did not go back within {_BACK_WITHIN:.0f} s: "
                    "`arc flags --changed` shows what stands there"
                )
            time.sleep(_POLL)

    def _note_before(self, changes: Mapping[str, Value]) -> None:
        new = [name for name in changes if name not in self._before]
        if not new:
            return
        flags = self._flags()
        for name in new:
            flag = flags.get(name)
            if flag is None:
                raise Failure(f"this engine has no flag {name}{did_you_mean(name, flags)}")
            if flag.reach != "live":
                raise Failure(
                    f"{name} is read at the engine's start only: it cannot be changed while it runs"
                )
            if flag.until is not None:
                raise Failure(
                    f"{name} is under a change that ends by itself ({shown_origin(flag)}): it would be lost; "
                    f"`arc unset {name}` ends it now"
                )
        self._before |= {name: flags[name] for name in new}

    def _patch(self, changes: Mapping[str, Value], ttl: float) -> p.Applied:
        patch = p.FlagsPatch(changes=dict(changes), reason=self._reason, ttl=ttl)
        with Client(self._path) as client:
            return client.patch("/v1/flags", patch, p.Applied)

    def _flags(self) -> dict[str, p.FlagView]:
        with Client(self._path) as client:
            return flags_of(client)


def shown_origin(flag: p.FlagView) -> str:
    reason = f', "{flag.origin.reason}"' if flag.origin.reason else ""
    return f"by {flag.origin.where}{reason}"
