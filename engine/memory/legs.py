"""One leg of the allocator's bench: an engine of its own that does given work, and what its memory does meanwhile.

It runs as a process of its own (`python -m arc.engine.memory.legs SPEC`), so that no leg begins with what another left.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from .. import environment
from ..config import ConfigError, load
from ..control.span_messages import Build
from ..core.assembly import Assembly, assemble
from ..core.capacity import CapacityError
from ..core.handle import OutputStream
from ..folder import CheckpointError
from ..sequence import Request, SamplingParams

TENTHS = 10
_END_WAIT = 60.0  # seconds for the engine thread to end


class NotEmpty(Exception):
    """A leg was to start on an engine that has worked already: its figures would be another's."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The same in each leg: `rows` sequences at a time, random prompts of these lengths, until `tokens` are out."""

    model: str
    rows: int
    tokens: int
    shortest: int  # prompt, tokens
    longest: int
    output: int  # tokens a sequence
    threads: int
    seed: int = 0

    def requests(self, vocabulary: int) -> list[Request]:
        rng = random.Random(self.seed)
        return [
            Request(
                id=str(number),
                prompt=tuple(
                    rng.randrange(vocabulary) for _ in range(rng.randint(self.shortest, self.longest))
                ),
                params=SamplingParams(temperature=1.0, seed=number, max_tokens=self.output, ignore_eos=True),
            )
            for number in range(max(self.rows, -(-self.tokens // self.output)))
        ]


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # off, unbounded, capped
    enabled: bool
    cap_mib: int | None  # None: auto; 0: unbounded
    work: Work


class Leg(msgspec.Struct, frozen=True, kw_only=True):
    """What one leg did. Memory in bytes; None where the leg has no pool."""

    name: str
    build: Build  # with the leg's own flags
    tokens: int  # generated
    prompt_tokens: int
    seconds: float
    cpu_seconds: float  # of the whole process
    steps: int
    resident: tuple[int, ...]  # at the beginning and after each tenth of the tokens
    slope: float  # of the resident memory over the second half, bytes a token
    cap: int | None
    held: int | None
    bound: int | None
    hits: int | None
    misses: int | None
    allocated: int | None
    freed: int | None
    bypassed: int | None
    overdue: int | None


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def slope(points: list[tuple[int, int]]) -> float:
    """Least squares of (tokens, bytes): bytes a token."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def build(spec: Spec, folder: Path) -> Assembly:
    cap = "auto" if spec.cap_mib is None else spec.cap_mib
    flags = [
        f"model.path={spec.work.model}",
        f"sched.max_running={spec.work.rows}",
        "sched.max_waiting=1048576",  # the whole work comes at once
        "kernels.backend=torch",  # the backend whose operations write into buffers
        "cache.prefix=off",
        f"cpu.threads={spec.work.threads}",
        f"alloc.enabled={'on' if spec.enabled else 'off'}",
        f"alloc.cap_mib={cap}",
    ]
    return assemble(load(folder=folder, environ={}, overrides=flags))


async def run(spec: Spec, assembly: Assembly) -> Leg:
    """The leg's work through `assembly`, whose engine thread runs. Raises NotEmpty unless nothing has run in it."""
    counters = assembly.engine.counters
    pool = counters.allocator
    # Prompts are counted before their step is, so one that has only just answered is seen too.
    if counters.prompt_tokens or counters.steps or pool.taken or pool.held:
        raise NotEmpty(
            f"leg {spec.name} would start on {counters.prompt_tokens} prompt tokens, {pool.taken} buffers taken and "
            f"{pool.held:,} bytes held: each leg needs an engine of its own"
        )
    requests = spec.work.requests(assembly.info.vocab_size)
    total = spec.work.output * len(requests)
    points: list[tuple[int, int]] = [(0, resident_bytes())]
    done = 0

    async def read(request: Request) -> None:
        nonlocal done
        stream = OutputStream()
        assembly.handle.submit(request, stream.push)
        async for output in stream:
            done += len(output.token_ids)
            if output.finish is not None and output.finish.reason != "length":
                raise RuntimeError(f"request {request.id} ended by {output.finish}")
            if done >= points[-1][0] + total // 200:
                points.append((done, resident_bytes()))

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(read, requests))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    # The last tokens leave before their step is counted, and the engine thread has no event to tell of that.
    while counters.step_open_since is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    tenths = [next(size for at, size in points if at >= total * n // TENTHS) for n in range(TENTHS)]
    is_on = spec.enabled
    return Leg(
        name=spec.name,
        build=assembly.port.build(),
        tokens=done,
        prompt_tokens=sum(len(request.prompt) for request in requests),
        seconds=seconds,
        cpu_seconds=cpu,
        steps=counters.steps,
        resident=(*tenths, resident_bytes()),
        slope=slope([point for point in points if point[0] >= total // 2]),
        cap=pool.cap,
        held=pool.held if is_on else None,
        bound=pool.bound if is_on else None,
        hits=pool.hits if is_on else None,
        misses=pool.misses if is_on else None,
        allocated=pool.allocated if is_on else None,
        freed=pool.freed if is_on else None,
        bypassed=pool.bypassed if is_on else None,
        overdue=pool.overdue if is_on else None,
    )


async def _whole(spec: Spec) -> Leg:
    with tempfile.TemporaryDirectory() as folder:
        try:
            assembly = build(spec, Path(folder))
        except (ConfigError, CheckpointError, CapacityError) as error:
            sys.exit(f"the engine of leg {spec.name} cannot start: {error}")
        assembly.handle.attach(asyncio.get_running_loop())
        thread = assembly.start()
        try:
            return await run(spec, assembly)
        finally:
            assembly.engine.stop()
            await asyncio.to_thread(thread.join, _END_WAIT)


def main() -> None:
    environment.prepare()
    spec = msgspec.json.decode(sys.argv[1], type=Spec)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(_whole(spec))))


if __name__ == "__main__":
    main()
