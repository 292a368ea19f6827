"""What `arc bench growth` asks of a process that measures, and what comes back: step times while one thing grows."""

from __future__ import annotations

from typing import Literal

import msgspec

Axis = Literal["rows", "context", "waiting"]

# Of a turn of the engine's loop. `border`: taking the inbox in, and whatever is outside of the step's own record.
PARTS = ("border", "schedule", "forward", "sample", "publish")
STEP = "step"  # the whole turn
SNAPSHOT = "snapshot"  # one for a console; not part of a step


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """`axis` takes each of `values`, and the other two stay what they are here."""

    model: str
    axis: Axis
    values: tuple[int, ...]
    rows: int  # that decode
    context: int  # tokens of each row
    waiting: int
    visits: int  # of each value, all in random order
    steps: int  # measured at a visit
    threads: int | None  # None: as the engine chooses
    seed: int

    def at(self, value: int) -> tuple[int, int, int]:
        """Rows, context and waiting of one of `values`."""
        return (
            value if self.axis == "rows" else self.rows,
            value if self.axis == "context" else self.context,
            value if self.axis == "waiting" else self.waiting,
        )


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One visit of one value: of its steps the best and the median, in seconds, by PARTS, STEP and SNAPSHOT."""

    value: int
    best: dict[str, float]
    median: dict[str, float]


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    sweep: Sweep
    model: str
    parameters: int
    dtype: str
    device: str
    version: str
    revision: str
    profile: str
    page_size: int
    threads: int  # that computed
    kernels: dict[str, str]  # operation -> backend
    visits: tuple[Visit, ...]
