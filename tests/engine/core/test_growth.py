"""What a border and a step cost the engine thread does not depend on how many requests wait: counted, never timed."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arc.engine.control.commands import Actor, Cancel
from arc.engine.core.assembly import Assembly, assemble
from arc.engine.core.inbox import Cancellation
from arc.engine.core.port import FEW_ROWS
from arc.engine.core.sequence_table import MOST_ROWS
from arc.engine.sequence import FinishReason, WaitReason

from .living import request, settings_for

ACTOR = Actor(uid=0, gid=0, pid=1)
RUNNING = 4
# Instructions of a turn that hang on the clock: of a table that was asked for a while ago, one. Walking a hundred of
# those who wait takes more.
CLOCK = 20


class Walked(OrderedDict[Any, Any]):
    """A dict whose every step of an iteration is Python instructions, which those that C makes are not."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()

    def values(self) -> Any:
        return (self[key] for key in self)

    def items(self) -> Any:
        return ((key, self[key]) for key in self)


def instructions(run: Callable[[], object]) -> int:
    """Of Python, in `run` and all that it calls on this thread."""
    count = 0

    def tracer(frame: Any, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return tracer

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # what it finalizes would be counted here, whoever left it
    sys.settrace(tracer)
    try:
        run()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def turn(assembly: Assembly) -> None:
    assembly.engine.border()
    assert assembly.engine.step()


def waiting_engine(model: Path, folder: Path, waiting: int, **flags: object) -> Assembly:
    """RUNNING sequences that decode and so many that wait; no thread: the test makes the steps."""
    chosen = {"sched.max_running": RUNNING} | flags
    assembly = assemble(
        settings_for(model, folder, **{name.replace(".", "__"): value for name, value in chosen.items()})
    )
    assembly.handle.attach(asyncio.get_running_loop())
    engine = assembly.engine
    engine.sequences = Walked()
    engine.scheduler._entries = Walked()
    for number in range(RUNNING + waiting):
        engine.inbox.submit(request(f"r{number}", [5, 6, 7], max_tokens=400, priority=number % 7))
    while engine.counters.effective_batch != RUNNING or engine.counters.waiting != waiting:
        turn(assembly)
    for _ in range(9):  # a page is 8 tokens: all that is made once has been made
        turn(assembly)
    return assembly


def nothing(assembly: Assembly) -> None:
    del assembly


def arrival(assembly: Assembly) -> None:
    assembly.engine.inbox.submit(request("late", [5, 6, 7], priority=3))


def cancellation(assembly: Assembly) -> None:
    assembly.engine.inbox.cancel(Cancellation(f"r{RUNNING + 50}", FinishReason.DISCONNECTED))


def picture(assembly: Assembly) -> None:
    """What an attached console asks for, again and again."""
    assembly.port.request_publish()


def table(assembly: Assembly) -> None:
    assembly.port.request_publish(table=True)


@pytest.mark.parametrize("happens", [nothing, arrival, cancellation, picture, table])
@pytest.mark.parametrize("order", ["fcfs", "prefix", "priority"])
async def test_a_border_and_its_step_cost_the_same_however_many_wait(
    order: str,
    happens: Callable[[Assembly], None],
    tiny: Path,
    tmp_path: Path,
) -> None:
    counted = []
    # A table goes from one priority's line to the next one's, which is work as well: with these it stays in the first.
    for waiting in (7 * MOST_ROWS + 100 if happens is table else 700, 5000):
        assembly = waiting_engine(tiny, tmp_path, waiting, **{"sched.order": order})
        happens(assembly)
        counted.append(instructions(lambda it=assembly: turn(it)))
        assert abs(assembly.engine.counters.waiting - waiting) <= 1
    assert abs(counted[0] - counted[1]) <= CLOCK


# What keeps the others waiting, with the flags that bring it about. The requests below take one or two pages.
HELD_BACK: dict[WaitReason, dict[str, object]] = {
    WaitReason.RUNNING_CAP: {"sched.max_running": RUNNING},
    WaitReason.NO_PAGES: {"cache.page_cap": 8},
    WaitReason.TOKEN_BUDGET: {
        "sched.max_step_tokens": 8,
        "sched.prefill_chunk": 8,
        "sched.max_running": 8,
    },
    WaitReason.PAUSED: {},
}


def turns(model: Path, folder: Path, waiting: int, held_back: WaitReason, count: int) -> list[int]:
    """The instructions of each of so many turns, in which requests are admitted and end while the rest wait."""
    pauses = held_back is WaitReason.PAUSED
    chosen = {name.replace(".", "__"): value for name, value in HELD_BACK[held_back].items()}
    assembly = assemble(settings_for(model, folder, **chosen))
    assembly.handle.attach(asyncio.get_running_loop())
    engine, scheduler = assembly.engine, assembly.engine.scheduler
    engine.sequences = Walked()
    scheduler._entries = Walked()
    for number in range(RUNNING):
        engine.inbox.submit(request(f"r{number}", [5, 6, 7], max_tokens=5 + number, priority=number % 7))
    turn(assembly)
    if pauses:  # only now: RUNNING of them are to run
        scheduler.configure(replace(scheduler.config, paused=True))
    for number in range(RUNNING, RUNNING + waiting):
        engine.inbox.submit(request(f"r{number}", [5, 6, 7], max_tokens=5 + number % 3, priority=number % 7))
    engine.border()

    def one() -> None:
        assembly.port.request_publish()
        engine.border()
        engine.step()

    counted: list[int] = []
    reasons: Counter[WaitReason] = Counter()
    for _ in range(count):
        counted.append(instructions(one))
        reasons.update(engine.counters.waiting_by_reason)
    assert engine.counters.waiting >= FEW_ROWS, "as many are named in every turn"
    assert engine.counters.finished[FinishReason.LENGTH] >= RUNNING
    assert reasons[held_back]
    return counted


@pytest.mark.parametrize("held_back", HELD_BACK)
async def test_turns_in_which_requests_come_and_go_cost_the_same_however_many_wait(
    held_back: WaitReason, tiny: Path, tmp_path: Path
) -> None:
    few, many = (turns(tiny, tmp_path, waiting, held_back, 15) for waiting in (120, 5000))
    assert max(abs(one - other) for one, other in zip(few, many, strict=True)) <= CLOCK


def room(run: Callable[[], object]) -> int:
    """Most bytes that Python had more, at a time, while this ran: also what C copies in one instruction."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("happens", [nothing, arrival, cancellation, table])
async def test_a_turn_takes_the_same_memory_however_many_wait(
    happens: Callable[[Assembly], None], tiny: Path, tmp_path: Path
) -> None:
    taken = []
    for waiting in (7 * MOST_ROWS + 100, 5000):
        assembly = waiting_engine(tiny, tmp_path, waiting)
        happens(assembly)
        taken.append(room(lambda it=assembly: turn(it)))
    # A list of 5,000 references is 40,000 bytes. Not equal: a dict may grow just now.
    assert abs(taken[1] - taken[0]) < 8_000


async def test_a_whole_table_is_written_over_borders_and_stays_while_it_is_read(
    tiny: Path, tmp_path: Path
) -> None:
    assembly = waiting_engine(tiny, tmp_path, 1500)
    engine, port = assembly.engine, assembly.port
    port.request_publish(table=True)
    borders = 0
    while not ((table := port.published().table).whole and table.total):
        engine.border()
        borders += 1
    assert borders == 1500 // MOST_ROWS + 1
    assert table.total == 1504 and [each.id for each in table.rows] == [
        f"r{number}" for number in range(1504)
    ]
    assert all(each.wait_reason == "running cap" for each in table.rows[RUNNING:])
    port.request_publish()  # another console, which shows no table: whoever does show one still finds it
    engine.border()
    assert port.published().table is table


async def test_a_table_that_nobody_wants_says_what_runs(tiny: Path, tmp_path: Path) -> None:
    """Should the engine hang from now on, its dump has the sequences that it hangs with."""
    assembly = waiting_engine(tiny, tmp_path, 500)
    assembly.port.request_publish()
    assembly.engine.border()
    listed = assembly.port.published().table.rows
    assert [each.id for each in listed[:RUNNING]] == [f"r{number}" for number in range(RUNNING)]
    assert len(listed) < 100


async def test_cancelling_all_costs_each_sequence_the_same(tiny: Path, tmp_path: Path) -> None:
    costs = []
    for waiting in (400, 800):
        assembly = waiting_engine(tiny, tmp_path, waiting)
        answer = assembly.port.call(Cancel(actor=ACTOR, ids=None))
        costs.append(instructions(assembly.engine.border))
        done = answer.result(0)
        assert (len(done.ended), done.unknown, done.left) == (waiting + RUNNING, (), 0)
    # Twice the sequences: at most twice the work, and what does not depend on them is in both.
    assert costs[1] <= 2 * costs[0]
