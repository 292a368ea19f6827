"""The rules of docs/scheduler.md, one by one, and their bounds as properties."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from math import ceil

import msgspec
import pytest
from arc.engine.scheduler import pressure
from arc.engine.scheduler.pages import PageManager
from arc.engine.scheduler.scheduler import PREFIX_PASSES, PREFIX_WINDOW, Scheduler
from arc.engine.scheduler.types import CannotFit, SchedulerConfig, Step
from arc.engine.sequence import Request, SamplingParams, Sequence, Status, WaitReason, sequence_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .toy_engine import ToyEngine

pytestmark = pytest.mark.usefixtures("short_horizon")


def decoding(engine: ToyEngine, count: int, prompt: int = 1, max_tokens: int = 10_000) -> list[Sequence]:
    """`count` sequences past their prompts."""
    seqs = [engine.add(prompt, max_tokens) for _ in range(count)]
    while any(seq.computed < seq.prompt_len for seq in seqs):
        assert engine.step() is not None
        assert engine.steps < 1000
    return seqs


def numbers(step: Step | None) -> list[int]:
    assert step is not None
    return [row.seq.number for row in step.rows]


# -- one budget, no phases -------------------------------------------------------------------------------


def test_a_long_prompt_never_stops_running_rows() -> None:
    engine = ToyEngine(400, 4, max_step_tokens=24, prefill_chunk=8)
    rows = decoding(engine, 5)
    prompt = engine.add(300, 1)
    while prompt.status is not Status.FINISHED:
        step = engine.step()
        assert step is not None
        assert numbers(step)[:5] == [seq.number for seq in rows]
        assert step.prompt_tokens <= 8


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 24),
    budget=st.integers(2, 32),
    chunk=st.integers(1, 16),
    prompt=st.integers(2, 60),
)
def test_neither_decode_nor_prompt_starves(rows: int, budget: int, chunk: int, prompt: int) -> None:
    """The bounds of docs/scheduler.md: a row's gap and a prompt's time, whatever the other side wants."""
    engine = ToyEngine(200, 64, max_running=rows + 3, max_step_tokens=budget, prefill_chunk=chunk)
    decoding(engine, rows)
    engine.configure(max_running=rows + 2)
    for _ in range(3):
        engine.add(prompt, 1)
    first = engine.sequences[-3]
    share = max(budget // 8, 1)
    gap = ceil(
        (rows + 2) / (budget - share)
    )  # the two prompts admitted may come to their last token meanwhile
    last_seen = dict.fromkeys(range(rows), engine.steps)
    began = engine.steps
    while engine.live.keys() - set(range(rows)):
        step = engine.step()
        assert step is not None
        for row in step.rows:
            if row.seq.number < rows:
                assert engine.steps - last_seen[row.seq.number] <= gap
                last_seen[row.seq.number] = engine.steps
        if first.status is Status.FINISHED:
            assert engine.steps - began <= ceil(prompt / min(share, chunk)) + gap
            began = engine.steps
    assert all(engine.steps - seen <= gap for seen in last_seen.values())


def test_what_prompts_leave_of_their_share_goes_to_decode_rows() -> None:
    engine = ToyEngine(400, 4, max_running=33, max_step_tokens=32)
    decoding(engine, 32)
    engine.add(2, 1)
    step = engine.step()
    assert step is not None
    assert (step.decode_rows, step.prompt_tokens) == (30, 2)
    engine = ToyEngine(400, 4, max_running=40, max_step_tokens=32)
    decoding(engine, 32)
    blocked = engine.add(600, 1)
    step = engine.step()
    assert step is not None and step.decode_rows == 32
    assert blocked in engine.scheduler.waiting() and blocked.wait_reason is WaitReason.NO_PAGES


# -- order -----------------------------------------------------------------------------------------------


def admissions(engine: ToyEngine) -> list[int]:
    order = []
    while (step := engine.step()) is not None:
        order += [seq.number for seq in step.admitted]
    return order


def test_first_come_first_served() -> None:
    engine = ToyEngine(max_running=2)
    for i in range(9):
        engine.add(3 + i % 4, 1 + i % 5)
    assert admissions(engine) == list(range(9))


def test_nobody_overtakes_a_prompt_that_waits_for_pages() -> None:
    engine = ToyEngine(20, 4, max_running=8)
    decoding(engine, 1, prompt=40, max_tokens=12)
    engine.add(60, 1)
    engine.add(1, 1)
    assert admissions(engine) == [1, 2]


def test_lower_priority_numbers_run_first_and_equal_ones_by_arrival() -> None:
    engine = ToyEngine(max_running=1, order="priority")
    for priority in (5, 0, -3, 5, 0, -3):
        engine.add(3, 2, priority)
    assert admissions(engine) == [2, 5, 1, 4, 0, 3]


def test_turning_the_order_keeps_everyone_in_line() -> None:
    engine = ToyEngine(max_running=1)
    for priority in (5, 0, -3, 5):
        engine.add(3, 2, priority)
    engine.step()
    engine.configure(order="priority")
    engine.step()
    assert [seq.number for seq in engine.scheduler.waiting()] == [2, 1, 3]
    engine.configure(order="fcfs")
    assert [seq.number for seq in engine.scheduler.waiting()] == [1, 2, 3]
    assert admissions(engine) == [1, 2, 3]


def test_longest_cached_prefix_first() -> None:
    engine = ToyEngine(100, 2, max_running=1, order="prefix")
    warm = [1, 2, 3, 4, 5, 6, 7, 8]
    engine.add(warm, 1)
    engine.run()
    engine.add(5, 1)
    engine.add([*warm[:4], 0, 0], 1)
    engine.add([*warm, 0], 1)
    engine.add(5, 1)
    assert admissions(engine) == [3, 2, 1, 4]


def test_prefix_order_passes_over_the_first_in_line_a_bounded_number_of_times() -> None:
    engine = ToyEngine(400, 2, max_running=1, order="prefix")
    warm = [1, 2, 3, 4, 5, 6]
    engine.add(warm, 1)
    engine.run()
    cold = [engine.add(5, 1) for _ in range(3)]
    for _ in range(4 * PREFIX_PASSES):
        engine.add([*warm, 0], 1)
    order = admissions(engine)
    assert [order.index(seq.number) for seq in cold] == [
        PREFIX_PASSES * (i + 1) + i for i in range(len(cold))
    ]
    assert len(cold) < PREFIX_WINDOW


def test_the_preempted_go_to_the_front_in_order_of_arrival() -> None:
    engine = ToyEngine(60, 4, max_running=4, max_step_tokens=64)
    for _ in range(4):
        engine.add(5, 200)
    late = [engine.add(3, 2) for _ in range(3)]
    engine.run_until_preempted(2)
    line = engine.scheduler.waiting()
    front = [seq for seq in line if seq.preemptions]
    assert line == [*front, *late]
    assert front == sorted(front, key=lambda seq: seq.number) and len(front) == 2
    engine.run()
    assert len(engine.finished) == 7


# -- caps and pause --------------------------------------------------------------------------------------


def test_lowering_the_running_cap_drains() -> None:
    engine = ToyEngine(100, 4, max_running=6)
    rows = decoding(engine, 6, max_tokens=20)
    engine.add(3, 1)
    engine.configure(max_running=2)
    step = engine.step()
    assert step is not None and step.decode_rows == 6 and not step.preempted
    assert engine.scheduler.waiting_by_reason() == {WaitReason.RUNNING_CAP: 1}
    engine.run()
    assert all(len(seq.tokens) == 21 for seq in rows) and engine.preemptions == 0


def test_paused_admits_nothing_and_running_work_goes_on() -> None:
    engine = ToyEngine(max_running=4)
    decoding(engine, 1, max_tokens=5)
    waiting = engine.add(3, 1)
    engine.configure(paused=True)
    engine.run()
    assert len(engine.finished) == 1
    assert engine.scheduler.waiting() == [waiting] and waiting.wait_reason is WaitReason.PAUSED
    engine.configure(paused=False)
    engine.run()
    assert waiting.status is Status.FINISHED


def test_a_prompt_that_never_fits_is_refused_at_the_door() -> None:
    engine = ToyEngine(10, 4)
    assert engine.add(40, 1).finish is None
    refused = engine.add(41, 1)
    assert refused.finish is not None
    assert refused.finish.detail == "41 tokens need 11 pages of 4 and the cache has 10"
    engine.configure(page_cap=3)
    refused = engine.add(13, 1)
    assert refused.finish is not None
    assert refused.finish.detail == "13 tokens need 4 pages of 4 and cache.page_cap allows 3 of 10"
    with pytest.raises(CannotFit):
        engine.scheduler.add(sequence_of(99, refused.request))


def test_the_last_survivor_that_cannot_grow_fails_with_numbers_and_the_rest_goes_on() -> None:
    engine = ToyEngine(6, 4, max_running=4)
    big = engine.add(20, 30)
    small = engine.add(3, 3)
    engine.run()
    assert big.finish is not None
    assert big.finish.detail == "25 tokens need 7 pages of 4 and the cache has 6"
    assert len(big.tokens) == 25
    assert len(small.tokens) == 6


def test_a_prompt_that_a_lowered_page_cap_shuts_out_fails_when_its_turn_comes() -> None:
    engine = ToyEngine(20, 4, max_running=1)
    decoding(engine, 1, max_tokens=10)
    shut_out = engine.add(30, 1)
    behind = engine.add(3, 1)
    engine.configure(page_cap=5)
    engine.run()
    assert shut_out.finish is not None
    assert shut_out.finish.detail == "30 tokens need 8 pages of 4 and cache.page_cap allows 5 of 20"
    assert len(behind.tokens) == 4


def test_a_lowered_page_cap_lets_running_work_finish_and_binds_the_new() -> None:
    engine = ToyEngine(40, 4, max_running=8)
    rows = decoding(engine, 2, prompt=30, max_tokens=40)
    engine.configure(page_cap=4)
    new = [engine.add(3, 5) for _ in range(3)]
    step = engine.step()
    assert step is not None and not step.admitted
    assert all(seq.wait_reason is WaitReason.NO_PAGES for seq in engine.scheduler.waiting())
    while engine.live:
        step = engine.step()
        assert step is not None
        if step.admitted:
            assert engine.pages.used <= 4
    assert all(len(seq.tokens) == 70 for seq in rows)
    assert all(len(seq.tokens) == 8 for seq in new)
    assert engine.preemptions == 0


def test_a_preempted_sequence_keeps_the_page_cap_that_it_ran_under() -> None:
    engine = ToyEngine(60, 4, max_running=3)
    rows = [engine.add(20, 150) for _ in range(3)]
    engine.run_until_preempted()
    engine.configure(page_cap=2)
    engine.run()
    assert all(len(seq.tokens) == 170 for seq in rows)


# -- pages: admission and preemption ---------------------------------------------------------------------


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pages=st.integers(50, 100),
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(50, 180)), min_size=4, max_size=12),
)
def test_no_admission_is_followed_by_a_preemption_within_the_horizon(pages: int, lengths: list) -> None:
    engine = ToyEngine(pages, 4, max_step_tokens=256)
    for prompt, output in lengths:
        engine.add(prompt, output)
    last_admission = -pressure.HORIZON
    while (step := engine.step()) is not None:
        if step.admitted:
            last_admission = engine.steps
        if step.preempted:
            assert engine.steps - last_admission >= pressure.HORIZON


def test_the_victim_is_the_row_that_is_cheapest_to_redo() -> None:
    engine = ToyEngine(30, 4, max_running=4, max_step_tokens=256)
    rows = [engine.add(prompt, 200) for prompt in (30, 9, 50)]
    engine.run_until_preempted()
    assert [seq.preemptions for seq in rows] == [0, 1, 0]


def test_shared_pages_make_a_row_cheap_to_redo() -> None:
    engine = ToyEngine(80, 4, max_running=4, max_step_tokens=256)
    stem = list(range(40))
    first = engine.add([*stem, 1], 250)
    engine.step()
    alone = engine.add(20, 250)
    sharer = engine.add([*stem, 2, 3, 4], 250)
    engine.run_until_preempted()
    assert (first.preemptions, alone.preemptions, sharer.preemptions) in ((0, 0, 1), (1, 0, 0))


@pytest.mark.parametrize(("output", "spared"), [(55, True), (180, False)])
def test_a_nearly_finished_row_is_spared(output: int, spared: bool) -> None:
    engine = ToyEngine(60, 4, max_running=3, max_step_tokens=256)
    rows = [engine.add(40, 180), engine.add(20, output), engine.add(24, 180)]
    engine.run_until_preempted()
    assert 50 <= rows[1].output_len < 55
    assert [seq.preemptions for seq in rows] == ([0, 0, 1] if spared else [0, 1, 0])


def test_under_priority_the_least_urgent_gives_way_whatever_it_costs() -> None:
    engine = ToyEngine(60, 4, max_running=3, max_step_tokens=256, order="priority")
    dear = engine.add(50, 150, priority=9)
    engine.step()
    cheap = engine.add(4, 200, priority=0)
    engine.run_until_preempted()
    assert (dear.preemptions, cheap.preemptions) == (1, 0)


def test_preemption_only_when_pages_run_out_and_no_admission_in_that_step() -> None:
    engine = ToyEngine(60, 4, max_running=5, max_step_tokens=64)
    for _ in range(12):
        engine.add(5, 100)
    while (step := engine.step()) is not None:
        if step.preempted:
            assert not step.admitted
            assert WaitReason.PREEMPTED in engine.scheduler.waiting_by_reason()
    assert engine.preemptions > 0
    roomy = ToyEngine(135, 4, max_running=5, max_step_tokens=64)
    for _ in range(12):
        roomy.add(5, 100)
    roomy.run()
    assert roomy.preemptions == roomy.recomputed == 0


# -- why one waits ---------------------------------------------------------------------------------------


def test_every_reason_to_wait() -> None:
    engine = ToyEngine(40, 4, max_running=3, max_step_tokens=8, prefill_chunk=8)
    reasons = engine.scheduler.waiting_by_reason
    seqs = [engine.add(20, 5) for _ in range(5)]
    assert reasons() == {WaitReason.QUEUED: 5}
    engine.step()
    assert reasons() == {WaitReason.TOKEN_BUDGET: 2, WaitReason.RUNNING_CAP: 2}
    assert [seq.wait_reason for seq in engine.scheduler.waiting()] == [WaitReason.TOKEN_BUDGET] * 2 + [
        WaitReason.RUNNING_CAP
    ] * 2
    newcomer = engine.add(1, 1)
    assert reasons()[WaitReason.QUEUED] == 1
    engine.cancel(newcomer)
    assert WaitReason.QUEUED not in reasons()
    engine.configure(paused=True)
    engine.step()
    assert reasons() == {WaitReason.PAUSED: 4}
    engine.configure(paused=False, page_cap=7)
    for _ in range(4):
        engine.step()
    assert reasons() == {WaitReason.NO_PAGES: 2, WaitReason.RUNNING_CAP: 2}
    engine.run()
    assert all(len(seq.tokens) == 25 for seq in seqs) and reasons() == {}


def test_a_running_row_without_a_place_in_the_step_says_why() -> None:
    engine = ToyEngine(200, 4, max_running=9, max_step_tokens=4)
    decoding(engine, 9)
    step = engine.step()
    left_out = [seq.wait_reason for seq in engine.scheduler.running if seq.number not in numbers(step)]
    assert left_out == [WaitReason.TOKEN_BUDGET] * 5


# -- commit, abort, counting -----------------------------------------------------------------------------


def test_a_row_with_drafts_may_bring_several_tokens() -> None:
    """Two of three drafts accepted, and the token after them: computed up to the new last one."""
    engine = ToyEngine(20, 2)
    seq = engine.add([1, 2, 3], 50)
    step = engine.form()
    assert step is not None
    engine.scheduler.commit(step, [(4,)])
    step = engine.form()
    assert step is not None
    with_drafts = replace(step, rows=(msgspec.structs.replace(step.rows[0], count=4),))
    engine.scheduler._open = with_drafts
    assert engine.pages.grow(seq, 3 + 4)
    engine.scheduler.commit(with_drafts, [(5, 6, 7)])
    assert seq.tokens == [1, 2, 3, 4, 5, 6, 7] and seq.computed == 6
    engine.check()
    assert len(engine.pages.match([1, 2, 3, 4, 5, 6, 7])) == 3


def test_commit_refuses_what_does_not_belong_to_the_step() -> None:
    engine = ToyEngine()
    engine.add(3, 5)
    step = engine.form()
    assert step is not None
    for wrong in ([], [(1,), (2,)], [()], [(1, 2, 3, 4)]):
        with pytest.raises(ValueError, match="results"):
            engine.scheduler.commit(step, wrong)
    with pytest.raises(RuntimeError, match="neither committed nor aborted"):
        engine.scheduler.schedule(0.0)
    engine.scheduler.commit(step, [(1,)])
    with pytest.raises(RuntimeError, match="not the step under way"):
        engine.scheduler.commit(step, [(1,)])
    with pytest.raises(RuntimeError, match="not the step under way"):
        engine.scheduler.abort(step)


def test_a_sequence_removed_during_the_step_is_passed_over() -> None:
    engine = ToyEngine()
    gone, stays = engine.add(3, 5), engine.add(3, 5)
    step = engine.form()
    assert step is not None
    engine.cancel(gone)
    engine.scheduler.commit(step, [(1,), (2,)])
    assert gone.tokens == list(gone.request.prompt)
    assert stays.tokens[-1] == 2
    engine.scheduler.remove(gone)
    with pytest.raises(ValueError, match="cannot be added"):
        engine.scheduler.add(gone)
    with pytest.raises(ValueError, match="cannot be added"):
        engine.scheduler.add(stays)


def test_an_aborted_step_shares_nothing_it_was_to_compute() -> None:
    engine = ToyEngine(20, 2)
    engine.add([1, 2, 3, 4, 5], 3)
    step = engine.form()
    assert step is not None
    engine.fault(step)
    assert engine.pages.free == 20
    again = engine.add([1, 2, 3, 4, 5], 3)
    engine.run()
    assert again.cached_prefix == 0


@pytest.mark.parametrize(
    "flag", [{"max_step_tokens": 1}, {"max_running": 0}, {"prefill_chunk": 0}, {"page_cap": 0}]
)
def test_flags_that_would_stop_everything_are_refused(flag: dict) -> None:
    engine = ToyEngine()
    with pytest.raises(ValueError, match=next(iter(flag))):
        engine.configure(**flag)
    with pytest.raises(ValueError, match=next(iter(flag))):
        ToyEngine(**flag)


# -- cost ------------------------------------------------------------------------------------------------


def opcodes_of_a_step(waiting: int, flags: dict, blocked_by_pages: bool) -> int:
    """Python instructions of one schedule and commit."""
    pages = PageManager(100, 4)
    config = SchedulerConfig(max_running=8 if blocked_by_pages else 4, max_step_tokens=64, **flags)
    scheduler = Scheduler(pages, config)
    for i in range(waiting + 4):
        prompt = 40 if blocked_by_pages and i >= 4 else 60
        params = SamplingParams(max_tokens=1000)
        request = Request(id=str(i), prompt=tuple(range(i, i + prompt)), params=params, priority=i % 3)
        scheduler.add(sequence_of(i, request))
    for _ in range(6):
        step = scheduler.schedule(0.0)
        assert step is not None
        scheduler.commit(step, [(1,)] * sum(row.samples for row in step.rows))
    count = 0

    def tracer(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return tracer

    gc.collect()
    gc.disable()  # what it finalizes would be counted here, whoever left it
    sys.settrace(tracer)
    try:
        step = scheduler.schedule(0.0)
        assert step is not None
        scheduler.commit(step, [(1,)] * len(step.rows))
        scheduler.waiting_by_reason()
    finally:
        sys.settrace(None)
        gc.enable()
    assert scheduler.waiting_count == waiting and len(step.rows) == 4
    return count


@pytest.mark.parametrize("blocked_by_pages", [False, True])
@pytest.mark.parametrize("order", ["fcfs", "prefix", "priority"])
def test_a_step_costs_the_same_with_ten_thousand_waiting(order: str, blocked_by_pages: bool) -> None:
    few = opcodes_of_a_step(100, {"order": order}, blocked_by_pages)
    assert opcodes_of_a_step(10_000, {"order": order}, blocked_by_pages) == few


@pytest.mark.parametrize("running", [20, 40])
def test_many_admissions_in_one_step_do_not_each_ask_everybody_who_runs(
    running: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(PageManager(10_000, 4), SchedulerConfig(max_running=200, max_step_tokens=1000))

    def add(number: int) -> None:
        params = SamplingParams(max_tokens=100)
        scheduler.add(sequence_of(number, Request(id=str(number), prompt=(number,) * 5, params=params)))

    for number in range(running):
        add(number)
    step = scheduler.schedule(0.0)
    assert step is not None and len(step.rows) == running
    scheduler.commit(step, [(1,)] * running)
    for number in range(30):
        add(running + number)
    asked = 0
    real = pressure.claim

    def claim(*arguments) -> int:
        nonlocal asked
        asked += 1
        return real(*arguments)

    monkeypatch.setattr(pressure, "claim", claim)
    step = scheduler.schedule(1.0)
    assert step is not None and len(step.admitted) == 30
    # Everybody who runs once, and each that is admitted for itself and into the sum.
    assert asked == running + 2 * 30


def test_the_same_calls_make_the_same_steps() -> None:
    def trace() -> list:
        engine = ToyEngine(30, 4, max_running=5, max_step_tokens=12, prefill_chunk=5, order="prefix")
        for i in range(20):
            engine.add([*range(1 + i % 6), i % 3], 10 + i % 9)
        steps = []
        while (step := engine.step()) is not None:
            steps.append([(row.seq.number, row.start, row.count, tuple(row.seq.pages)) for row in step.rows])
        return steps

    assert trace() == trace()
