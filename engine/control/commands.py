"""What the control server asks of the engine thread, executed there at a step border, in order of arrival.

The engine answers through a future. It calls `future.set_running_or_notify_cancel()` before it begins, so that a
command whose asker gave up is either dropped whole or carried out whole, and both sides know which.
"""

from __future__ import annotations

import msgspec

from .protocol import Value


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: uid, gid and pid as the kernel states them, never as a message claims."""

    uid: int
    gid: int
    pid: int
    reason: str = ""


class SetFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Change flags, or take runtime values away: all or none. Answered by Applied; raises Refused or StaleVersion.

    `ttl` is for changes alone: an unset value has nothing to come back to.
    """

    actor: Actor
    changes: dict[str, Value] = {}
    unset: tuple[str, ...] = ()
    expect_version: int | None = None
    ttl: float | None = None
    dry_run: bool = False


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """End sequences in any state; the pages are back when it is answered (Cancelled). `ids` None: all of them."""

    actor: Actor
    ids: tuple[str, ...] | None


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """Take no new work, let the rest end, then stop. Answered at once (DrainStarted)."""

    actor: Actor
    deadline: float | None  # seconds from now; what is left then is cancelled


class FlushPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """Drop what the prefix cache holds (Flushed)."""

    actor: Actor


class TrimAllocator(msgspec.Struct, frozen=True, kw_only=True):
    """Give the allocator's free buffers back (Trimmed); raises Unsupported while there is none."""

    actor: Actor


Command = SetFlags | Cancel | Drain | FlushPrefix | TrimAllocator


class StaleVersion(Exception):
    """The settings are no longer of the version that the asker had seen."""

    def __init__(self, expected: int, version: int) -> None:
        super().__init__(f"the settings are at version {version}, not {expected}: someone changed them since")
        self.expected = expected
        self.version = version


class Unsupported(Exception):
    """This engine cannot do that; the message says why and what would."""
