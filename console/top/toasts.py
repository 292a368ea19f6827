"""What is told in passing: what others did to the engine, and what went wrong."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from ...engine.control import protocol as p
from .. import shown
from .store import Picture

_MOST = 3  # at one tick; more are counted
_TOLD = {"flags", "reverted", "revert refused", "drain", "cancel", "fault", "reset", "mark", "audit failed"}
_BAD = {"fault", "audit failed", "revert refused"}


@dataclass(frozen=True, slots=True)
class Toast:
    text: str
    title: str
    severity: Literal["information", "warning", "error"] = "information"


class Toasts:
    """Remembers the newest event that it told of. What stood there when the console was attached is no news."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._seen: int | None = None

    def fresh(self, picture: Picture) -> list[Toast]:
        if picture.hello is None:
            return []
        known = [entry for entry in picture.events[-200:] if isinstance(entry, p.Event)]
        last = known[-1].number if known else 0
        seen, self._seen = self._seen, last
        if seen is None or last < seen:  # the start, or another life of the engine
            return []
        told = [each for each in known if each.number > seen and each.kind in _TOLD and each.pid != self._pid]
        toasts = [_toast(event) for event in told[:_MOST]]
        if len(told) > _MOST:
            toasts.append(Toast(f"and {len(told) - _MOST} more: see Events", "events"))
        return toasts


def _toast(event: p.Event) -> Toast:
    who = "" if event.uid is None else f"  by uid {event.uid} pid {event.pid}"
    return Toast(shown.plain(event.text) + who, event.kind, "error" if event.kind in _BAD else "information")
