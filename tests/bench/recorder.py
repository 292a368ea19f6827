"""What the flight recorder costs a step."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import msgspec
from arc.engine.control.recorder import Recorder
from arc.engine.core.interface import EngineInfo
from arc.engine.flags import DEFAULTS
from arc.engine.telemetry.records import StepRecord


def main(steps: int = 20_000) -> None:
    """What one step's two records cost, in a process that does nothing else."""
    numbers = {field.name: 1 if field.type is int else 0.5 for field in msgspec.structs.fields(StepRecord)}
    records = [StepRecord(**(numbers | {"index": index})) for index in range(steps)]  # pyright: ignore[reportArgumentType]
    info = msgspec.convert(dict.fromkeys(_TEXTS, "") | dict.fromkeys(_NUMBERS, 1), EngineInfo)
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        written = Recorder(Path(folder) / "bench.rec", info, DEFAULTS)
        for record in records:
            began = time.perf_counter()
            written.opened(record.index, record.rows)
            written.closed(record)
            times.append(time.perf_counter() - began)
    times.sort()
    print(
        f"  flight recorder: {1e6 * times[steps // 2]:.1f} us a step, p99 {1e6 * times[int(0.99 * steps)]:.1f} us"
    )


_TEXTS = [field.name for field in msgspec.structs.fields(EngineInfo) if field.type is str]
_NUMBERS = [field.name for field in msgspec.structs.fields(EngineInfo) if field.type is not str]
