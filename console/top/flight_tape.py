"""A flight recorder's file as a tape: from the records of single steps, what a console would have seen.

The recorder keeps neither latencies nor single sequences nor generated tokens: those stay unknown, and are named in the
picture's `lacks`, so that a sum of nothing is not shown as zero.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...engine.control import protocol as p
from ...engine.control.recording import Recording
from ...engine.flags import FLAGS, Value
from ...engine.telemetry.records import StepRecord
from ..exits import Failure
from .store import KEPT_SAMPLES, Entry, Link, Picture

UNKNOWN = "--"
_LACKS = frozenset({"generation_tokens", "prefix_queries", "prefix_hits"})
# An interval of no length, in which nothing can have happened: the views count over samples.
_NO_INTERVAL = p.Interval(
    seconds=0.0, steps=0, rows=0, admitted=0, step_seconds=0.0, forward_seconds=0.0, prompt_tokens=0,
    generation_tokens=0, prefix_queries=0, prefix_hits=0, preemptions=0, recomputed_tokens=0, faults=0, finished={},
    latency={},
)  # fmt: skip


class FlightTape:
    kind = "flight recorder"

    def __init__(self, recording: Recording, path: Path) -> None:
        """Raises Failure for steps that this version cannot read, and for a file without any."""
        try:
            self._steps = msgspec.convert(recording.steps, list[StepRecord], strict=False)
        except msgspec.ValidationError as error:
            raise Failure(f"{path} keeps steps that this version of arc cannot read: {error}") from None
        if not self._steps:
            raise Failure(
                f"{path} keeps no step: no request ever ran. `arc dump --post-mortem {path}` shows the rest"
            )
        self._recording = recording
        self._ends = [recording.wall(step.started + step.wall) for step in self._steps]
        kept = {event.number: event for event in (*recording.flags, *recording.events)}
        self._events = tuple(kept[number] for number in sorted(kept))
        self._event_times = [event.time for event in self._events]
        self._finish = max(self._ends[-1], recording.last_sign, recording.ended or 0.0)
        self.moments = sorted({*self._ends, *self._event_times, self._finish})
        self.opens_at = self.moments[-1]  # who opens this wants to know what came last
        self.cut = (
            f"{recording.torn} records were cut off in the middle and are left out" if recording.torn else ""
        )
        self._samples: dict[int, p.Sample] = dict(self._seconds())
        self._hello = self._who()

    def picture_at(self, moment: float) -> Picture:
        count = bisect_right(self._ends, moment)
        events = self._events[: bisect_right(self._event_times, moment)]
        return Picture(
            link=Link("attached", self._recording.header.started, heard=moment),
            hello=self._hello,
            snapshot=self._snapshot(count, events, moment) if count else None,
            samples=self._window(moment),
            events=_with_gap(events),
            flags=self._flags(moment),
            spans=p.NA("a flight recorder keeps no spans"),
            lacks=_LACKS,
        )

    def _who(self) -> p.Hello:
        """What the file does not say and no view of a replay shows stands at its type's empty value."""
        header = self._recording.header
        return p.Hello(
            protocol=p.PROTOCOL, name=header.name, version=header.version, revision=header.revision, pid=header.pid,
            model=header.model, model_path=UNKNOWN, model_type=UNKNOWN, parameters=0, dtype=UNKNOWN,
            device=header.device, max_model_len=0, page_size=0, pages=_pages(self._steps[-1]).total, profile=UNKNOWN,
            started=header.started, config_version=0, role="viewer", uid=0, capabilities=(),
            recorder=p.NA("this is its file"),
        )  # fmt: skip

    def _snapshot(self, count: int, events: tuple[p.Event, ...], moment: float) -> p.Snapshot:
        last, ended = self._steps[count - 1], self._ends[count - 1]
        step_open = self._open_since(count, moment)
        return p.Snapshot(
            time=moment,
            uptime=max(0.0, moment - self._recording.header.started),
            state=self._state(events, moment),
            age=moment - ended,
            step=last.index,
            step_age=moment - ended,
            step_open=step_open,
            running=_left(last),
            waiting=last.waiting,
            waiting_by_reason={},  # the reasons are not kept
            effective_batch=last.rows,
            pages=_pages(last),
            window=_NO_INTERVAL,
            life=_NO_INTERVAL,
            last_step=last,
            config_version=0,
            changed=(),
            last_event=events[-1].number if events else 0,
        )

    def _open_since(self, count: int, moment: float) -> float | None:
        """For how long the step after the first `count` was under way; the one that never ended is the last."""
        if count < len(self._steps):
            started = self._recording.wall(self._steps[count].started)
        elif self._recording.open_step is not None:
            started = self._recording.last_sign
        else:
            return None
        return moment - started if started <= moment else None

    def _state(self, events: tuple[p.Event, ...], moment: float) -> p.State:
        if any(event.kind == "drain" for event in events):
            return "draining"
        return "paused" if self._values(moment)[0].get("sched.paused") else "serving"

    # -- flags ----------------------------------------------------------------------------------------------------

    def _values(self, moment: float) -> tuple[dict[str, Value], dict[str, p.Event]]:
        """The flags in force at that moment, and the event that changed each since the engine's start."""
        values = dict(self._recording.values)
        changed_by: dict[str, p.Event] = {}
        for event in self._events:
            if event.time <= moment:
                changed_by |= dict.fromkeys(_changes(event), event)
        for event in reversed(self._events):
            if event.time > moment:
                values |= {name: change["old"] for name, change in _changes(event).items()}
        return values, changed_by

    def _flags(self, moment: float) -> p.Flags:
        values, changed_by = self._values(moment)
        rows = tuple(
            _row(name, value, changed_by.get(name)) for name, value in values.items() if name in FLAGS
        )
        return p.Flags(version=0, flags=rows)

    # -- samples --------------------------------------------------------------------------------------------------

    def _window(self, moment: float) -> tuple[p.Sample, ...]:
        """The samples of whole seconds up to a moment; an idle second repeats the state that the step before left."""
        last = math.floor(moment)
        if moment >= self._ends[-1] and last + 1 in self._samples:
            last += 1  # the last one was not filled
        first = max(last - KEPT_SAMPLES + 1, min(self._samples))
        found: list[p.Sample] = []
        before: p.Sample | None = None
        for second in range(first, last + 1):
            sample = self._samples.get(second)
            if sample is not None:
                before = sample
            elif before is not None:
                sample = _idle(before, second)
            if sample is not None:
                found.append(sample)
        return tuple(found)

    def _seconds(self) -> Iterator[tuple[int, p.Sample]]:
        """One sample for each second in which a step ended, by the time at which the second ends."""
        faults: dict[int, int] = {}
        for event in self._events:
            if event.kind == "fault":
                faults[math.ceil(event.time)] = faults.get(math.ceil(event.time), 0) + 1
        by_second: dict[int, list[StepRecord]] = {}
        for step, end in zip(self._steps, self._ends, strict=True):
            by_second.setdefault(math.ceil(end), []).append(step)
        for second, steps in by_second.items():
            last = steps[-1]
            pages = _pages(last)
            yield second, p.Sample(
                time=float(second), seconds=1.0, running=_left(last), waiting=last.waiting, pages_used=pages.used,
                pages_cached=pages.cached, pages_free=pages.free, steps=len(steps),
                rows=sum(step.rows for step in steps), admitted=sum(step.admitted for step in steps),
                step_seconds=sum(step.wall for step in steps), forward_seconds=sum(step.forward for step in steps),
                prompt_tokens=sum(step.prompt_tokens for step in steps), generation_tokens=0, prefix_queries=0,
                prefix_hits=0, preemptions=sum(step.preempted for step in steps),
                finished=sum(step.finished for step in steps), faults=faults.get(second, 0), buckets={},
            )  # fmt: skip


def _left(step: StepRecord) -> int:
    """Sequences that hold KV once those that ended in the step are gone."""
    return max(0, step.admitted - step.finished)


def _pages(step: StepRecord) -> p.Pages:
    total = step.pages_used + step.pages_cached + step.pages_free
    return p.Pages(total, step.pages_used, step.pages_cached, step.pages_free)


def _idle(before: p.Sample, second: int) -> p.Sample:
    return msgspec.structs.replace(
        before, time=float(second), steps=0, rows=0, admitted=0, step_seconds=0.0, forward_seconds=0.0,
        prompt_tokens=0, preemptions=0, finished=0, faults=0,
    )  # fmt: skip


def _changes(event: p.Event) -> dict[str, dict[str, Value]]:
    changes = event.data.get("changes")
    return changes if isinstance(changes, dict) else {}


def _with_gap(events: tuple[p.Event, ...]) -> tuple[Entry, ...]:
    """The rings keep the newest only: what is missing between two numbers is said."""
    entries: list[Entry] = []
    before = 0
    for event in events:
        if event.number > before + 1:
            entries.append(p.Gap(event.number - before - 1, before + 1, event.number - 1))
        entries.append(event)
        before = event.number
    return tuple(entries)


def _row(name: str, value: Value, changed_by: p.Event | None) -> p.FlagView:
    flag = FLAGS[name]
    origin = p.OriginView(layer="--", where="what was in force when the recording began")
    if changed_by is not None:
        origin = p.OriginView(
            layer="runtime", where=changed_by.text, uid=changed_by.uid, time=changed_by.time
        )
    return p.FlagView(
        name=name, value=value, default=flag.default, origin=origin, changed=changed_by is not None, kind=flag.kind,
        unit=flag.unit, allowed=flag.allowed, low=flag.low, high=flag.high, choices=flag.choices, words=flag.words,
        reach=str(flag.reach), meaning=flag.meaning, danger=flag.danger, until=None, then=None,
    )  # fmt: skip
