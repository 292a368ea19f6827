"""The flight recorder's file: its layout, and how it is read after the engine's end.

One file of fixed size, memory-mapped by the engine, so that what was written is there after kill -9: the pages belong
to the kernel. Rings of fixed slots. Each slot carries its record's number in front and behind, written in this order,
so a record that was cut off in the middle shows by two numbers that differ. Power failure is another matter: nothing
is flushed.

    header   4 KiB      magic, then JSON: who recorded, and the layout of a step record
    now      2 x 128 B  the step that is open, or that none is; when the engine ended on purpose; in turn, too
    values   2 x 32 KiB the flags' effective values, written to the two in turn: one of them is always whole
    steps    4096 slots struct, in the order that the header states
    events   512 slots  JSON
    flags    256 slots  JSON: the events that changed flags, kept longer than the rest

The console imports this module: standard library and msgspec only.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..telemetry.records import StepRecord
from .protocol import Event, Value

T = TypeVar("T")

MAGIC = b"ARCREC01"
HEADER_SIZE = 4096
NUMBER = struct.Struct("<Q")
BLOB_HEAD = struct.Struct("<QI")  # number, length of the JSON
# number, 1 while a step is open, its index, its rows, time.monotonic() of the write, time.time() of the end, number
NOW = struct.Struct("<QQqqddQ")


class Ring(msgspec.Struct, frozen=True):
    """A ring of equal slots in the file."""

    offset: int
    slots: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.slots * self.size

    def place(self, number: int) -> int:
        """Where record `number` (from 1) lies."""
        return self.offset + (number - 1) % self.slots * self.size


NOWS = Ring(HEADER_SIZE, 2, 128)
VALUES = Ring(NOWS.end, 2, 32 * 1024)
STEPS = Ring(VALUES.end, 4096, 192)
EVENTS = Ring(STEPS.end, 512, 1024)
FLAGS = Ring(EVENTS.end, 256, 1024)
FILE_SIZE = FLAGS.end

_CODES = {int: "q", float: "d"}
STEP_FIELDS = {field.name: _CODES[field.type] for field in msgspec.structs.fields(StepRecord)}


def step_struct(fields: dict[str, str]) -> struct.Struct:
    """number, the fields, number."""
    return struct.Struct("<Q" + "".join(fields.values()) + "Q")


assert step_struct(STEP_FIELDS).size <= STEPS.size


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Who recorded. `wall` and `monotonic` are one moment on both clocks."""

    name: str
    model: str
    device: str
    version: str
    revision: str
    pid: int
    started: float
    wall: float
    monotonic: float
    step_fields: dict[str, str]


class RecordingError(Exception):
    """The file is no recording, or not one that this version can read."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording says. Oldest first; times of day are time.time()."""

    header: Header
    ended: float | None  # when the engine closed it on purpose; None: it was killed, or still runs
    last_sign: float  # the last step's opening or closing
    open_step: int | None  # the step that was under way
    open_rows: int
    values: dict[str, Value]
    steps: list[dict[str, float]]
    events: list[Event]
    flags: list[Event]
    torn: int  # records that were cut off in the middle

    def wall(self, monotonic: float) -> float:
        return self.header.wall + monotonic - self.header.monotonic


def read(path: Path) -> Recording:
    """Raises RecordingError, or OSError."""
    with path.open("rb") as file:
        if path.stat().st_size != FILE_SIZE:
            raise RecordingError(
                f"{path} is no recording of this version: {path.stat().st_size} bytes, not {FILE_SIZE}"
            )
        with mmap.mmap(file.fileno(), FILE_SIZE, access=mmap.ACCESS_READ) as data:
            return _decode(bytes(data), path)


def _decode(data: bytes, path: Path) -> Recording:
    if data[: len(MAGIC)] != MAGIC:
        raise RecordingError(f"{path} is no recording of this version: it begins with {data[: len(MAGIC)]!r}")
    try:
        header = msgspec.json.decode(data[len(MAGIC) : HEADER_SIZE].rstrip(b"\0"), type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordingError(f"{path} has a damaged header: {error}") from None
    if not set(header.step_fields.values()) <= set(_CODES.values()):
        raise RecordingError(f"{path} has a damaged header: it states an unknown layout of steps")
    layout = step_struct(header.step_fields)
    if layout.size > STEPS.size:
        raise RecordingError(f"{path} has a damaged header: its steps are larger than their slots")
    torn = _Torn()
    steps = [dict(zip(header.step_fields, each, strict=True)) for each in _packed(data, STEPS, layout, torn)]
    values = list(_blobs(data, VALUES, torn, dict[str, Value]))
    nows = list(_packed(data, NOWS, NOW, torn))
    if not nows:
        raise RecordingError(f"{path} is damaged: it does not say what was under way")
    is_open, step, rows, at, ended = nows[-1]
    return Recording(
        header=header,
        ended=ended or None,
        last_sign=header.wall + at - header.monotonic,
        open_step=step if is_open else None,
        open_rows=rows if is_open else 0,
        values=values[-1] if values else {},
        steps=steps,
        events=list(_blobs(data, EVENTS, torn, Event)),
        flags=list(_blobs(data, FLAGS, torn, Event)),
        torn=torn.count,
    )


class _Torn:
    def __init__(self) -> None:
        self.count = 0


def _packed(data: bytes, ring: Ring, layout: struct.Struct, torn: _Torn) -> Iterator[tuple[Any, ...]]:
    """The whole records in order of their numbers."""
    whole: list[tuple[Any, ...]] = []
    for slot in range(ring.slots):
        numbers = layout.unpack_from(data, ring.offset + slot * ring.size)
        if numbers[0] != numbers[-1]:
            torn.count += 1
        elif numbers[0]:
            whole.append(numbers)
    return (numbers[1:-1] for numbers in sorted(whole, key=lambda numbers: numbers[0]))


def _blobs(data: bytes, ring: Ring, torn: _Torn, kind: type[T]) -> Iterator[T]:
    """The whole records in order of their numbers."""
    whole: list[tuple[int, T]] = []
    for slot in range(ring.slots):
        place = ring.offset + slot * ring.size
        number, length = BLOB_HEAD.unpack_from(data, place)
        (behind,) = NUMBER.unpack_from(data, place + ring.size - NUMBER.size)
        if number == behind == 0:
            continue
        start = place + BLOB_HEAD.size
        try:
            if number != behind or length > blob_room(ring):
                raise ValueError("cut off")
            whole.append((number, msgspec.json.decode(data[start : start + length], type=kind)))
        except ValueError:  # msgspec's and Unicode's errors are among them
            torn.count += 1
    return (record for _, record in sorted(whole, key=lambda each: each[0]))


def blob_room(ring: Ring) -> int:
    """Bytes of JSON that fit into a slot."""
    return ring.size - BLOB_HEAD.size - NUMBER.size
