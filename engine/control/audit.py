"""The audit log: who asked for what, and what came of it. One JSON object a line.

Written by a thread of its own, so that a slow disk delays no answer. A line that cannot be written is announced as an
event, once until writing works again; it does not stop the operator, who may be there because the disk is full.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from .events import EventLog


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line. uid, gid and pid are None for what the engine did by itself: the end of a time-limited change."""

    time: float
    uid: int | None
    gid: int | None
    pid: int | None
    command: str
    version: int  # of the settings, afterwards
    difference: dict[str, Any]
    result: str  # ok, or the error's word
    reason: str  # the operator's
    detail: str = ""


class Audit:
    def __init__(self, path: Path, events: EventLog) -> None:
        self.path = path
        self._events = events
        self._failing = False
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="arc-audit")

    def write(self, entry: Entry) -> None:
        """Queue a line. Never blocks."""
        self._writer.submit(self._append, msgspec.json.encode(entry) + b"\n")

    def close(self) -> None:
        """Returns when all lines are written or have failed."""
        self._writer.shutdown()

    def _append(self, line: bytes) -> None:
        try:
            descriptor = os.open(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                _write_all(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self._failing:
                self._failing = True
                text = f"the audit log {self.path} cannot be written: {error.strerror}; free space or make it writable"
                self._events.add("audit failed", text, errno=error.errno)
            return
        if self._failing:
            self._failing = False
            self._events.add("audit works", f"the audit log {self.path} can be written again")


def _write_all(descriptor: int, line: bytes) -> None:
    """O_APPEND makes one write one line; a short one leaves a torn line, which a newline then closes."""
    written = os.write(descriptor, line)
    if written < len(line):
        os.write(descriptor, b"\n")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
