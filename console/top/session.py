"""What this console itself is doing, beside showing an engine: it replays a file, writes one, or makes a demo load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replaying:
    """A replay at one moment. `start`, `end` and `moment` are time.time() of the recording."""

    name: str  # of the file
    kind: str
    start: float
    end: float
    moment: float
    speed: float
    playing: bool
    cut: str  # what is missing of the file, else empty

    @property
    def share(self) -> float:
        length = self.end - self.start
        return (self.moment - self.start) / length if length > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Session:
    replaying: Replaying | None = None
    recording: str = ""  # the file that is being written
    trouble: str = ""  # why it no longer is
    demo: int | None = None  # requests of the demo load under way; None without one


NO_SESSION = Session()
