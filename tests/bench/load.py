"""Sends a list of jobs, everything at once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from arc.console.bench.request import Outcome, Target, ask
from arc.console.bench.work import Job


@dataclass(frozen=True, slots=True)
class Run:
    """One workload sent once. `seconds` runs from the first request sent to the last one ended."""

    seconds: float
    outcomes: tuple[Outcome, ...]

    @property
    def output_rate(self) -> float:
        """Output tokens a second over the whole time, prefill included."""
        return sum(outcome.tokens for outcome in self.outcomes) / self.seconds


async def _all(target: Target, jobs: list[Job]) -> Run:
    began = time.perf_counter()
    outcomes = await asyncio.gather(*(_one(target, job) for job in jobs))
    return Run(time.perf_counter() - began, tuple(outcomes))


async def _one(target: Target, job: Job) -> Outcome:
    return await ask(target, job, time.perf_counter(), lambda _: None)


def send(target: Target, jobs: list[Job]) -> Run:
    """Raises EndpointError when one fails: a figure of half of the work is none."""
    return asyncio.run(_all(target, jobs))
