"""A real engine in this process: real checkpoint, real thread, an event loop to receive on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from arc.engine.config import Settings, load
from arc.engine.core.assembly import Assembly, assemble
from arc.engine.core.handle import OutputStream
from arc.engine.sequence import Finish, Output, Request, SamplingParams


def settings_for(model: Path, folder: Path, **flags: object) -> Settings:
    """fp32 unless told otherwise, so that greedy tokens do not depend on what shares the batch.

    And the torch kernels: with the native ones the tiny model ends a request before a test can act while it runs.
    """
    chosen = {
        "model.dtype": "float32",
        "cpu.threads": "1",
        "cache.page_size": "8",
        "kernels.backend": "torch",
    }
    chosen |= {name.replace("__", "."): str(value) for name, value in flags.items()}
    overrides = [f"model.path={model}", *(f"{name}={value}" for name, value in chosen.items())]
    return load(folder=folder, environ={}, overrides=overrides)


@asynccontextmanager
async def engine(
    model: Path,
    folder: Path,
    *,
    prepare: Callable[[Assembly], None] = lambda _assembly: None,
    recording: Path | None = None,
    **flags: object,
) -> AsyncIterator[Assembly]:
    """`prepare` may break something before the thread starts."""
    assembly = assemble(settings_for(model, folder, **flags), recording=recording)
    assembly.handle.attach(asyncio.get_running_loop())
    prepare(assembly)
    thread = assembly.start()
    try:
        yield assembly
    finally:
        assembly.engine.stop()
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()


def request(name: str, prompt: list[int], **params: object) -> Request:
    chosen = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | params
    priority = chosen.pop("priority", 0)
    return Request(
        id=name,
        prompt=tuple(prompt),
        params=SamplingParams(**chosen),  # type: ignore[arg-type]
        priority=priority,  # type: ignore[arg-type]
        arrival=time.monotonic(),
    )


def submit(assembly: Assembly, each: Request) -> OutputStream:
    stream = OutputStream()
    assembly.handle.submit(each, stream.push)
    return stream


async def read(stream: AsyncIterator[Output]) -> tuple[list[int], Finish]:
    """All tokens of a stream and its end."""
    tokens: list[int] = []
    finish = None
    async for output in stream:
        tokens += output.token_ids
        finish = output.finish
    assert finish is not None
    return tokens, finish


async def complete(assembly: Assembly, *requests: Request) -> list[tuple[list[int], Finish]]:
    return await asyncio.gather(*(read(submit(assembly, each)) for each in requests))


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something that another thread brings about; fails when it does not come."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def assert_nothing_is_kept(assembly: Assembly) -> None:
    """No part remembers a request that has ended: a leak a request ends every long-running engine."""
    runner = assembly.engine.runner
    assert assembly.engine.sequences == {}
    assert assembly.handle.open_streams == 0
    assert len(runner._layout) == 0
    assert runner.sampler._states == {}
    assert assembly.engine.scheduler._entries == {}


def assert_all_pages_free(assembly: Assembly) -> None:
    """Nothing runs, and every page is free or in the prefix cache."""
    pages = assembly.engine.scheduler.pages
    pages.check()
    assert pages.used == 0
    assert pages.cached + pages.free == assembly.info.pages
