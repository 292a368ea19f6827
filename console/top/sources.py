"""What a fleet's members are read by: an arc engine over its control socket, or a metrics page."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

from ...engine.control import paths
from ..client import answers
from ..metrics.fetch import Address
from .fleet import Member
from .metrics_reader import MetricsReader
from .reader import Reader
from .store import Store

FLEET_HZ = 1.0  # pictures a second of an engine that is one of many
_LOOK_EVERY = 1.0  # seconds between two looks for engines that have started


class EngineSource:
    """An arc engine: read slowly as one of many, and at the console's own pace when it is opened."""

    def __init__(self, path: Path, *, viewer: bool) -> None:
        self._path = path
        self._viewer = viewer
        self._store = Store()
        self.members = (Member(path.stem, str(path), self._store, path),)
        self._reader: Reader | None = None

    def start(self) -> None:
        self._read(FLEET_HZ)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()

    def open(self, member: Member, hz: float) -> Reader:
        return self._read(hz)

    def close(self, member: Member) -> None:
        self._read(FLEET_HZ)

    def _read(self, hz: float) -> Reader:
        self.stop()
        self._reader = Reader(self._path, self._store, hz=hz, viewer=self._viewer)
        self._reader.start()
        return self._reader


class MachineSource:
    """Every arc engine of this machine: one that starts later is a member from the moment that it listens."""

    def __init__(self, *, viewer: bool, without: Collection[Path] = ()) -> None:
        """`without`: sockets that other sources read."""
        self._viewer = viewer
        self._without = frozenset(without)
        self._engines: dict[Path, EngineSource] = {}
        self._members: tuple[Member, ...] = ()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arc-look", daemon=True)
        self._look()

    @property
    def members(self) -> tuple[Member, ...]:
        return self._members

    def start(self) -> None:
        for engine in self._engines.values():
            engine.start()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()  # else an engine that it has just found would be read for ever
        for engine in self._engines.values():
            engine.stop()

    def open(self, member: Member, hz: float) -> Reader:
        return self._of(member).open(member, hz)

    def close(self, member: Member) -> None:
        self._of(member).close(member)

    def _of(self, member: Member) -> EngineSource:
        assert member.path is not None
        return self._engines[member.path]

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY):
            for engine in self._look():
                engine.start()

    def _look(self) -> list[EngineSource]:
        """Take in those that have come. The socket of a killed engine stays behind: who does not answer is none."""
        fresh = {
            path: EngineSource(path, viewer=self._viewer)
            for path in paths.sockets()
            if path not in self._engines and path not in self._without and answers(path)
        }
        self._engines = {**self._engines, **fresh}
        self._members += tuple(member for engine in fresh.values() for member in engine.members)
        return list(fresh.values())


class PageSource:
    """A metrics page: its engines, or until it has answered the address itself, with the reason why it did not."""

    def __init__(self, where: Address) -> None:
        self.reader = MetricsReader(where)
        self._where = where
        self._members: dict[int, Member] = {}
        self._nobody = Member(where.shown, where.url, Store(), None)

    @property
    def members(self) -> tuple[Member, ...]:
        engines = self.reader.engines
        if not engines:
            if self.reader.why != self._nobody.store.picture.link.why:
                self._nobody.store.lost(self.reader.why, 0.0)
            return (self._nobody,)
        for engine in engines:
            if id(engine) not in self._members:
                self._members[id(engine)] = Member(engine.name, self._where.url, engine.store, None)
        return tuple(self._members[id(engine)] for engine in engines)

    def start(self) -> None:
        self.reader.start()

    def stop(self) -> None:
        self.reader.stop()

    def open(self, member: Member, hz: float) -> MetricsReader:
        """As before: a page is read once a second in any case."""
        return self.reader

    def close(self, member: Member) -> None:
        """Nothing, as for open."""
