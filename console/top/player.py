"""Plays a tape into a store: its own clock, which stands, runs at some speed, or is moved."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from .session import Replaying
from .store import Store
from .tape import Tape

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 60.0)


class Player:
    """The replay's moment is a time.time() of the recording: to the views it is now."""

    def __init__(
        self, tape: Tape, store: Store, name: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`name`: how the file is called."""
        self.tape = tape
        self.name = name
        self.speed = 1.0
        self._store = store
        self._monotonic = monotonic
        self._moment = tape.opens_at  # at `_since`
        self._since = monotonic()
        self._playing = tape.opens_at < self.end
        self._shown_at: float | None = None
        self.show()

    @property
    def start(self) -> float:
        return self.tape.moments[0]

    @property
    def end(self) -> float:
        return self.tape.moments[-1]

    @property
    def playing(self) -> bool:
        """At the end it stands by itself."""
        return self._playing and self.now() < self.end

    def now(self) -> float:
        gone = (self._monotonic() - self._since) * self.speed if self._playing else 0.0
        return min(self.end, self._moment + gone)

    def state(self) -> Replaying:
        tape = self.tape
        return Replaying(
            self.name, tape.kind, self.start, self.end, self.now(), self.speed, self.playing, tape.cut
        )

    def show(self) -> None:
        """Put the moment's picture into the store, when it is another."""
        now = self.now()
        if now != self._shown_at:
            self._shown_at = now
            self._store.show(self.tape.picture_at(now))

    def _set(self, moment: float, playing: bool) -> None:
        self._moment = min(self.end, max(self.start, moment))
        self._since = self._monotonic()
        self._playing = playing
        self.show()

    def toggle(self) -> None:
        """Play or stand; at the end, from the beginning."""
        if self.playing:
            self._set(self.now(), False)
        else:
            self._set(self.start if self.now() >= self.end else self.now(), True)

    def seek(self, moment: float) -> None:
        self._set(moment, self.playing)

    def step(self, by: int) -> None:
        """To the picture before or after this one, and stand there."""
        moments, now = self.tape.moments, self.now()
        index = bisect_right(moments, now) if by > 0 else bisect_left(moments, now) - 1
        self._set(moments[min(max(index, 0), len(moments) - 1)], False)

    def faster(self, by: int) -> None:
        place = SPEEDS.index(self.speed) + by
        now, playing = self.now(), self.playing
        self.speed = SPEEDS[min(max(place, 0), len(SPEEDS) - 1)]
        self._set(now, playing)
