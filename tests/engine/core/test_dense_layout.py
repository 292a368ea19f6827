"""The dense layout in the engine: the tokens of the paged one, whatever the batch, the design and the depth."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from arc.engine.config import ConfigError, Refused
from arc.engine.control.commands import Actor, SetFlags
from arc.engine.core.assembly import Assembly
from arc.engine.folder import CARRIED
from arc.engine.sequence import Finish, FinishReason, Request
from tokenizers import Tokenizer

from .living import assert_nothing_is_kept, complete, engine, read, request, submit, until

ACTOR = Actor(uid=0, gid=0, pid=1, reason="test")
SLOTS = 5  # four layers and the prediction layer


def ragged() -> list[Request]:
    """Prompts and outputs of many lengths, so that rows join, diverge and leave at different times."""
    tokenizer = Tokenizer.from_file(str(CARRIED / "tokenizer.json"))
    ids = tokenizer.encode("And it came to pass, that the young ladies were in the city, and ").ids
    shapes = [(1, 30), (70, 12), (9, 41), (33, 1), (18, 22), (52, 35)]
    return [
        request(f"r{i}", (ids * 5)[:prompt], max_tokens=output, temperature=0.5 * (i % 2), seed=i)
        for i, (prompt, output) in enumerate(shapes)
    ]


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[int], Finish]]:
    async def answers() -> list[tuple[list[int], Finish]]:
        async with engine(CARRIED, tmp_path_factory.mktemp("paged"), cache__prefix="off") as it:
            return await complete(it, *ragged())

    return asyncio.run(answers())


def dense(folder: Path, **flags: Any) -> AbstractAsyncContextManager[Assembly]:
    chosen: dict[str, Any] = {"cache__layout": "dense", "cache__prefix": "off"} | flags
    return engine(CARRIED, folder, **chosen)


def assert_nothing_is_held(it: Assembly) -> None:
    assert_nothing_is_kept(it)
    it.engine.scheduler.pages.check()
    assert it.engine.scheduler.pages.used == 0


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("design", ["mask", "strip"])
@pytest.mark.parametrize(
    "batch",
    [
        {},
        {"sched__prefill_chunk": 7, "sched__max_step_tokens": 20, "sched__max_running": 4},
        {"admission__policy": "bucketed", "sched__prefill_chunk": 16},
    ],
    ids=["ragged", "short of budget", "bucketed"],
)
async def test_tokens_are_those_of_the_paged_layout(
    paged: list[tuple[list[int], Finish]], tmp_path: Path, batch: dict[str, Any], design: str, depth: int
) -> None:
    async with dense(tmp_path, cache__dead_prefix=design, spec__depth=depth, **batch) as it:
        assert await complete(it, *ragged()) == paged
        assert (sum(it.port.counters.accepted) > 0) == (depth > 0)
        assert_nothing_is_held(it)


@pytest.mark.parametrize("design", ["mask", "strip"])
async def test_preempted_rows_and_clients_that_go_leave_nothing(tmp_path: Path, design: str) -> None:
    asked = [request(f"r{i}", [5 + i] * 10, max_tokens=160) for i in range(3)]
    async with engine(CARRIED, tmp_path, cache__prefix="off") as it:
        want = await complete(it, *asked)
    flags = {"spec__depth": 2, "cache__page_cap": 38, "cache__dead_prefix": design}
    async with dense(tmp_path, **flags) as it:
        streams = [submit(it, request(f"x{i}", [9] * 20, max_tokens=300)) for i in range(2)]
        for stream in streams:
            await anext(stream)
            it.handle.cancel(f"x{streams.index(stream)}", FinishReason.DISCONNECTED)
        assert [(await read(stream))[1].reason for stream in streams] == [FinishReason.DISCONNECTED] * 2
        assert await complete(it, *asked) == want
        assert it.port.counters.preemptions > 0
        assert_nothing_is_held(it)


async def test_the_design_changes_live_between_two_steps(
    paged: list[tuple[list[int], Finish]], tmp_path: Path
) -> None:
    async with dense(tmp_path, spec__depth=1) as it:
        tasks = [asyncio.create_task(read(submit(it, each))) for each in ragged()]
        copies, steps = it.port.counters.copies, it.port.counters
        for design in ("strip", "mask", "strip"):
            await asyncio.wrap_future(
                it.port.call(SetFlags(actor=ACTOR, changes={"cache.dead_prefix": design}))
            )
            seen = steps.steps
            await until(lambda seen=seen: steps.steps > seen + 3 or all(task.done() for task in tasks))
        assert [await task for task in tasks] == paged
        assert copies["clone_out"] > 0
        assert_nothing_is_held(it)


@pytest.mark.parametrize("design", ["mask", "strip"])
async def test_the_scheduler_reads_each_rows_own_length(tmp_path: Path, design: str) -> None:
    """In one tensor all rows look as long as the longest. Bucketed admission would then run all of them together."""
    flags = {"admission__policy": "bucketed", "cache__dead_prefix": design}
    async with dense(tmp_path, **flags) as it:
        rows = [request(f"r{i}", [20 + i] * (1 + 70 * i), max_tokens=16) for i in range(4)]
        await complete(it, *rows)
        decoding = [record for record in it.port.step_ring if record.decode_rows and record.admitted == 4]
        assert decoding
        assert {record.decode_rows for record in decoding} == {1}


async def test_copies_are_counted_and_strip_makes_them_every_step(tmp_path: Path) -> None:
    made: dict[str, dict[str, int]] = {}
    rows = [request(f"r{i}", [20 + i] * (4 + 9 * i), max_tokens=40) for i in range(4)]
    for design in ("mask", "strip"):
        async with dense(tmp_path, cache__dead_prefix=design) as it:
            await complete(it, *rows)
            await until(lambda it=it: it.port.counters.effective_batch == 0)  # the last step is closed
            made[design] = dict(it.port.counters.copies)
            steps = it.port.counters.steps
    # a step of strip allocates each layer once, and copies each row's layer in and out again
    assert made["strip"]["clone_in.alloc"] == SLOTS * steps
    generated = 4 * 40
    assert made["strip"]["clone_out"] == SLOTS * generated  # one prompt chunk each, then a row a token
    assert made["mask"].get("clone_out", 0) < made["strip"]["clone_out"] / 10


async def test_a_prefix_cache_over_dense_rows_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cache.prefix is on but cache.layout is dense"):
        async with dense(tmp_path, cache__prefix="on"):
            pass
    async with dense(tmp_path) as it:
        change = it.port.call(SetFlags(actor=ACTOR, changes={"cache.prefix": True}))
        with pytest.raises(Refused) as refused:
            await asyncio.wrap_future(change)
        assert "cache.layout is dense" in refused.value.errors[0].message
