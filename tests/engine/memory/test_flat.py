"""Resident memory stays flat over many requests of random lengths; `make soak` does the same for longer."""

from __future__ import annotations

import asyncio
import gc
import itertools
import mmap
import multiprocessing
import random
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from arc.engine import environment
from arc.engine.core.assembly import Assembly
from arc.engine.memory import pool as pool_module
from arc.engine.memory.legs import resident_bytes
from arc.engine.sequence import Request

from tests.engine.core.living import complete, engine, request

MIB = 1 << 20
ROUNDS, WARM = 10, 4
# MiB per 1,000 tokens. Measured here: 0.05, and 7.9 where each token leaves 8 KiB behind, which is about what its KV
# takes. `make soak` has tokens enough for the aim of 1.
BOUND = 2.0


def work(number: int) -> list[Request]:
    """The same lengths in each round, so that what is compiled or cached for a shape is there after the first ones."""
    rng = random.Random(7)
    return [
        request(
            f"{number}-{n}",
            [rng.randrange(20, 400) for _ in range(rng.randint(1, 150))],
            max_tokens=rng.randint(1, 40),
        )
        for n in range(16)
    ]


async def growth(assembly: Assembly) -> float:
    """MiB per 1,000 tokens over the rounds after the warm ones: the median of all pairs' slopes, so that one jump of
    the heap is none."""
    points: list[tuple[int, int]] = []
    tokens = 0
    for number in range(ROUNDS):
        done = await complete(assembly, *work(number))
        tokens += sum(len(each) for each, _ in done)
        gc.collect()
        points.append((tokens, resident_bytes()))
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(points[WARM:], 2)]
    return statistics.median(slopes) * 1000 / MIB


def leak(assembly: Assembly) -> None:
    """8 KiB a token, mapped, so that every byte is new to the process."""
    leaked: list[mmap.mmap] = []
    run = assembly.engine.runner.run

    def leaky(step):
        result = run(step)
        room = mmap.mmap(-1, 8192 * max(1, len(result.tokens)))
        room.write(b"\1" * len(room))
        leaked.append(room)
        return result

    assembly.engine.runner.run = leaky


async def serve(tiny: Path, folder: Path, leaking: bool) -> float:
    prepare = leak if leaking else lambda _: None
    async with engine(tiny, folder, kernels__backend="torch", alloc__cap_mib=4, prepare=prepare) as assembly:
        grown = await growth(assembly)
        counters = assembly.engine.counters.allocator
        assert counters.hits > 1000 and counters.held <= 4 * MIB and counters.overdue == 0
        return grown


def measure(tiny: Path, folder: Path, leaking: bool) -> float:
    environment.prepare()
    pool_module.LEAST = 1  # pooled whatever their size
    return asyncio.run(serve(tiny, folder, leaking))


def in_a_process_of_its_own(tiny: Path, folder: Path, leaking: bool) -> float:
    """What earlier tests left on this process's heap moves by some MiB whenever it is given back or taken again."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(measure, tiny, folder, leaking).result()


def test_memory_is_flat(tiny: Path, tmp_path: Path) -> None:
    assert in_a_process_of_its_own(tiny, tmp_path, leaking=False) < BOUND


def test_a_leak_of_a_few_kib_a_token_is_seen(tiny: Path, tmp_path: Path) -> None:
    assert in_a_process_of_its_own(tiny, tmp_path, leaking=True) > BOUND
