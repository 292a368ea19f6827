"""`arc top --record`: everything that the console received, as a file that a replay reads.

    magic     8 bytes
    frames    one zlib stream, flushed after each frame: length, CRC-32 of the rest, time.time(), then the record in
              MessagePack

One stream, because one snapshot is much like the last: the compressor sees the one before. Flushed, so that after kill
-9 all frames but the last are whole. Append-only; the last record says that it was ended on purpose.

A record is one call of the store (store.py), so a replay fills a store in the way in which the engine's reader did.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_type_hints

import msgspec

from ...engine.control import protocol as p
from ...engine.version import version
from ..exits import Failure
from .host import Card, Host
from .store import Entry, Picture, Store

MAGIC = b"ARCTOP03"
_FAMILY = MAGIC[:6]  # two digits of the format's number follow
FRAME = struct.Struct("<IId")  # bytes of the record, CRC-32 of the time and them, time.time()
_TIME = struct.Struct("<d")
_LATEST = 253_402_300_800.0  # the end of the year 9999: more is no time that a calendar has
_LARGEST = 256 << 20  # bytes of one record; more is damage
_CHUNK = 1 << 16
RECORDED_SEQUENCES = 1000  # of one table, the first; a replay holds all records and says how many there were


class _Record(msgspec.Struct, frozen=True, tag_field="is", tag=str.lower):
    """What was told to the store, at the frame's time."""

    def tell(self, store: Store, now: float) -> None:
        raise NotImplementedError


class Begin(_Record, frozen=True):
    """The first record."""

    version: str  # of the console

    def tell(self, store: Store, now: float) -> None:
        pass


class Attached(_Record, frozen=True):
    hello: p.Hello
    history: p.History
    events: p.Events

    def tell(self, store: Store, now: float) -> None:
        store.attached(self.hello, self.history, self.events, now)


class Snapshot(_Record, frozen=True):
    snapshot: p.Snapshot

    def tell(self, store: Store, now: float) -> None:
        store.snapshot(self.snapshot, now)


class History(_Record, frozen=True):
    history: p.History

    def tell(self, store: Store, now: float) -> None:
        store.history(self.history)


class Event(_Record, frozen=True):
    event: p.Event

    def tell(self, store: Store, now: float) -> None:
        store.entry(self.event)


class Gap(_Record, frozen=True):
    gap: p.Gap

    def tell(self, store: Store, now: float) -> None:
        store.entry(self.gap)


class Lost(_Record, frozen=True):
    why: str

    def tell(self, store: Store, now: float) -> None:
        store.lost(self.why, now)


class Part(_Record, frozen=True):
    """One whole part of the picture, of the type that the picture declares."""

    name: str
    value: msgspec.Raw
    na: p.NA | None = None  # in the value's place: two untagged types in one field cannot be told apart

    def tell(self, store: Store, now: float) -> None:
        if self.name not in _part_types():  # another version's parts are left out, as unknown fields are
            return
        if self.na is not None:
            store.put(**{self.name: self.na})
        else:
            value = msgspec.msgpack.decode(self.value, type=_part_types()[self.name])
            store.put(**{self.name: value.host() if isinstance(value, _HostPart) else value})


class End(_Record, frozen=True):
    """The console was left on purpose."""

    def tell(self, store: Store, now: float) -> None:
        pass


class _HostPart(msgspec.Struct, frozen=True):
    """A Host with its card and the reason for none apart: a union of two untagged types cannot be decoded."""

    cpu: float | p.NA
    seconds: float
    cores: int
    memory_used: int | p.NA
    memory_total: int | p.NA
    card: Card | None
    no_card: p.NA | None

    @classmethod
    def of(cls, host: Host) -> _HostPart:
        card = None if isinstance(host.card, p.NA) else host.card
        why = host.card if isinstance(host.card, p.NA) else None
        return cls(host.cpu, host.seconds, host.cores, host.memory_used, host.memory_total, card, why)

    def host(self) -> Host:
        card = self.card or self.no_card or p.NA("not recorded")
        return Host(self.cpu, self.seconds, self.cores, self.memory_used, self.memory_total, card)


@cache
def _part_types() -> dict[str, Any]:
    return {name: _without_na(hint) for name, hint in get_type_hints(Picture).items()} | {"host": _HostPart}


def _without_na(hint: Any) -> Any:
    parts = [part for part in get_args(hint) if part is not p.NA]
    return Union[tuple(parts)] if isinstance(hint, UnionType) else hint  # noqa: UP007  (made from a list)


_RECORDS = Begin | Attached | Snapshot | History | Event | Gap | Lost | Part | End


# -- writing ----------------------------------------------------------------------------------------------------------


def _recorded(value: Any) -> Any:
    """A part in the form and size in which it is kept."""
    if isinstance(value, p.Sequences):
        kept = value.sequences[:RECORDED_SEQUENCES]
        return msgspec.structs.replace(value, listed=len(kept), sequences=kept)
    return _HostPart.of(value) if isinstance(value, Host) else value


class RecordingStore(Store):
    """A store that writes down what it is told before it takes it in. A disk that refuses ends the recording, not the
    console: `trouble` says why."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """A new file, readable by its owner: it names users and request ids. Raises Failure."""
        super().__init__()
        self.path = path
        self.trouble = ""
        self._clock = clock
        self._writing = threading.Lock()
        self._packer = zlib.compressobj(6)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._file: int | None = os.open(path, flags, 0o600)
            os.write(self._file, MAGIC)
        except FileExistsError:
            raise Failure(f"{path} is there already and is not written over: choose another name") from None
        except OSError as error:
            raise Failure(f"{path} cannot be written: {error.strerror}") from None
        self._write(Begin(version()))

    def put(self, **parts: Any) -> None:
        for name, value in parts.items():
            na = value if isinstance(value, p.NA) else None
            packed = msgspec.msgpack.encode(_recorded(value))
            self._write(Part(name, msgspec.Raw(packed), na))
        super().put(**parts)

    def attached(self, hello: p.Hello, history: p.History, events: p.Events, now: float) -> None:
        self._write(Attached(hello, history, events))
        super().attached(hello, history, events, now)

    def snapshot(self, snapshot: p.Snapshot, now: float) -> None:
        self._write(Snapshot(snapshot))
        super().snapshot(snapshot, now)

    def history(self, history: p.History) -> None:
        if history.samples:
            self._write(History(history))
        super().history(history)

    def entry(self, entry: Entry) -> None:
        self._write(Event(entry) if isinstance(entry, p.Event) else Gap(entry))
        super().entry(entry)

    def lost(self, why: str, now: float) -> None:
        if self.picture.link.state != "lost":  # told again at each try to find the engine
            self._write(Lost(why))
        super().lost(why, now)

    def close(self) -> None:
        """The console is left on purpose."""
        self._write(End())
        with self._writing:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _write(self, record: _Record) -> None:
        with self._writing:
            if self._file is None:
                return
            packed = msgspec.msgpack.encode(record)
            moment = self._clock()
            frame = FRAME.pack(len(packed), _checksum(moment, packed), moment) + packed
            left = memoryview(self._packer.compress(frame) + self._packer.flush(zlib.Z_SYNC_FLUSH))
            try:
                while left:
                    left = left[os.write(self._file, left) :]
            except OSError as error:
                self.trouble = f"{self.path}: {error.strerror}"
                os.close(self._file)
                self._file = None


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """A record as it lies in the file, which is decoded when the replay comes to it."""

    time: float
    packed: bytes

    def tell(self, store: Store) -> None:
        record: _Record = msgspec.msgpack.decode(self.packed, type=_RECORDS)
        record.tell(store, self.time)


@dataclass(frozen=True, slots=True)
class Recorded:
    """All that is whole, in order. `cut`: how the file ends where it was not ended on purpose, else empty."""

    frames: tuple[Frame, ...]
    cut: str


def read(path: Path, content: bytes) -> Recorded:
    """Raises Failure for what is no recording, or has nothing whole to show."""
    if not content.startswith(MAGIC):
        raise Failure(
            f"{path} was recorded by another version of arc ({content[: len(MAGIC)].decode('ascii', 'replace')})"
        )
    frames: list[Frame] = []
    ended = shows = False
    cut = ""
    try:
        for frame in _frames(content[len(MAGIC) :]):
            record = msgspec.msgpack.decode(frame.packed, type=_RECORDS)
            ended, shows = isinstance(record, End), shows or isinstance(record, Attached)
            frames.append(frame)
    except (zlib.error, msgspec.DecodeError, ValueError) as error:
        cut = f"it is damaged after that ({error})"
    if not ended and not cut:
        cut = "it was cut off there, or is still being written"
    if not shows:
        raise Failure(f"{path} has nothing whole to show: {cut or 'no engine was ever attached'}")
    return Recorded(tuple(frames), cut)


def _frames(stream: bytes) -> Iterator[Frame]:
    """The whole frames. Raises zlib.error or ValueError where the file is damaged; a frame cut off is not given."""
    unpacker = zlib.decompressobj()
    ready = bytearray()
    for place in range(0, len(stream), _CHUNK):
        ready += unpacker.decompress(stream[place : place + _CHUNK])
        start = 0
        while len(ready) - start >= FRAME.size:
            length, crc, moment = FRAME.unpack_from(ready, start)
            if length > _LARGEST:
                raise ValueError("a record of an impossible length")
            stop = start + FRAME.size + length
            if len(ready) < stop:
                break
            packed = bytes(ready[start + FRAME.size : stop])
            if _checksum(moment, packed) != crc:
                raise ValueError("a record's checksum differs")
            if not 0 <= moment < _LATEST:
                raise ValueError("a record of an impossible time")
            yield Frame(moment, packed)
            start = stop
        del ready[:start]


def _checksum(moment: float, packed: bytes) -> int:
    return zlib.crc32(packed, zlib.crc32(_TIME.pack(moment)))


def is_recording(content: bytes) -> bool:
    """Of this version or another's."""
    return content.startswith(_FAMILY)
