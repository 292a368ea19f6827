"""The table that is written in pieces, over a scheduler whose sequences come, run, are preempted and end meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from arc.engine.control.engine_port import Table
from arc.engine.core import sequence_table
from arc.engine.core.sequence_table import SequenceTable
from arc.engine.sequence import Sequence, Status
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.scheduler.toy_engine import ToyEngine

ROWS = 3


class Told(ToyEngine):
    """Tells the table of ends, as the engine does."""

    def __init__(self, **flags: Any) -> None:
        super().__init__(**flags)
        self.table = SequenceTable(self.scheduler)

    def end(self, seq: Sequence, *rest: Any) -> None:
        super().end(seq, *rest)
        self.table.ended(seq)

    def cancel(self, seq: Sequence) -> None:
        super().cancel(seq)
        self.table.ended(seq)


class Passes(RuleBasedStateMachine):
    @initialize(
        order=st.sampled_from(["fcfs", "priority", "prefix"]),
        running=st.sampled_from([2, 3, 7]),
        pages=st.sampled_from([12, 20, 64]),
    )
    def start(self, order: str, running: int, pages: int) -> None:
        self.engine = Told(
            pages=pages, order=order, max_running=running, max_step_tokens=64, prefill_chunk=16
        )
        self.there: set[int] | None = None  # when the pass began, and ever since
        self.borders = 0
        self.most = 0
        self.held = 0  # most that ran or were preempted at a border of the pass
        self.flipped = False

    @rule(count=st.integers(1, 6), priority=st.integers(0, 3), tokens=st.integers(1, 30))
    def come(self, count: int, priority: int, tokens: int) -> None:
        for _ in range(count):
            self.engine.add(3, max_tokens=tokens, priority=priority)

    @rule(times=st.integers(1, 6))
    def steps(self, times: int) -> None:
        for _ in range(times):
            self.engine.step()

    @precondition(lambda self: self.engine.live)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.engine.cancel(self.engine.live[data.draw(st.sampled_from(sorted(self.engine.live)))])

    @rule(order=st.sampled_from(["fcfs", "priority"]))
    def turn_the_line(self, order: str) -> None:
        self.flipped |= order != self.engine.config.order
        self.engine.configure(order=order)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.engine.configure(paused=paused)

    @precondition(lambda self: self.there is None)
    @rule()
    def begin(self) -> None:
        self.there, self.borders, self.flipped = set(self.engine.live), 0, False
        self.held = 0
        self.most = 2 * (len(self.there) + len(self.engine.sequences)) // ROWS + 8
        self.engine.table.begin(len(self.engine.sequences) - 1)

    @precondition(lambda self: self.there is not None)
    @rule(arrivals=st.integers(0, ROWS))
    def border(self, arrivals: int) -> None:
        for _ in range(arrivals):  # as fast as rows are written
            self.engine.add(2, priority=1)
        scheduler = self.engine.scheduler
        self.held = max(self.held, scheduler.running_count + len(scheduler.preempted()))
        visits = self.engine.table.visits
        table = self.engine.table.go_on(self.engine.steps)
        assert self.engine.table.visits - visits <= ROWS
        self.borders += 1
        assert self.borders <= self.most, "the pass does not end"
        if table is not None:
            self.check(table)
            self.there = None

    @invariant()
    def those_who_left_are_no_longer_expected(self) -> None:
        if self.there is not None:
            self.there &= set(self.engine.live)

    def check(self, table: Table) -> None:
        engine, rows = self.engine, table.rows
        numbers = [row.number for row in rows]
        assert len(set(numbers)) == len(numbers), "one is listed twice"
        assert self.there is not None
        assert self.there & set(engine.live) <= set(numbers), "one that was there all the time is missing"
        assert set(numbers) <= set(engine.live), "one that has ended is listed"
        assert table.total == len(engine.live)
        states = [row.status for row in rows]
        assert states == sorted(states), "the running stand first"  # "running" < "waiting"
        assert all(row.pages or not row.computed for row in rows)
        running = [seq.number for seq in engine.scheduler.running]
        listed = [row.number for row in rows if row.status == "running"]
        if self.held <= ROWS:
            assert listed == running, "as they run now, in the scheduler's order"
            if not self.flipped:
                line = [seq.number for seq in engine.scheduler.waiting() if seq.number in set(numbers)]
                assert [row.number for row in rows if row.status == "waiting"] == line
        for row in rows:
            if row.status == "waiting":
                assert row.pages == row.computed == 0 and row.wait_reason


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_table, "MOST_ROWS", ROWS)


Passes.TestCase.settings = hypothesis_settings(max_examples=150, stateful_step_count=60, deadline=None)
TestPasses = pytest.mark.usefixtures("few_rows")(Passes.TestCase)


def test_arrivals_as_fast_as_rows_keep_no_pass_open() -> None:
    engine = Told(pages=64, max_running=2, paused=True)
    for _ in range(10):
        engine.add(2)
    engine.table.begin(9)
    tables = []
    for _ in range(6):
        for _ in range(ROWS):
            engine.add(2)
        if (table := engine.table.go_on(0)) is not None:
            tables.append(table)
            break
    assert [[row.number for row in table.rows] for table in tables] == [list(range(10))]
    assert tables[0].total > 10


def test_one_that_is_admitted_while_it_is_written_is_listed_once_and_as_running() -> None:
    engine = Told(pages=64, max_running=2, paused=True)
    for _ in range(7):
        engine.add(2, max_tokens=20)
    engine.table.begin(6)
    assert engine.table.go_on(0) is None  # the first three
    engine.configure(paused=False)
    engine.step()
    table = None
    while table is None:
        table = engine.table.go_on(0)
    assert [(row.number, row.status) for row in table.rows] == [
        (number, str(Status.RUNNING if number < 2 else Status.WAITING)) for number in range(7)
    ]
