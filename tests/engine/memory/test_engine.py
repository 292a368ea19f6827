"""The pool in a running engine: the tokens are those of torch's own memory, and every step gives back what it took."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from arc.engine.control.commands import Actor, SetFlags, TrimAllocator, Unsupported
from arc.engine.core import assembly as assembly_module
from arc.engine.core.assembly import Assembly
from arc.engine.flags import Value
from arc.engine.memory import pool as pool_module
from arc.engine.memory.cap import MIB
from arc.engine.memory.pool import HostPool
from arc.engine.sequence import FinishReason, Request

from tests.engine.core.living import complete, engine, read, request, submit, until

from .pools import check, poison

ACTOR = Actor(uid=0, gid=0, pid=0)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Engines with a pool that takes everything and poisons what comes back; their steps' live bytes."""
    live: list[int] = []

    class Checked(HostPool):
        def __init__(self, counters, free) -> None:
            super().__init__(counters, free, on_return=poison)

        def end_step(self) -> None:
            super().end_step()
            check(self)
            live.append(self.state().live)
            assert self.counters.overdue == 0

    monkeypatch.setattr(assembly_module, "HostPool", Checked)
    monkeypatch.setattr(pool_module, "LEAST", 1)
    return live


def pool_of(assembly: Assembly) -> HostPool:
    allocator = assembly.engine.runner.allocator
    assert isinstance(allocator, HostPool)
    return allocator


def work(tag: str) -> list[Request]:
    prompts = [[7 + n % 40 for n in range(length)] for length in (3, 40, 150, 9, 77)]
    params: list[dict[str, object]] = [
        {},
        {"temperature": 0.8, "seed": 3, "top_p": 0.9},
        {"logprobs": 3, "max_tokens": 20},
        {"repetition_penalty": 1.2, "temperature": 1.0, "seed": 5, "top_k": 9},
        {"max_tokens": 30},
    ]
    return [
        request(f"{tag}{n}", prompt, **each)
        for n, (prompt, each) in enumerate(zip(prompts, params, strict=True))
    ]


async def test_tokens_are_those_of_torchs_own_memory(tiny: Path, tmp_path: Path, steps: list[int]) -> None:
    flags = {"kernels__backend": "torch", "sched__prefill_chunk": 64}
    async with engine(tiny, tmp_path, alloc__enabled="off", **flags) as assembly:
        plain = await complete(assembly, *work("a"))
        assert pool_of(assembly).counters.taken == pool_of(assembly).counters.bypassed == 0
    async with engine(tiny, tmp_path, alloc__cap_mib=64, **flags) as assembly:
        pooled = await complete(assembly, *work("a"))
        assert pool_of(assembly).counters.hits > 1000
    assert pooled == plain
    assert set(steps) == {0}


async def test_it_is_turned_off_and_capped_while_it_runs(
    tiny: Path, tmp_path: Path, steps: list[int]
) -> None:
    async with engine(tiny, tmp_path, kernels__backend="torch", alloc__cap_mib=64) as assembly:
        port, pool = assembly.port, pool_of(assembly)
        long = request("long", [5] * 9, max_tokens=400)

        async def change(**changes: Value) -> None:
            named: dict[str, Value] = {f"alloc.{name}": value for name, value in changes.items()}
            await asyncio.wrap_future(port.call(SetFlags(actor=ACTOR, changes=named)))

        async def some_steps() -> None:
            since = assembly.engine.steps
            await until(lambda: assembly.engine.steps > since + 5 or not assembly.engine.sequences)

        plain = await complete(assembly, long)
        reading = asyncio.create_task(read(submit(assembly, long)))
        await some_steps()
        await change(cap_mib=1)
        assert pool.cap is not None and pool.cap.bytes == MIB and pool.counters.held <= MIB
        await some_steps()
        assert pool.counters.held <= MIB and pool.counters.peak > MIB
        await change(enabled=False)
        taken = pool.counters.taken
        await some_steps()
        assert pool.counters.held == 0 and pool.counters.taken == taken
        with pytest.raises(Unsupported, match="off"):
            await asyncio.wrap_future(port.call(TrimAllocator(actor=ACTOR)))
        await change(enabled=True, cap_mib=0)
        await some_steps()
        assert pool.counters.taken > taken
        unbounded = [event for event in port.events.since(0)[1] if event.kind == "allocator"]
        assert len(unbounded) == 1 and "unbounded" in unbounded[0].text
        trimmed = await asyncio.wrap_future(port.call(TrimAllocator(actor=ACTOR)))
        assert trimmed.freed > 0 and trimmed.cap is None
        assert [await reading] == plain


async def test_a_step_that_fails_gives_its_buffers_back(tiny: Path, tmp_path: Path, steps: list[int]) -> None:
    async with engine(tiny, tmp_path, kernels__backend="torch", alloc__cap_mib=64) as assembly:
        pool, model = pool_of(assembly), assembly.engine.runner.model
        sound = model.head

        def broken(x, sample_tokens):
            assert pool.state().live > 0  # in the middle of a step
            raise RuntimeError("broken on purpose")

        model.head = broken
        _, finish = await read(submit(assembly, request("a", [5] * 30)))
        assert finish.reason is FinishReason.FAULT
        model.head = sound
        await until(lambda: len(steps) >= 1)
        tokens, _ = await read(submit(assembly, request("b", [5] * 30)))
        assert len(tokens) == 8
        assert set(steps) == {0}


async def test_a_tensor_that_is_held_on_to_is_seen(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit that the other tests rely on: break the rule, and it shows."""
    monkeypatch.setattr(pool_module, "LEAST", 1)
    async with engine(tiny, tmp_path, kernels__backend="torch", alloc__cap_mib=64) as assembly:
        model, pool, kept = assembly.engine.runner.model, pool_of(assembly), []
        embed = model.embed

        def leaky(token_ids):
            kept.append(embed(token_ids))
            return kept[-1]

        model.embed = leaky
        await read(submit(assembly, request("a", [5] * 30)))
        assert pool.counters.overdue == len(kept) > 0


async def test_auto_is_measured_once_the_model_is_loaded(tiny: Path, tmp_path: Path) -> None:
    async with engine(tiny, tmp_path) as assembly:
        cap = pool_of(assembly).cap
        assert cap is not None and cap.bytes is not None
        assert 0 < cap.bytes <= 1024 * MIB and "measured free" in cap.why
        state = assembly.port.published().allocator
        assert state is not None and state.cap == cap.bytes and state.enabled
