"""The engine thread over a real model: what it promises to every request, whatever happens beside it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from arc.engine.control.commands import Actor, Cancel, Drain, FlushPrefix, SetFlags
from arc.engine.core.assembly import Assembly
from arc.engine.core.interface import Draining, TooManyWaiting
from arc.engine.model.deepseek import ForwardOutput
from arc.engine.sequence import FinishReason

from .living import (
    assert_all_pages_free,
    assert_nothing_is_kept,
    complete,
    engine,
    read,
    request,
    submit,
    until,
)

ACTOR = Actor(uid=0, gid=0, pid=1, reason="test")


def prompts(count: int, seed: int = 0, longest: int = 60) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(2, 512) for _ in range(rng.randint(1, longest))] for _ in range(count)]


async def test_greedy_tokens_do_not_depend_on_what_shares_the_batch(tiny: Path, tmp_path: Path) -> None:
    async with engine(tiny, tmp_path) as alone:
        single = [await complete(alone, request(f"s{i}", p)) for i, p in enumerate(prompts(8))]
    async with engine(
        tiny, tmp_path, sched__prefill_chunk=7, sched__max_step_tokens=24, sched__max_running=8
    ) as together:
        batch = await complete(together, *(request(f"b{i}", p) for i, p in enumerate(prompts(8))))
    assert [tokens for ((tokens, _),) in single] == [tokens for tokens, _ in batch]
    assert all(len(tokens) == 8 for tokens, _ in batch)


async def test_a_seed_gives_the_same_tokens_alone_in_a_crowd_and_after_preemption(
    tiny: Path, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 300}
    async with engine(tiny, tmp_path) as alone:
        ((expected, _),) = await complete(alone, request("a", [5, 6, 7], **asked))
    # 60 pages of 8 tokens do not hold three sequences of 303: some are preempted and computed again
    async with engine(tiny, tmp_path, cache__page_cap=60) as crowd:
        crowded = [request(f"x{i}", [9, i + 2], temperature=1.0, max_tokens=300) for i in range(2)]
        results = await complete(crowd, *crowded, request("a", [5, 6, 7], **asked))
        assert crowd.port.counters.preemptions > 0
        assert_all_pages_free(crowd)
    assert results[-1][0] == expected
    assert len(expected) == 300


async def test_a_cached_prefix_changes_no_token_and_is_counted_once(tiny: Path, tmp_path: Path) -> None:
    prompt = prompts(1, longest=60)[0] * 3
    async with engine(tiny, tmp_path) as it:
        ((first, _),) = await complete(it, request("a", prompt))
        ((second, _),) = await complete(it, request("b", prompt))
        counters = it.port.counters
        assert first == second
        assert counters.prefix_queries == 2 * len(prompt) == counters.prompt_tokens
        assert counters.prefix_hits == (len(prompt) - 1) // 8 * 8


async def test_cancel_gives_pages_back_in_every_state_and_is_counted(tiny: Path, tmp_path: Path) -> None:
    async with engine(tiny, tmp_path, sched__max_running=2, sched__prefill_chunk=4) as it:
        handle = it.handle
        streams = [submit(it, request(f"r{i}", [3] * 100, max_tokens=200)) for i in range(4)]
        handle.cancel("r3", FinishReason.DISCONNECTED)  # may come in at the same border as its request
        await until(lambda: it.port.counters.generation_tokens > 0 and it.port.counters.waiting > 0)
        for i in range(3):
            handle.cancel(f"r{i}", FinishReason.CANCELLED)
        ends = [(await read(stream))[1].reason for stream in streams]
        assert ends == [FinishReason.CANCELLED] * 3 + [FinishReason.DISCONNECTED]
        await until(lambda: it.port.counters.running == 0 and it.port.counters.waiting == 0)
        assert_all_pages_free(it)
        counters = it.port.counters
        assert counters.finished[FinishReason.CANCELLED] == 3
        assert counters.finished[FinishReason.DISCONNECTED] == 1
        assert sum(counters.end_to_end.counts) == 4  # every abort reaches the per-request metrics
        assert counters.effective_batch == 0
        handle.cancel("r0", FinishReason.CANCELLED)  # ended: ignored
        handle.cancel("nobody", FinishReason.CANCELLED)


async def test_a_step_that_fails_ends_its_sequences_and_nothing_else(tiny: Path, tmp_path: Path) -> None:
    def prepare(it: Assembly) -> None:
        model = it.engine.runner.model
        whole = model.forward

        def forward(batch: Any, cache: Any) -> ForwardOutput:
            if ((batch.token_ids == 511) & (batch.positions == 0)).any():
                raise RuntimeError("out of memory, say")
            return whole(batch, cache)

        model.forward = forward  # type: ignore[method-assign]

    async with engine(tiny, tmp_path, prepare=prepare) as it:
        healthy = submit(it, request("good", [4, 5], max_tokens=100))
        await anext(healthy)
        _, finish = await read(submit(it, request("bad", [511, 5])))
        assert finish.reason is FinishReason.FAULT
        assert finish.detail is not None and "out of memory, say" in finish.detail
        await read(healthy)  # shared the failing step: ended too, but its client hears of it
        ((tokens, after),) = await complete(it, request("next", [4, 5]))
        assert (len(tokens), after.reason) == (8, FinishReason.LENGTH)
        assert it.handle.health().ok
        assert it.port.counters.faults == 1
        assert [event.kind for event in it.port.events.since(0)[1]] == ["fault"]
        assert_all_pages_free(it)


async def test_a_row_that_is_not_finite_fails_alone_and_leaves_nothing_behind(
    tiny: Path, tmp_path: Path
) -> None:
    def prepare(it: Assembly) -> None:
        model, cache = it.engine.runner.model, it.engine.runner.cache
        whole = model.forward

        @torch.inference_mode()
        def forward(batch: Any, cache_: Any) -> ForwardOutput:
            output = whole(batch, cache_)
            for row in range(len(batch.lengths)):
                begin, end = batch.query_starts[row : row + 2]
                if ((batch.token_ids[begin:end] == 511) & (batch.positions[begin:end] == 20)).any():
                    cache.layers[0][batch.slots[begin:end]] = float("nan")
                    output.logits[(batch.sample_tokens >= begin) & (batch.sample_tokens < end)] = float("nan")
            return output

        model.forward = forward  # type: ignore[method-assign]

    async with engine(tiny, tmp_path, prepare=prepare) as it:
        expected = await complete(it, request("before", [4, 5], max_tokens=60))
        beside = asyncio.create_task(read(submit(it, request("beside", [4, 5], max_tokens=60))))
        ((_, finish),) = await complete(it, request("bad", [7] * 20 + [511]))
        assert finish.reason is FinishReason.FAULT
        assert [await beside] == expected
        assert await complete(it, request("same prefix", [7] * 20 + [8])) != []
        assert_all_pages_free(it)
        assert all(bool(torch.isfinite(layer).all()) for layer in it.engine.runner.cache.layers)


async def test_a_fault_at_the_border_is_survived_and_faults_without_end_are_not(
    tiny: Path, tmp_path: Path
) -> None:
    broken = asyncio.Event()

    def prepare(it: Assembly) -> None:
        schedule = it.engine.scheduler.schedule

        def failing(now: float) -> Any:
            if broken.is_set() and it.engine.sequences:
                raise ZeroDivisionError("a defect")
            return schedule(now)

        it.engine.scheduler.schedule = failing  # type: ignore[method-assign]

    async with engine(tiny, tmp_path, prepare=prepare) as it:
        broken.set()
        ((_, finish),) = await complete(it, request("a", [4, 5]))
        assert finish.reason is FinishReason.FAULT
        broken.clear()
        ((tokens, _),) = await complete(it, request("b", [4, 5]))
        assert len(tokens) == 8
        assert it.handle.health().ok
        broken.set()
        for i in range(8):
            ((_, finish),) = await complete(it, request(f"c{i}", [4, 5]))
            assert finish.reason is FinishReason.FAULT
        await until(lambda: not it.handle.health().ok)
        with pytest.raises(Draining, match="a defect"):
            submit(it, request("late", [4, 5]))
        with pytest.raises(Exception, match="ended"):
            it.port.call(FlushPrefix(actor=ACTOR)).result(5)


async def test_stopping_ends_every_stream(tiny: Path, tmp_path: Path) -> None:
    async with engine(tiny, tmp_path, sched__max_running=1) as it:
        streams = [submit(it, request(f"r{i}", [4, 5], max_tokens=400)) for i in range(3)]
        await anext(streams[0])
        it.engine.stop()
        for stream in streams:
            _, finish = await read(stream)
            assert finish.reason in (FinishReason.CANCELLED, FinishReason.FAULT)
        await until(lambda: not it.handle.health().ok)
        with pytest.raises(Draining):
            submit(it, request("late", [4, 5]))


async def test_the_door_refuses_past_max_waiting(tiny: Path, tmp_path: Path) -> None:
    async with engine(tiny, tmp_path, sched__max_waiting=3, sched__paused="on") as it:
        streams = [submit(it, request(f"r{i}", [4, 5])) for i in range(3)]
        with pytest.raises(TooManyWaiting) as refusal:
            submit(it, request("r3", [4, 5]))
        assert 1 <= refusal.value.retry_after <= 60
        await until(lambda: it.port.counters.waiting == 3)
        assert it.handle.health().ok  # paused is no stall
        await asyncio.wrap_future(it.port.call(SetFlags(actor=ACTOR, changes={"sched.paused": False})))
        assert [len((await read(stream))[0]) for stream in streams] == [8, 8, 8]


async def test_bucketed_admission_shows_in_the_effective_batch_and_toggles_live(
    tiny: Path, tmp_path: Path
) -> None:
    async with engine(tiny, tmp_path, cache__prefix="off") as it:
        rows = [request(f"r{i}", [2 + i] * (1 + 70 * i), max_tokens=300) for i in range(5)]
        streams = [asyncio.create_task(read(submit(it, each))) for each in rows]
        ring = it.port.step_ring
        await until(lambda: bool(ring) and ring[-1].rows == 5 and ring[-1].prompt_rows == 0)
        change = SetFlags(actor=ACTOR, changes={"admission.policy": "bucketed"})
        applied = await asyncio.wrap_future(it.port.call(change))
        await until(lambda: ring[-1].index > applied.step + 20)
        back = SetFlags(actor=ACTOR, unset=("admission.policy",))
        restored = await asyncio.wrap_future(it.port.call(back))
        await until(lambda: ring[-1].index > restored.step + 5)
        await asyncio.gather(*streams)
        steps = {record.index: record for record in ring}
        bucketed = [steps[i].rows for i in range(applied.step, restored.step)]
        assert set(bucketed) == {1}  # lengths 70 apart: every row is a bucket of its own
        assert steps[applied.step - 1].rows == 5 == steps[restored.step].rows
        assert_all_pages_free(it)


async def test_a_timed_change_goes_back_by_itself_on_an_idle_engine(tiny: Path, tmp_path: Path) -> None:
    async with engine(tiny, tmp_path) as it:
        change = SetFlags(actor=ACTOR, changes={"sched.max_running": 3}, ttl=0.2)
        await asyncio.wrap_future(it.port.call(change))
        assert it.port.settings["sched.max_running"] == 3
        await until(lambda: it.port.settings["sched.max_running"] == 64)
        assert it.engine.scheduler.config.max_running == 64


async def test_a_drain_lets_work_end_and_its_deadline_cancels_the_rest(tiny: Path, tmp_path: Path) -> None:
    drained = asyncio.Event()
    loop = asyncio.get_running_loop()

    def prepare(it: Assembly) -> None:
        def notify() -> None:
            loop.call_soon_threadsafe(drained.set)

        it.port._on_drained = notify

    async with engine(tiny, tmp_path, prepare=prepare) as it:
        short = submit(it, request("short", [4, 5], max_tokens=5))
        endless = submit(it, request("long", [4, 5], max_tokens=490))
        it.port.call(Cancel(actor=ACTOR, ids=("nobody",))).result(5)
        it.port.call(Drain(actor=ACTOR, deadline=0.05)).result(5)
        with pytest.raises(Draining):
            submit(it, request("late", [4, 5]))
        assert (await read(short))[1].reason in (FinishReason.LENGTH, FinishReason.CANCELLED)
        assert (await read(endless))[1].reason is FinishReason.CANCELLED
        async with asyncio.timeout(10):
            await drained.wait()
        assert_all_pages_free(it)


async def test_a_prompt_that_no_state_of_the_cache_can_hold_fails_by_name(tiny: Path, tmp_path: Path) -> None:
    async with engine(tiny, tmp_path, cache__page_cap=4) as it:
        ((_, finish),) = await complete(it, request("a", [4] * 100))
        assert finish.reason is FinishReason.CAPACITY
        assert finish.detail is not None and "cache.page_cap" in finish.detail
        ((tokens, finish),) = await complete(it, request("b", [4] * 20, max_tokens=400))
        assert finish.reason is FinishReason.CAPACITY  # alone, and it cannot grow
        assert finish.detail is not None and "pages" in finish.detail
        assert 0 < len(tokens) < 400
        assert len((await complete(it, request("c", [4] * 20)))[0][0]) == 8
        assert_all_pages_free(it)


async def test_published_state_is_one_consistent_picture(tiny: Path, tmp_path: Path) -> None:
    async with engine(tiny, tmp_path, sched__max_running=2) as it:
        streams = [submit(it, request(f"r{i}", [4 + i] * 10, max_tokens=100)) for i in range(5)]
        await anext(streams[0])
        seen = it.port.published().taken
        it.port.request_publish()
        await until(lambda: it.port.published().taken > seen)
        state = it.port.published()
        assert state.running == sum(view.status == "running" for view in state.table.rows)
        assert state.waiting == sum(view.status == "waiting" for view in state.table.rows)
        assert state.waiting_by_reason == {"running cap": state.waiting}
        assert state.pages.used + state.pages.cached + state.pages.free == state.pages.total
        done = it.port.call(Cancel(actor=ACTOR, ids=None)).result(10)
        assert done.left == 0
        assert [(await read(stream))[1].reason for stream in streams] == [FinishReason.CANCELLED] * 5


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_in_a_storm(tiny: Path, tmp_path: Path, seed: int) -> None:
    """Arrivals, cancels and flag changes at random over few pages: every stream ends, every page comes back."""
    rng = random.Random(seed)
    async with engine(tiny, tmp_path, cache__page_cap=40, sched__max_running=6) as it:
        tasks = []
        for i in range(60):
            prompt = [rng.randrange(2, 6)] * rng.randint(1, 120)
            stream = submit(it, request(f"r{i}", prompt, max_tokens=rng.randint(1, 60)))
            tasks.append(asyncio.create_task(read(stream)))
            if rng.random() < 0.4:
                it.handle.cancel(f"r{rng.randrange(i + 1)}", FinishReason.CANCELLED)
            if rng.random() < 0.3:
                name, value = rng.choice(
                    [
                        ("sched.max_running", rng.randint(1, 10)), ("cache.page_cap", rng.randint(20, 60)),
                        ("admission.policy", rng.choice(["ragged", "bucketed"])), ("cache.prefix", rng.random() < 0.5),
                        ("admission.bucket_losers", rng.choice(["wait", "preempt"])),
                        ("sched.prefill_chunk", rng.choice([5, 64])), ("sched.order", rng.choice(["fcfs", "prefix"])),
                    ]
                )  # fmt: skip
                it.port.call(SetFlags(actor=ACTOR, changes={name: value}))
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.02)
        async with asyncio.timeout(120):
            ends = [finish.reason for _, finish in await asyncio.gather(*tasks)]
        assert set(ends) <= {FinishReason.LENGTH, FinishReason.CANCELLED}
        await until(lambda: it.port.counters.running == 0)
        assert_all_pages_free(it)
        assert sum(it.port.counters.finished.values()) == 60
        assert_nothing_is_kept(it)
