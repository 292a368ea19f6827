"""What a replay plays: a console's recording, or a flight recorder's file, as the pictures of its moments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ...engine.control import recording as flight
from ..exits import Failure
from .flight_tape import FlightTape
from .recording import Recorded, is_recording, read
from .store import Picture, Store

_CHECKPOINT = (
    256  # records between two pictures that are kept, so that going back does not begin at the start
)


class Tape(Protocol):
    """`moments` rise: each is a time.time() at which something new is to be seen."""

    @property
    def kind(self) -> str: ...

    @property
    def moments(self) -> Sequence[float]: ...

    @property
    def opens_at(self) -> float: ...

    @property
    def cut(self) -> str: ...

    def picture_at(self, moment: float) -> Picture: ...


class RecordingTape:
    """What a console received, told to a store again."""

    kind = "recording"

    def __init__(self, recorded: Recorded) -> None:
        self._frames = recorded.frames
        self._times = _rising([frame.time for frame in recorded.frames])
        self.cut = recorded.cut
        self._store = Store()
        self._told = 0
        self._kept: dict[int, Picture] = {0: self._store.picture}
        first = next(index for index in range(len(self._times)) if self._picture(index + 1).hello is not None)
        self.moments = sorted(set(self._times[first:]))
        self.opens_at = self.moments[0]

    def picture_at(self, moment: float) -> Picture:
        return self._picture(bisect_right(self._times, moment))

    def _picture(self, count: int) -> Picture:
        """The picture after the first `count` records."""
        if count < self._told:
            self._told = max(index for index in self._kept if index <= count)
            self._store.picture = self._kept[self._told]
        while self._told < count:
            self._frames[self._told].tell(self._store)
            self._told += 1
            if self._told % _CHECKPOINT == 0:
                self._kept[self._told] = self._store.picture
        return self._store.picture


def _rising(times: Sequence[float]) -> list[float]:
    """A clock that was set back while it was recorded stands still instead."""
    rising: list[float] = []
    for moment in times:
        rising.append(max(moment, rising[-1]) if rising else moment)
    return rising


def open_tape(path: Path) -> Tape:
    """Raises Failure that says what the file is, when it is neither."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None
    if is_recording(content):
        return RecordingTape(read(path, content))
    if content.startswith(flight.MAGIC):
        try:
            return FlightTape(flight.read(path), path)
        except flight.RecordingError as error:
            raise Failure(str(error)) from None
    raise Failure(
        f"{path} is no recording of `arc top --record` and no flight recorder's file: "
        + (f"it begins with {content[:8]!r}" if content else "it is empty")
    )
