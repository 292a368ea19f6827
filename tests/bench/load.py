"""Sends one workload to an OpenAI endpoint, everything at once, and times what comes back."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import aiohttp

from .workloads import Job


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: seconds from sending to its first token and to its end."""

    first: float
    end: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """One workload sent once. `seconds` runs from the first request sent to the last one ended."""

    seconds: float
    outcomes: tuple[Outcome, ...]

    @property
    def output_rate(self) -> float:
        """Output tokens a second over the whole time, prefill included."""
        return sum(outcome.tokens for outcome in self.outcomes) / self.seconds


async def _one(session: aiohttp.ClientSession, base: str, model: str, job: Job) -> Outcome:
    body = {
        "model": model, "prompt": list(job.prompt), "max_tokens": job.output, "ignore_eos": True,
        "temperature": job.temperature, "seed": 0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    sent = time.perf_counter()
    first, tokens = 0.0, 0
    async with session.post(f"{base}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            if not first:
                first = time.perf_counter() - sent
            if b'"usage":{' in line or b'"usage": {' in line:
                tokens = json.loads(line[6:])["usage"]["completion_tokens"]
    if tokens != job.output:
        raise RuntimeError(f"asked for {job.output} tokens and got {tokens}")
    return Outcome(first, time.perf_counter() - sent, tokens)


async def _all(base: str, model: str, jobs: list[Job]) -> Run:
    timeout = aiohttp.ClientTimeout(total=1800)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        began = time.perf_counter()
        outcomes = await asyncio.gather(*(_one(session, base, model, job) for job in jobs))
        return Run(time.perf_counter() - began, tuple(outcomes))


def send(base: str, model: str, jobs: list[Job]) -> Run:
    return asyncio.run(_all(base, model, jobs))
