"""Measures one sweep of `arc bench growth` in an engine of its own: `python -m arc.engine.core.growth SWEEP`.

The loop's own turns are made here, without its thread. Getting a visit's sequences to their context runs no model: the
scheduler forms the prompts' steps and is told random tokens. The cache is full of noise, so a step reads as much memory
as ever, and random weights or noise in the cache take the time that a text takes. Rows sample at temperature 1: greedy
rows of a random model soon repeat a few tokens, whose experts then stay in the processor's cache.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from tqdm import tqdm

from .. import environment
from ..config import ConfigError, Settings, load
from ..folder import CheckpointError, model_folder
from ..model.cache import LatentCache, bytes_per_page
from ..model.checkpoint import serving_dtype
from ..model.hf_config import read_config
from ..sequence import FinishReason, Request, SamplingParams
from ..telemetry.records import StepRecord
from ..telemetry.sweeps import PARTS, SNAPSHOT, STEP, Sweep, Swept, Visit
from .assembly import Assembly, assemble
from .capacity import CapacityError

_WARM = 3  # steps of a visit before those that count
_WAITING_PROMPT = 16  # tokens
_MIB = 1 << 20


def settings_of(sweep: Sweep, folder: Path) -> Settings:
    """Room for the largest value, and one step takes all prompts in. Raises ConfigError and CheckpointError."""
    shapes = [sweep.at(value) for value in sweep.values]
    rows, longest = max(shape[0] for shape in shapes), max(shape[1] for shape in shapes) + _WARM + sweep.steps
    flags = [
        f"model.path={sweep.model}",
        f"model.max_len={longest}",
        f"sched.max_running={rows}",
        f"sched.max_step_tokens={1 << 20}",
        f"sched.prefill_chunk={1 << 20}",
        "cache.prefix=off",
        f"cpu.threads={'auto' if sweep.threads is None else sweep.threads}",
        "log.level=warning",
    ]
    bare = load(folder=folder, environ={}, overrides=flags)
    config = read_config(model_folder(bare.get_str("model.path")))
    size = bare.get_int("cache.page_size")
    page = bytes_per_page(config, size, serving_dtype(bare.get_str("model.dtype"), config), prediction=True)
    memory = rows * (-(-longest // size) + 1) * page
    return load(folder=folder, environ={}, overrides=[*flags, f"cache.memory_mib={memory // _MIB + 1}"])


class Measuring:
    """Visits in one engine, which has no thread: whoever calls this makes its turns."""

    def __init__(self, assembly: Assembly, sweep: Sweep) -> None:
        self._assembly = assembly
        self._sweep = sweep
        self._rng = random.Random(sweep.seed)
        self._vocabulary = assembly.info.vocab_size
        self._number = 0

    async def all(self) -> list[Visit]:
        """Rounds over all values, each in an order of its own: what drifts with time must not look like growth."""
        order: list[int] = []
        for _ in range(self._sweep.visits):
            order += self._rng.sample(self._sweep.values, len(self._sweep.values))
        bar = tqdm(order, desc=self._sweep.axis, unit="visit", disable=None)
        return [await self.visit(value) for value in bar]

    async def visit(self, value: int) -> Visit:
        rows, context, waiting = self._sweep.at(value)
        steps = self._sweep.steps
        # In the middle of the steps that count, the rows are at `context`.
        prompt = max(1, context - _WARM - steps // 2)
        self._bring(rows, prompt, waiting)
        for _ in range(_WARM):
            self._turn(rows, waiting)
            await asyncio.sleep(0)  # what the step delivered
        times: list[dict[str, float]] = []
        for _ in range(steps):
            times.append(self._turn(rows, waiting))
            await asyncio.sleep(0)
        engine = self._assembly.engine
        engine.end(list(engine.sequences.values()), FinishReason.CANCELLED, None)
        await asyncio.sleep(0)
        columns = {part: [each[part] for each in times] for part in (*PARTS, STEP, SNAPSHOT)}
        return Visit(
            value=value,
            best={part: min(found) for part, found in columns.items()},
            median={part: statistics.median(found) for part, found in columns.items()},
        )

    def _bring(self, rows: int, prompt: int, waiting: int) -> None:
        """`rows` sequences about to decode their first token after `prompt` ones, and so many that wait."""
        engine, scheduler = self._assembly.engine, self._assembly.engine.scheduler
        # Only what was asked for may wait, and all of it must.
        scheduler.configure(replace(scheduler.config, max_running=rows))
        for number in range(rows + waiting):
            engine.inbox.submit(self._request(prompt if number < rows else _WAITING_PROMPT))
        engine.border()
        while scheduler.running_count < rows or any(seq.remaining > 1 for seq in scheduler.running):
            step = scheduler.schedule(time.monotonic())
            assert step is not None
            scheduler.commit(step, [(self._token(),) for row in step.rows if row.samples])

    def _request(self, length: int) -> Request:
        self._number += 1
        return Request(
            id=str(self._number),
            prompt=tuple(self._token() for _ in range(length)),
            params=SamplingParams(
                temperature=1.0, seed=self._number, max_tokens=_WARM + self._sweep.steps + 2, ignore_eos=True
            ),
            arrival=time.monotonic(),
        )

    def _token(self) -> int:
        return self._rng.randrange(self._vocabulary)

    def _turn(self, rows: int, waiting: int) -> dict[str, float]:
        """One turn as the engine's loop makes it, in seconds by part, and after it a snapshot."""
        engine, port = self._assembly.engine, self._assembly.port
        began = time.monotonic()
        engine.border()
        ran = engine.step()
        whole = time.monotonic() - began
        record: StepRecord = port.step_ring[-1]
        assert ran and (record.decode_rows, record.prompt_rows, record.waiting) == (rows, 0, waiting)
        port.request_publish()
        asked = time.monotonic()
        engine.border()
        snapshot = time.monotonic() - asked
        return {
            "border": whole - record.wall,
            "schedule": record.schedule,
            "forward": record.forward,
            "sample": record.sample,
            "publish": record.publish,
            STEP: whole,
            SNAPSHOT: snapshot,
        }


def fill_with_noise(cache: LatentCache) -> None:
    """All but the null page, which is the last. Zeros that nobody has written yet share one page of memory."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(cache.page_size, cache.width, generator=generator)
    for layer in cache.layers:
        pages = layer.view(cache.pages, cache.page_size, cache.width)
        pages[:-1] = noise.to(layer.dtype)


async def measure(sweep: Sweep, assembly: Assembly) -> Swept:
    assembly.handle.attach(asyncio.get_running_loop())
    cache = assembly.engine.runner.cache
    assert isinstance(cache, LatentCache)
    fill_with_noise(cache)
    gc.collect()
    gc.freeze()  # as the service does
    info = assembly.info
    return Swept(
        sweep=sweep,
        model=info.model,
        parameters=info.parameters,
        dtype=info.dtype,
        device=info.device,
        version=info.version,
        revision=info.revision,
        profile=info.profile,
        page_size=info.page_size,
        threads=torch.get_num_threads(),
        kernels={each.operation: each.backend for each in info.kernels},
        visits=tuple(await Measuring(assembly, sweep).all()),
    )


def main() -> None:
    environment.prepare()
    sweep = msgspec.json.decode(sys.argv[1], type=Sweep)
    with tempfile.TemporaryDirectory() as folder:
        try:
            assembly = assemble(settings_of(sweep, Path(folder)))
        except (ConfigError, CheckpointError, CapacityError) as error:
            sys.exit(f"the engine that measures {sweep.axis} cannot start: {error}")
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(measure(sweep, assembly))))


if __name__ == "__main__":
    main()
