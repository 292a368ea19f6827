"""What a fleet's members are read by: an arc engine over its control socket, or a metrics page."""

from __future__ import annotations

from pathlib import Path

from ..metrics.fetch import Address
from .fleet import Member
from .metrics_reader import MetricsReader
from .reader import Reader
from .store import Store

FLEET_HZ = 1.0  # pictures a second of an engine that is one of many


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

    def open(self, hz: float) -> Reader:
        return self._read(hz)

    def close(self) -> None:
        self._read(FLEET_HZ)

    def _read(self, hz: float) -> Reader:
        self.stop()
        self._reader = Reader(self._path, self._store, hz=hz, viewer=self._viewer)
        self._reader.start()
        return self._reader


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

    def open(self, hz: float) -> MetricsReader:
        """As before: a page is read once a second in any case."""
        return self.reader

    def close(self) -> None:
        """Nothing, as for open."""
