"""The table of all sequences, written in pieces: so many rows at one step border, however many wait.

A pass goes over the line first, over as many borders as that takes, then over those that hold pages or gave them up.
It is done at the border at which the last row is written. Work at one border is at most MOST_ROWS visits; what grows
beyond that are pointers to those that run or were preempted, bounded by sched.max_running. Handing the rows over copies
none of them.

What a whole table says:
- Each sequence that was there from the pass's beginning to its end stands in it once, and none twice. One that ended
  meanwhile is left out. One that came meanwhile may be in it or not: the line is walked up to the number that was the
  highest at the beginning, so arrivals never keep a pass open.
- First those that run, then those that wait, in the line's order. The running are written last: while they and the
  preempted are MOST_ROWS at most, all at the border at which the table is done, else over the last few borders.
- A row is its sequence as it stood when it was written. One that was admitted after its row was written, and after the
  running were begun, stands in the table as waiting.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection

from ..control.engine_port import Table
from ..control.protocol import SequenceView
from ..scheduler.queue import Walk
from ..scheduler.scheduler import Scheduler
from ..sequence import Sequence, Status

MOST_ROWS = 256  # visits at one border


class _Pass:
    def __init__(self, began: float, last: int, walk: Walk, by_priority: bool) -> None:
        self.began = began
        self.last = last  # the highest number at the beginning
        self.walk = walk
        self.by_priority = by_priority
        self.ahead = 0
        self.walked = False  # the line is done
        self.fresh: dict[
            int, dict[int, SequenceView]
        ] = {}  # never admitted: by class, by number, in line order
        self.held: deque[Sequence] | None = (
            None  # those that run or were preempted, as of when they were begun
        )
        self.running: dict[int, SequenceView] = {}
        self.returned: dict[int, SequenceView] = {}

    def class_of(self, priority: int) -> int:
        return priority if self.by_priority else 0

    def drop(self, seq: Sequence) -> None:
        self.running.pop(seq.number, None)
        self.returned.pop(seq.number, None)
        if (home := self.fresh.get(self.class_of(seq.request.priority))) is not None:
            home.pop(seq.number, None)


class SequenceTable:
    """On the engine thread, between two steps."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._pass: _Pass | None = None
        self.visits = 0  # in its life: the work that tests count

    @property
    def under_way(self) -> bool:
        return self._pass is not None

    def begin(self, last: int) -> None:
        """`last`: the highest number of a sequence so far."""
        assert self._pass is None
        scheduler = self._scheduler
        by_priority = scheduler.config.order == "priority"
        self._pass = _Pass(time.monotonic(), last, scheduler.walk(), by_priority)

    def ended(self, seq: Sequence) -> None:
        """It has no row from now on."""
        if self._pass is not None:
            self._pass.drop(seq)

    def go_on(self, step: int) -> Table | None:
        """Write the next rows; the table when these were the last. `step`: the last finished one."""
        now, run = time.monotonic(), self._pass
        assert run is not None
        left = MOST_ROWS
        if not run.walked:
            left = self._go_along_the_line(run, left, now)
            if not run.walked:
                return None
        if run.held is None:
            held = [*self._scheduler.running, *self._scheduler.preempted()]
            if left < min(len(held), MOST_ROWS):
                return None  # the next border has a whole border's work for whoever runs then
            run.held = deque(held)
        while run.held and left:
            self._write_held(run, run.held.popleft(), now)
            left -= 1
            self.visits += 1
        if run.held:
            return None
        self._pass = None
        return Table(
            began=run.began,
            taken=now,
            step=step,
            total=self._scheduler.running_count + self._scheduler.waiting_count,
            parts=_in_order(run),
        )

    def _go_along_the_line(self, run: _Pass, left: int, now: float) -> int:
        while left:
            entry = run.walk.next(run.last)
            if entry is None:
                run.walked = True
                break
            left -= 1
            self.visits += 1
            if entry == "on":
                continue
            seq = entry.seq
            if seq.status is Status.WAITING:  # else the order of the line was changed under the walk
                run.ahead = self._scheduler.refresh_reason(seq, run.ahead)
                run.fresh.setdefault(run.class_of(seq.request.priority), {})[seq.number] = view(seq, now)
        return left

    def _write_held(self, run: _Pass, seq: Sequence, now: float) -> None:
        run.drop(seq)  # its row from when it was in line
        if seq.status is Status.RUNNING:
            run.running[seq.number] = view(seq, now)
        elif seq.status is Status.WAITING:
            self._scheduler.refresh_reason(seq, 0)
            run.returned[seq.number] = view(seq, now)


def _in_order(run: _Pass) -> tuple[Collection[SequenceView], ...]:
    returned: dict[int, list[SequenceView]] = {}
    for number in sorted(run.returned):
        row = run.returned[number]
        returned.setdefault(run.class_of(row.priority), []).append(row)
    parts: list[Collection[SequenceView]] = [run.running.values()]
    for priority in sorted({*returned, *run.fresh}):
        parts += [returned.get(priority, ()), run.fresh.get(priority, {}).values()]
    return tuple(parts)


def glance(scheduler: Scheduler, rows: int, step: int) -> Table:
    """The first few of the table, for a state that nobody wanted a table with."""
    now = time.monotonic()
    listed = scheduler.running[:rows]
    listed += scheduler.waiting(rows - len(listed))
    total = scheduler.running_count + scheduler.waiting_count
    return Table(
        began=now,
        taken=now,
        step=step,
        total=total,
        parts=(tuple(view(seq, now) for seq in listed),),
        whole=len(listed) == total,
    )


def view(seq: Sequence, now: float) -> SequenceView:
    """The sequence's row."""
    arrival = seq.request.arrival
    return SequenceView(
        id=seq.id,
        number=seq.number,
        status=str(seq.status),
        wait_reason=str(seq.wait_reason) if seq.status is Status.WAITING and seq.wait_reason else None,
        priority=seq.request.priority,
        prompt_tokens=seq.prompt_len,
        output_tokens=seq.output_len,
        max_tokens=seq.request.params.max_tokens,
        computed=seq.computed,
        cached_prefix=seq.cached_prefix,
        pages=len(seq.pages),
        preemptions=seq.preemptions,
        drafted=seq.drafted,
        accepted=seq.accepted,
        age=now - arrival,
        queued=None if seq.admitted_at is None else seq.admitted_at - arrival,
        first_token=None if seq.first_token_at is None else seq.first_token_at - arrival,
        since_token=None if seq.last_token_at is None else now - seq.last_token_at,
    )
