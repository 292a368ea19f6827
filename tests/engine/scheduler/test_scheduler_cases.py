"""Cases that broke other engines, on the level of the scheduler. Each names where it was seen."""

from __future__ import annotations

import random

import pytest
from arc.engine.sequence import Request, SamplingParams, Status, WaitReason, sequence_of

from .toy_engine import ToyEngine


def test_short_prompts_do_not_preempt_a_long_decode_again_and_again() -> None:
    """mistral.rs#2024: endless re-prefill."""
    engine = ToyEngine(64, 4, max_running=8, max_step_tokens=64, prefill_chunk=32, prefix_cache=False)
    long = engine.add(60, 150)
    steps = 0
    while long.status is not Status.FINISHED:
        if steps % 3 == 0:
            engine.add(8, 20)
        assert engine.step() is not None
        steps += 1
        assert steps < 400
    assert long.preemptions == 0
    assert engine.recomputed <= 0.1 * engine.computed
    engine.run()
    assert not engine.live


@pytest.mark.parametrize(
    ("shape", "pages", "prefix"), [("even", 60, False), ("mixed", 60, True), ("mixed", 90, False)]
)
def test_recompute_stays_a_small_share_under_lasting_pressure(shape: str, pages: int, prefix: bool) -> None:
    """vllm#54644: recompute after preemption ate 10 to 79 %."""
    engine = ToyEngine(pages, 16, max_running=64, max_step_tokens=256, prefill_chunk=64, prefix_cache=prefix)
    draw = random.Random(5)
    for _ in range(60):
        if shape == "even":
            engine.add(40, 200)
        else:
            engine.add(draw.randrange(5, 200), draw.randrange(20, 400))
    engine.run()
    assert len(engine.finished) == 60
    assert not [seq for seq in engine.finished if seq.finish and seq.finish.detail]
    assert engine.recomputed <= 0.1 * engine.computed
    assert max(seq.preemptions for seq in engine.finished) <= 5


@pytest.mark.usefixtures("short_horizon")
def test_decode_does_not_collapse_after_a_preemption() -> None:
    """sglang#26248: decode fell 14x after a retraction."""
    engine = ToyEngine(100, 16, max_running=64, max_step_tokens=1024, prefix_cache=False)
    for i in range(80):
        engine.add(30, 100 + i * 37 % 130)
    rows: list[int] = []
    used: list[int] = []
    while (step := engine.step()) is not None and engine.scheduler.waiting_count:
        if engine.preemptions:
            rows.append(len(step.rows))
            used.append(engine.pages.used)
    assert min(rows) >= 100 // 17  # as many as fit with all their pages to the end reserved
    assert sum(used) / len(used) >= 75


def test_a_64k_prefill_leaves_a_running_decoder_its_token_in_every_step() -> None:
    """local-inference-lab/vllm#541: 272 fell to 6.6 tok/s."""
    engine = ToyEngine(1200, 64, max_step_tokens=2048, prefill_chunk=256)
    decoder = engine.add(4, 10_000)
    engine.step()
    # longer than the toy model has the patience to read back: straight to the scheduler
    params = SamplingParams(max_tokens=1)
    seq = sequence_of(1000, Request(id="long", prompt=tuple(range(65_536)), params=params))
    engine.scheduler.add(seq)
    steps = 0
    while seq.computed < 65_536:
        step = engine.scheduler.schedule(0.0)
        assert step is not None
        assert step.rows[0].seq is decoder and step.rows[0].decode
        assert step.prompt_tokens <= 256
        engine.scheduler.commit(step, [(1,)] * sum(row.samples for row in step.rows))
        steps += 1
    assert steps == 65_536 // 256
    assert decoder.output_len == steps + 1


@pytest.mark.usefixtures("short_horizon")
def test_random_prompts_have_no_prefix_hits_however_often_they_are_preempted() -> None:
    """vllm#25780: a hit rate of 32 % on random data, the preempted being hits of themselves."""
    engine = ToyEngine(100, 4, max_running=10, max_step_tokens=64)
    for _ in range(12):
        engine.add(9, 150)
    engine.run()
    assert engine.preemptions > 0
    assert engine.hits == 0
    assert engine.queries == 12 * 9
    assert all(seq.cached_prefix == 0 for seq in engine.finished)


def test_a_lookup_counts_once_however_often_it_is_tried() -> None:
    """vllm#43736: each retry of an allocation counted the lookup again."""
    engine = ToyEngine(40, 4, max_running=8)
    stem = list(range(20))
    engine.add([*stem, 1], 60)
    engine.step()
    blocked = engine.add([*stem, *range(100, 220)], 5)
    for _ in range(20):
        engine.step()
        assert engine.scheduler.waiting() == [blocked] and blocked.wait_reason is WaitReason.NO_PAGES
    assert (engine.queries, engine.hits) == (21, 0)
    engine.run()
    assert (engine.queries, engine.hits) == (21 + 140, 20)
    assert blocked.cached_prefix == 20


def test_gauges_are_zero_after_all_are_aborted() -> None:
    """vllm#22545: 106 running for ever."""
    engine = ToyEngine(40, 4, max_running=4, max_step_tokens=16)
    for _ in range(106):
        engine.add(7, 20)
    for _ in range(5):
        engine.step()
    for seq in list(engine.live.values()):
        engine.cancel(seq)
    scheduler = engine.scheduler
    assert (scheduler.running_count, scheduler.waiting_count) == (0, 0)
    assert scheduler.running == scheduler.waiting() == [] and scheduler.waiting_by_reason() == {}
    assert engine.pages.used == 0
    assert engine.step() is None


@pytest.mark.parametrize("order", ["fcfs", "prefix", "priority"])
def test_nobody_waits_for_pages_while_nothing_runs(order: str) -> None:
    """vllm-metal#479: 0 running, 0 % of the cache used, 6 waiting for "capacity"."""
    engine = ToyEngine(16, 4, max_running=8, order=order)
    for _ in range(3):
        engine.add(64, 1)  # the whole cache each
        engine.add(60, 4)
    for _ in range(2):
        engine.add(64, 2)  # cannot ever produce its second token
    while engine.live:
        step = engine.form()
        assert step is not None
        assert step.rows or step.failed
        engine.commit(step)
    assert [seq.output_len for seq in engine.sequences] == [1, 4, 1, 4, 1, 4, 1, 1]


@pytest.mark.usefixtures("short_horizon")
def test_a_step_in_which_the_only_row_gives_way_is_not_the_end() -> None:
    """The bucket's one row preempts itself for pages while the losers hold theirs: no rows, but not idle."""
    empty = 0
    for prompt in range(5, 13):
        engine = ToyEngine(60, 4, max_running=3, max_step_tokens=256, admission="bucketed")
        engine.add(100, 100)
        engine.add(prompt, 150)
        while (step := engine.step()) is not None:
            empty += not step.rows
        assert not engine.live
    assert empty


def test_cached_pages_never_keep_a_waiting_prompt_out() -> None:
    """The same livelock by another door: the cache is full of what nobody uses."""
    engine = ToyEngine(16, 4)
    for _ in range(6):
        engine.add(50, 1)
        engine.run()
        assert engine.pages.cached
    assert len(engine.finished) == 6


@pytest.mark.usefixtures("short_horizon")
@pytest.mark.parametrize("when", ["queued", "prefilling", "decoding", "preempted"])
def test_an_abort_in_any_state_gives_everything_back(when: str) -> None:
    """vllm#55634, llama.cpp: a client that left in mid-prefill or mid-draft held its slot."""
    engine = ToyEngine(60, 4, max_running=3, max_step_tokens=16, prefill_chunk=4)
    others = [engine.add(9, 200) for _ in range(3)]
    if when == "preempted":
        engine.run_until_preempted()
        seq = next(seq for seq in others if seq.preemptions)
    else:
        for other in others[1:]:
            engine.cancel(other)
        seq = engine.add(30, 50)
        for _ in range({"queued": 0, "prefilling": 3, "decoding": 12}[when]):
            engine.step()
        assert (seq.status, seq.computed > 0, seq.output_len > 0) == {
            "queued": (Status.WAITING, False, False),
            "prefilling": (Status.RUNNING, True, False),
            "decoding": (Status.RUNNING, True, True),
        }[when]
    used, held = engine.pages.used, len(seq.pages)
    engine.cancel(seq)
    assert engine.pages.used == used - held
    assert seq.number not in engine.scheduler._entries
    assert not seq.pages and seq.wait_reason is None
    for other in list(engine.live.values()):
        engine.cancel(other)
    assert engine.pages.used == 0


def test_nothing_stays_behind_after_many_sequences() -> None:
    """vllm#43639, sglang#5375: a little kept for every request."""
    engine = ToyEngine(30, 4, max_running=4, order="priority")
    for i in range(300):
        engine.add(5, 2, priority=i)
        engine.run()
    scheduler, pages = engine.scheduler, engine.pages
    assert not scheduler._entries and not scheduler._running and not scheduler._newcomers
    assert not scheduler._queue._classes and not scheduler._queue._order
    assert not pages._tables
    assert len(pages._index) == pages.cached <= 30
