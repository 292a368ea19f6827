"""One engine's run: started on given cores, sent every workload, stopped; times, tokens and memory."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import aiohttp
import psutil
from arc.console.bench.engines import free_port
from arc.console.bench.work import Job

from ..bench import workloads
from .engines import Dtype, Engine, decode, environment

START = 600  # seconds that an engine may take to come up: the slowest compiles first
ROWS = (1, 8, 32)


class EngineError(Exception):
    """An engine did not do what it was asked. The message has its own last words."""


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    jobs: tuple[Job, ...]
    mixed: bool


def workloads_of(vocab: int, seed: int) -> list[Workload]:
    """The same for every engine. `seed` changes from repetition to repetition."""
    every = [Workload(f"uniform {rows}", tuple(workloads.uniform(rows, vocab, seed)), False) for rows in ROWS]
    every += [Workload(f"mixed {rows}", tuple(workloads.mixed(rows, vocab, seed)), True) for rows in ROWS]
    return [*every, Workload("prefill 1024", tuple(workloads.prefill(vocab, seed)), False)]


@dataclass(frozen=True, slots=True)
class Sent:
    """One workload, sent at once. `rate`: output tokens a second over the whole time, of prompt tokens for prefill."""

    seconds: float
    rate: float
    tokens: tuple[tuple[int, ...], ...]  # of each job


@dataclass(frozen=True, slots=True)
class Visit:
    """All of one engine's run."""

    engine: str
    first_token: float  # seconds from the process's start to the first token of its first request
    peak_mib: float  # most resident memory, the sum over its processes: shared pages count once a process
    sent: dict[str, Sent]
    failed: dict[str, str]  # workload -> why


def visit(engine: Engine, model: Path, vocab: int, seed: int, cores: tuple[int, ...]) -> Visit:
    with running(engine, model, cores, "bfloat16") as (process, base, started):
        warm = workloads.uniform(1, vocab, seed + 1000, output=16)
        asyncio.run(send(engine, base, warm[:1]))
        first_token = time.perf_counter() - started
        asyncio.run(send(engine, base, workloads.uniform(8, vocab, seed + 1001, output=16)))
        sent: dict[str, Sent] = {}
        failed: dict[str, str] = {}
        for work in workloads_of(vocab, seed):
            if len(work.jobs) > engine.rows or (work.mixed and len(work.jobs) > 1 and not engine.batch_rows):
                failed[work.name] = "left out: static batches of mixed work take minutes"
                continue
            try:
                sent[work.name] = asyncio.run(_measure(engine, base, work))
            except (EngineError, aiohttp.ClientError, TimeoutError) as error:
                failed[work.name] = str(error) or type(error).__name__
        return Visit(engine.name, first_token, _peak_mib(process.pid), sent, failed)


def greedy(engine: Engine, base: str, jobs: list[Job]) -> list[tuple[int, ...]]:
    """What a running engine gives for these, sent at once."""
    return asyncio.run(send(engine, base, jobs))


async def _measure(engine: Engine, base: str, work: Workload) -> Sent:
    began = time.perf_counter()
    tokens = await send(engine, base, list(work.jobs))
    seconds = time.perf_counter() - began
    prefill = work.name.startswith("prefill")
    count = sum(len(job.prompt) if prefill else job.output for job in work.jobs)
    return Sent(seconds, count / seconds, tuple(tokens))


async def send(engine: Engine, base: str, jobs: list[Job]) -> list[tuple[int, ...]]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=900), connector=connector
    ) as session:
        return await asyncio.gather(*(_one(engine, session, base, job) for job in jobs))


async def _one(engine: Engine, session: aiohttp.ClientSession, base: str, job: Job) -> tuple[int, ...]:
    asked = engine.asked
    tokens: list[int] = []
    count: int | None = None
    async with session.post(base + asked.path, json=asked.body(job)) as response:
        if response.status != 200:
            raise EngineError(f"HTTP {response.status}: {(await response.text())[:300]}")
        if not asked.streams:
            tokens = asked.tokens(await response.json())
        else:
            async for line in response.content:
                if (event := decode(line)) is not None:
                    tokens += asked.tokens(event)
                    count = asked.count(event) if count is None else count
    made = len(tokens) if count is None else count
    if made != job.output:
        raise EngineError(f"asked for {job.output} tokens and got {made}")
    return tuple(tokens)


@contextmanager
def running(
    engine: Engine, model: Path, cores: tuple[int, ...], dtype: Dtype
) -> Iterator[tuple[subprocess.Popen[bytes], str, float]]:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    command = engine.command(model, port, len(cores), dtype)
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        process = subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(str(core) for core in cores), *command],
            stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True,
            env=environment(engine, len(cores), cores),
        )  # fmt: skip
        try:
            _wait(engine, process, base, log)
            yield process, base, started
        finally:
            _stop(process)


def _wait(engine: Engine, process: subprocess.Popen[bytes], base: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            log.seek(0)
            words = log.read().decode(errors="replace")[-1500:]
            raise EngineError(f"{engine.name} ended with {process.returncode}:\n{words}")
        try:
            with urllib.request.urlopen(base + engine.ready, timeout=5):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.02)
    raise EngineError(f"{engine.name} did not come up within {START} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The whole group: some engines leave workers behind."""
    for number, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _peak_mib(pid: int) -> float:
    root = psutil.Process(pid)
    kib = 0
    for process in (root, *root.children(recursive=True)):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                kib += int(line.split()[1])
    return kib / 1024


@contextmanager
def busy_core(core: int) -> Iterator[None]:
    """Another process that computes on one core all the time, as a neighbour on a shared machine does."""
    spin = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", spin])
    try:
        yield
    finally:
        process.kill()
        process.wait()
