"""A trace as Chrome's trace event format, in the JSON object form, which Perfetto and chrome://tracing open.

The form is that of the document "Trace Event Format" (Google): complete events (X) with `ts` and `dur` in microseconds,
metadata (M) that names the tracks, counters (C). The host and the device are a track each, since the device works on
while the host goes on; on a track a span stands before those that lie in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..engine.control import span_messages as s
from ..engine.control.protocol import NA

HOST, DEVICE = 1, 2  # thread ids of the tracks
_PID = 1
_US = 1000  # ns

Event = dict[str, Any]


def document(trace: s.Trace, report: s.SpanReport, engine: str) -> bytes:
    """The file. What viewers do not know stands under otherData, where they leave it alone."""
    whole = {
        "traceEvents": list(events(trace, engine)),
        "displayTimeUnit": "ms",
        "otherData": {
            "build": msgspec.to_builtins(trace.build),
            "proof": msgspec.to_builtins(trace.proof),
            "detail": trace.detail,
            "began": trace.began,
            "seconds": trace.seconds,
            "cut": trace.cut,
            "device": msgspec.to_builtins(trace.device_start)
            if isinstance(trace.device_start, NA)
            else "events",
            "report": msgspec.to_builtins(report),
        },
    }
    return msgspec.json.encode(whole)


def events(trace: s.Trace, engine: str) -> Iterator[Event]:
    has_device = not isinstance(trace.device_start, NA)
    yield _named("process_name", f"arc {engine}: {trace.build.model} on {trace.build.device}", 0)
    yield _named("thread_name", "host", HOST)
    if has_device:
        yield _named("thread_name", "device", DEVICE)
    names = [path.rpartition("/")[2] for path in trace.paths]
    for step in trace.steps:
        begins = trace.start[step.first] / _US
        yield {"ph": "C", "name": "rows", "pid": _PID, "tid": HOST, "ts": begins, "args": {"rows": step.rows}}
        yield from _of_host(trace, step, names)
    if not isinstance(trace.device_start, NA) and not isinstance(trace.device_wall, NA):
        yield from _of_device(trace, trace.device_start, trace.device_wall, names)


def _named(what: str, name: str, track: int) -> Event:
    return {"ph": "M", "name": what, "pid": _PID, "tid": track, "ts": 0, "args": {"name": name}}


def _of_host(trace: s.Trace, step: s.TraceStep, names: list[str]) -> Iterator[Event]:
    for place in range(step.first, step.first + step.count):
        event = _complete(names[trace.path[place]], step.kind, HOST, trace.start[place], trace.wall[place])
        if place == step.first:
            event["args"] = {"step": step.number, "rows": step.rows, "tokens": step.tokens}
        yield event


def _of_device(
    trace: s.Trace, start: list[int | None], wall: list[int | None], names: list[str]
) -> Iterator[Event]:
    found: list[tuple[int, int, int, s.Kind]] = []
    for step in trace.steps:
        for place in range(step.first, step.first + step.count):
            began, took = start[place], wall[place]
            if began is not None and took is not None:
                found.append((began, -took, place, step.kind))
    for began, took, place, kind in sorted(found):
        yield _complete(names[trace.path[place]], kind, DEVICE, began, -took)


def _complete(name: str, kind: s.Kind, track: int, start: int, wall: int) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": _PID,
        "tid": track,
        "ts": start / _US,
        "dur": wall / _US,
    }
