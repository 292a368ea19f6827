"""The control socket over a real engine: changes come while it works, and no request is the worse for it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from arc.engine.control import paths, recording
from arc.engine.control.listening import Listening
from arc.engine.control.protocol import NA
from arc.engine.control.server import ControlServer
from arc.engine.core.assembly import Assembly
from arc.engine.sequence import FinishReason

from ..core.living import assert_all_pages_free, complete, engine, read, request, submit, until
from .wire import Wire

MAX_RUNNING, CHUNK, TOKENS = "sched.max_running", "sched.prefill_chunk", "sched.max_step_tokens"


@asynccontextmanager
async def controlled(
    tiny: Path, folder: Path, **more: Any
) -> AsyncIterator[tuple[Assembly, Callable[..., Any]]]:
    """An engine, and a function that asks its control socket without blocking this event loop."""
    listening = Listening("real")
    async with engine(tiny, folder, control__name="real", **more) as assembly:
        recorder = assembly.recorder
        server = ControlServer(
            assembly.port, listening, recorder if isinstance(recorder, NA) else str(recorder.path)
        )
        server.start()
        wire = Wire(listening.path)

        async def ask(method: str, path: str, body: Any = None) -> Any:
            status, answer = await asyncio.to_thread(wire.ask, method, path, body)
            assert status == 200, (method, path, answer)
            return answer

        try:
            yield assembly, ask
        finally:
            await asyncio.to_thread(server.stop)


async def test_any_changes_while_it_works_change_no_token_and_lose_no_request(
    tiny: Path, tmp_path: Path, folders: Path
) -> None:
    """Greedy tokens in fp32 are a function of the prompt alone, whatever is turned meanwhile."""
    rng = random.Random(3)
    requests = [
        request(
            f"r{i}", [rng.randrange(2, 512) for _ in range(rng.randint(1, 90))], max_tokens=rng.randint(1, 60)
        )
        for i in range(24)
    ]
    async with engine(tiny, tmp_path) as alone:
        expected = [(await complete(alone, each))[0][0] for each in requests]
    async with controlled(tiny, tmp_path) as (assembly, ask):
        work = asyncio.create_task(complete(assembly, *requests))
        accepted: dict[str, Any] = {}
        while not work.done():
            changes = {
                MAX_RUNNING: rng.randint(1, 16),
                CHUNK: rng.randint(1, 32),
                TOKENS: rng.randint(300, 600),
                "sched.order": rng.choice(["fcfs", "prefix", "priority"]),
                "admission.policy": rng.choice(["ragged", "bucketed"]),
                "admission.bucket_losers": rng.choice(["wait", "preempt"]),
                "cache.prefix": rng.random() < 0.5,
                "profile.enabled": rng.random() < 0.5,
                "profile.detail": rng.choice(["step", "layer", "op"]),
            }
            chosen = dict(rng.sample(sorted(changes.items()), rng.randint(1, 4)))
            ttl = rng.choice([None, None, 0.05])
            await ask("PATCH", "/v1/flags", {"changes": chosen, "ttl": ttl})
            accepted |= chosen if ttl is None else {}
            if rng.random() < 0.2:
                await ask("POST", "/v1/actions/flush", {})
            shot = await ask("GET", "/v1/snapshot?sequences=true")
            pages = shot["pages"]
            assert pages["used"] + pages["cached"] + pages["free"] == pages["total"] == assembly.info.pages
            assert len(shot["sequences"]) == shot["running"] + shot["waiting"]
            assert sum(shot["waiting_by_reason"].values()) == shot["waiting"]
        results = await work
        assert [tokens for tokens, _ in results] == expected
        await until(lambda: not assembly.port.pending)
        settings = assembly.port.settings
        assert {name: settings[name] for name in accepted} == accepted
        await until(lambda: assembly.port.counters.running == 0)
        assert_all_pages_free(assembly)
        life = (await ask("GET", "/v1/snapshot"))["life"]
        assert life["generation_tokens"] == sum(map(len, expected))
        assert life["finished"]["length"] == len(requests)


async def test_a_change_takes_effect_at_the_step_that_its_answer_names(
    tiny: Path, tmp_path: Path, folders: Path
) -> None:
    async with controlled(tiny, tmp_path, sched__max_running=8) as (assembly, ask):
        streams = [submit(assembly, request(f"r{i}", [3, 4], max_tokens=300)) for i in range(8)]
        await until(lambda: assembly.port.counters.running == 8)
        applied = await ask("PATCH", "/v1/flags", {"changes": {CHUNK: 3}})
        late = submit(assembly, request("late", [5] * 100, max_tokens=1))
        first = await ask("POST", "/v1/actions/cancel", {"ids": ["r0"]})
        assert first["ended"] == ["r0"] and first["left"] in (7, 8), (
            "`late` may come in at the same border, after it"
        )
        await read(late)
        chunks = {
            record.index: record.prompt_tokens
            for record in list(assembly.port.step_ring)
            if record.prompt_tokens and record.index >= applied["step"]
        }
        assert chunks and max(chunks.values()) <= 3
        assert sum(chunks.values()) == 99, (
            "the last of the hundred is a decode row: one token, and it samples"
        )
        assert (await ask("POST", "/v1/actions/cancel", {"all": True}))["left"] == 0
        ends = [(await read(stream))[1].reason for stream in streams]
        assert set(ends) == {FinishReason.CANCELLED}
        assert_all_pages_free(assembly)


async def test_lowering_the_running_cap_drains_down_and_says_what(
    tiny: Path, tmp_path: Path, folders: Path
) -> None:
    async with controlled(tiny, tmp_path, sched__max_running=8) as (assembly, ask):
        streams = [submit(assembly, request(f"r{i}", [3, 4], max_tokens=400)) for i in range(12)]
        await until(lambda: assembly.port.counters.running == 8)
        applied = await ask("PATCH", "/v1/flags", {"changes": {MAX_RUNNING: 2}})
        assert applied["drains"] and "6" in applied["drains"][0]
        shot = await ask("GET", "/v1/snapshot")
        assert shot["running"] == 8 and shot["waiting_by_reason"] == {"running cap": 4}
        ends = [(await read(stream)) for stream in streams]
        assert all(len(tokens) == 400 and end.reason is FinishReason.LENGTH for tokens, end in ends)
        records = list(assembly.port.step_ring)
        assert max(record.admitted for record in records[-100:]) <= 2


async def test_what_a_part_holds_on_the_host_is_not_in_the_rest_as_well(
    tiny: Path, tmp_path: Path, folders: Path
) -> None:
    """Weights on the CPU are the process's own memory; of the KV reserve only what was used ever is."""
    async with controlled(tiny, tmp_path) as (_, ask):
        memory = await ask("GET", "/v1/memory")
        parts = {part["component"]: part for part in memory["parts"]}
        assert {part["place"] for part in parts.values()} == {"host"}
        assert [name for name, part in parts.items() if part["reserved"]] == ["KV cache, reserved"]
        assert parts["rest"]["bytes"] == memory["resident"] - parts["weights"]["bytes"]


async def test_a_time_limit_ends_on_an_idle_engine(tiny: Path, tmp_path: Path, folders: Path) -> None:
    async with controlled(tiny, tmp_path) as (assembly, ask):
        before = assembly.port.settings[MAX_RUNNING]
        await ask("PATCH", "/v1/flags", {"changes": {MAX_RUNNING: 2}, "ttl": 0.1})
        await until(lambda: assembly.port.settings[MAX_RUNNING] == before)


async def test_a_time_limit_ends_while_draining_and_the_drain_ends_too(
    tiny: Path, tmp_path: Path, folders: Path
) -> None:
    async with controlled(tiny, tmp_path) as (assembly, ask):
        streams = [submit(assembly, request(f"r{i}", [3, 4], max_tokens=400)) for i in range(4)]
        await until(lambda: assembly.port.counters.running == 4)
        before = assembly.port.settings[MAX_RUNNING]
        await ask("PATCH", "/v1/flags", {"changes": {MAX_RUNNING: 3}, "ttl": 0.05})
        started = await ask("POST", "/v1/actions/drain", {})
        assert started["running"] == 4
        assert (await ask("GET", "/v1/snapshot"))["state"] == "draining"
        await until(lambda: assembly.port.settings[MAX_RUNNING] == before)
        ends = [await read(stream) for stream in streams]
        assert all(len(tokens) == 400 for tokens, _ in ends)


async def test_a_long_prefill_delays_no_read_and_the_change_waits_for_its_border(
    tiny: Path, tmp_path: Path, folders: Path
) -> None:
    async with controlled(tiny, tmp_path) as (assembly, ask):
        release = asyncio.Event()
        loop = asyncio.get_running_loop()
        run = assembly.engine.runner.run

        def long_step(step: Any) -> Any:
            """The forward pass of a very long prompt."""
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(30)
            return run(step)

        assembly.engine.runner.run = long_step
        stream = submit(assembly, request("long", [7] * 50, max_tokens=2))
        await until(lambda: assembly.port.counters.step_open_since is not None)
        change = asyncio.create_task(ask("PATCH", "/v1/flags", {"changes": {MAX_RUNNING: 2}}))
        other = Wire(real_socket())
        for path in ("/v1/snapshot", "/v1/sequences", "/v1/flags", "/v1/memory", "/v1/history"):
            status, _ = await asyncio.to_thread(other.ask, "GET", path)
            assert status == 200
        shot = (await asyncio.to_thread(other.ask, "GET", "/v1/snapshot"))[1]
        assert shot["step_open"] > 0 and not change.done()
        release.set()
        applied = await change
        assert applied["step"] >= 1
        assert len((await read(stream))[0]) == 2


def real_socket() -> Path:
    return paths.socket_path(paths.runtime_folder(), "real")


async def test_page_caps_past_what_was_reserved_are_refused_with_the_bound(
    tiny: Path, tmp_path: Path, folders: Path
) -> None:
    async with controlled(tiny, tmp_path) as (assembly, _):
        wire = Wire(real_socket())
        changes = {"cache.page_cap": assembly.info.pages + 1, MAX_RUNNING: 3}
        status, problem = await asyncio.to_thread(wire.ask, "PATCH", "/v1/flags", {"changes": changes})
        assert status == 422 and str(assembly.info.pages) in problem["refused"]["cache.page_cap"]["message"]
        assert set(problem["refused"]) == {"cache.page_cap"} and assembly.port.settings.version == 0


async def test_the_recorder_follows_the_real_engine(tiny: Path, tmp_path: Path, folders: Path) -> None:
    path = tmp_path / "x.rec"
    async with controlled(tiny, tmp_path, recording=path) as (assembly, ask):
        assert (await ask("GET", "/v1/hello"))["recorder"] == str(path)
        await ask("PATCH", "/v1/flags", {"changes": {MAX_RUNNING: 2}})
        await complete(assembly, *(request(f"r{i}", [3, i + 2]) for i in range(3)))
        await until(lambda: recording.read(path).open_step is None)  # results go out before the step closes
        expected = [record.index for record in list(assembly.port.step_ring)]
        found = recording.read(path)
    assert [int(each["index"]) for each in found.steps] == expected
    assert found.values[MAX_RUNNING] == 2 and [event.kind for event in found.events] == ["flags"]
    assert found.open_step is None and found.ended is None and found.torn == 0
