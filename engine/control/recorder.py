"""The flight recorder: writes engine/control/recording.py's file while the engine runs.

A step costs two struct.pack_into into mapped memory: no system call, no lock, no allocation beyond the numbers.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path

import msgspec

from ..core.interface import EngineInfo
from ..flags import Value
from ..telemetry.records import StepRecord
from . import recording as r
from .protocol import Event

_FLAG_EVENTS = ("flags", "reverted", "revert refused")


class Recorder:
    """`opened` and `closed` are the engine thread's; `event` is the event log's sink, under its lock."""

    def __init__(self, path: Path, info: EngineInfo, values: Mapping[str, Value]) -> None:
        """Begins a recording at `path`; the one before is kept beside it as .prev. OSError when there is no room."""
        self.path = path
        self._map = _mapped(path)
        header = r.Header(
            name=info.name,
            model=info.model,
            device=info.device,
            version=info.version,
            revision=info.revision,
            pid=info.pid,
            started=info.started,
            wall=time.time(),
            monotonic=time.monotonic(),
            step_fields=r.STEP_FIELDS,
        )
        encoded = msgspec.json.encode(header)
        if len(encoded) > r.HEADER_SIZE - len(r.MAGIC):
            raise OSError(errno.ENAMETOOLONG, "the model's name is too long to be recorded", str(path))
        self._map[len(r.MAGIC) : len(r.MAGIC) + len(encoded)] = encoded
        self._map[: len(r.MAGIC)] = r.MAGIC
        self._layout = r.step_struct(r.STEP_FIELDS)
        self._numbers = attrgetter(*r.STEP_FIELDS)
        self._steps = 0
        self._nows = 0
        self._events = 0
        self._flags = 0
        self._values = dict(values)
        self._versions = 0
        self._ended = 0.0  # time.time() of the end on purpose
        self._write_now(0, -1, 0, header.monotonic)
        self._write_values()

    def opened(self, index: int, rows: int) -> None:
        """A step is about to run: should it be the last, this says so."""
        self._write_now(1, index, rows, time.monotonic())

    def closed(self, record: StepRecord) -> None:
        self._steps += 1
        number = self._steps
        self._layout.pack_into(self._map, r.STEPS.place(number), number, *self._numbers(record), number)
        self._write_now(0, record.index, record.rows, record.started + record.wall)

    def event(self, event: Event) -> None:
        self._events += 1
        self._write_blob(r.EVENTS, self._events, _fitting(event, r.EVENTS))
        if event.kind in _FLAG_EVENTS:
            self._flags += 1
            self._write_blob(r.FLAGS, self._flags, _fitting(event, r.FLAGS))
            changes: dict[str, dict[str, Value]] = event.data.get("changes", {})
            self._values |= {name: change["new"] for name, change in changes.items()}
            self._write_values()

    def close(self) -> None:
        """The engine ends on purpose. The file stays mapped: whoever still writes, even late, does no harm."""
        self._ended = time.time()
        self._write_now(0, -1, 0, time.monotonic())

    def _write_now(self, is_open: int, step: int, rows: int, at: float) -> None:
        self._nows += 1
        r.NOW.pack_into(
            self._map, r.NOWS.place(self._nows), self._nows, is_open, step, rows, at, self._ended, self._nows
        )

    def _write_values(self) -> None:
        self._versions += 1
        self._write_blob(r.VALUES, self._versions, msgspec.json.encode(self._values))

    def _write_blob(self, ring: r.Ring, number: int, blob: bytes) -> None:
        """The number behind is written last: until then the record counts as torn."""
        place = ring.place(number)
        start = place + r.BLOB_HEAD.size
        r.BLOB_HEAD.pack_into(self._map, place, number, len(blob))
        self._map[start : start + len(blob)] = blob
        r.NUMBER.pack_into(self._map, place + ring.size - r.NUMBER.size, number)


def _fitting(event: Event, ring: r.Ring) -> bytes:
    """The event as JSON; without its data, then with its text cut, when it does not fit otherwise."""
    blob = msgspec.json.encode(event)
    room = r.blob_room(ring)
    if len(blob) > room:
        shorter = msgspec.structs.replace(event, data={"cut": True})
        blob = msgspec.json.encode(shorter)
        if len(blob) > room:
            # an escaped character takes six bytes at most
            blob = msgspec.json.encode(msgspec.structs.replace(shorter, text=event.text[: room // 8]))
    return blob


def _mapped(path: Path) -> mmap.mmap:
    """A new file of full size, with its blocks taken now: writing into a hole on a full disk would kill the engine."""
    if path.exists():
        path.replace(path.with_name(path.name + ".prev"))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, r.FILE_SIZE)
        return mmap.mmap(descriptor, r.FILE_SIZE)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)
