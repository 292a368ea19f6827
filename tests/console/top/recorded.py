"""What one engine said at one moment, recorded from a real one, as the console's picture of it.

The engine ran the tiny checkpoint under a mixed load; its cap had been lowered for 40 seconds when this was recorded.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from arc.console.top.host import Host
from arc.console.top.lines import Line, text_of, width_of
from arc.console.top.scene import SPANS, Scene
from arc.console.top.store import Link, Picture
from arc.engine.control import allocator_messages as a
from arc.engine.control import protocol as p
from arc.engine.control import span_messages as s

DATA = Path(__file__).resolve().parents[2] / "data" / "console"
SIZES = ((80, 24), (120, 40), (200, 60))


class Recorded(msgspec.Struct, frozen=True):
    time: float
    hello: p.Hello
    snapshot: p.Snapshot
    sequences: p.Sequences
    memory: p.Memory
    history: p.History
    events: p.Events
    flags: p.Flags


class RecordedAllocator(msgspec.Struct, frozen=True):
    """Of another run, on the carried model and the torch backend, whose cap was lowered so far that it bound."""

    allocator: a.Allocator
    seconds: tuple[p.AllocatorCounts, ...]  # one a second, oldest first


@cache
def recorded() -> Recorded:
    return msgspec.json.decode((DATA / "recorded.json").read_bytes(), type=Recorded)


@cache
def allocator() -> RecordedAllocator:
    return msgspec.json.decode((DATA / "allocator.json").read_bytes(), type=RecordedAllocator)


def _samples() -> tuple[p.Sample, ...]:
    """The recorded ones, with what the allocator did laid over the newest of them."""
    samples, counts = list(recorded().history.samples), allocator().seconds
    for back in range(1, min(len(samples), len(counts)) + 1):
        samples[-back] = msgspec.structs.replace(samples[-back], allocator=counts[-back])
    return tuple(samples)


@cache
def span_report() -> s.SpanReport:
    """Of a real engine on the carried model, at detail `op`, with all three kinds of step."""
    return msgspec.json.decode((DATA / "spans.json").read_bytes(), type=s.SpanReport)


@cache
def picture() -> Picture:
    read = recorded()
    return Picture(
        number=1,
        link=Link("attached", read.time - 60, heard=read.time),
        hello=read.hello,
        snapshot=read.snapshot,
        sequences=read.sequences,
        samples=_samples(),
        bounds=read.history.bounds,
        events=read.events.events,
        flags=read.flags,
        memory=read.memory,
        host=Host(0.87, 1.0, 2, 6_000 * 2**20, 24_106 * 2**20, p.NA("the engine runs on cpu")),
        spans=span_report(),
        allocator=allocator().allocator,
    )


def scene(*, at: float | None = None, span: float = SPANS[1], later: float = 0.0, **changes: Any) -> Scene:
    """The recorded moment, `later` seconds after its last word, with parts of the picture replaced."""
    return Scene(replace(picture(), **changes), span, at, recorded().time + later)


def snapshot(**changes: Any) -> p.Snapshot:
    return msgspec.structs.replace(recorded().snapshot, **changes)


def texts(lines: list[Line]) -> list[str]:
    return [text_of(line).rstrip() for line in lines]


def widths(lines: list[Line]) -> set[int]:
    return {width_of(line) for line in lines}
