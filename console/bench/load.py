"""Sends work at a fixed concurrency or at a fixed rate, and measures what comes back, in bounded memory.

At a fixed rate the loop is open: arrivals do not wait for answers, and each latency is counted from the scheduled
arrival. So a server that stalls is charged for every request that the stall delayed, also for those that could not even
be sent (what Tene calls coordinated omission). A fixed concurrency cannot see that: it sends less during a stall.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .endpoint import EndpointError
from .histogram import LatencyHistogram
from .request import Outcome, Target, ask
from .work import Job

_MESSAGES_KEPT = 3  # of each kind of error


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a good answer keeps, seconds; None: not bounded. Goodput counts the requests that keep all of them (the term
    as in DistServe, Zhong et al., OSDI 2024)."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def kept(self, outcome: Outcome) -> bool:
        per_token = outcome.per_token
        return (
            (self.ttft is None or outcome.first <= self.ttft)
            and (self.tpot is None or per_token is None or per_token <= self.tpot)
            and (self.e2e is None or outcome.end <= self.e2e)
        )

    @property
    def stated(self) -> bool:
        return (self.ttft, self.tpot, self.e2e) != (None, None, None)


@dataclass(slots=True)
class Measured:
    """What one pass over the work brought, added up as it came."""

    bounds: Bounds
    began: float = 0.0  # time.perf_counter() of the first sending
    ended: float = 0.0  # and of the last end
    sent: int = 0
    finished: int = 0
    good: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    texts: int = 0  # events with text
    late: int = 0  # requests that were sent after their arrival because too many were under way
    most_under_way: int = 0
    ttft: LatencyHistogram = field(default_factory=LatencyHistogram)
    itl: LatencyHistogram = field(default_factory=LatencyHistogram)
    tpot: LatencyHistogram = field(default_factory=LatencyHistogram)
    e2e: LatencyHistogram = field(default_factory=LatencyHistogram)
    errors: Counter[str] = field(default_factory=Counter)
    messages: dict[str, list[str]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def add(self, outcome: Outcome) -> None:
        self.finished += 1
        self.good += self.bounds.kept(outcome)
        self.prompt_tokens += outcome.prompt_tokens
        self.output_tokens += outcome.tokens
        self.texts += outcome.texts
        self.ttft.add(outcome.first)
        self.e2e.add(outcome.end)
        if outcome.per_token is not None:
            self.tpot.add(outcome.per_token)

    def add_error(self, error: EndpointError) -> None:
        self.errors[error.kind] += 1
        messages = self.messages.setdefault(error.kind, [])
        text = str(error)
        if len(messages) < _MESSAGES_KEPT and text not in messages:
            messages.append(text)


class Load:
    """One pass over the work. `on_end` is called at each request's end; `on_dry` when the last one has been sent."""

    def __init__(
        self,
        target: Target,
        bounds: Bounds,
        on_end: Callable[[], None] = lambda: None,
        on_dry: Callable[[], None] = lambda: None,
    ) -> None:
        self._target = target
        self._on_end = on_end
        self._on_dry = on_dry
        self._under_way = 0
        self._dry = False
        self.measured = Measured(bounds)

    async def closed(self, jobs: Iterator[Job], requests: int, concurrency: int) -> Measured:
        """`concurrency` requests under way at any time, `requests` in all."""
        bounded = itertools.islice(jobs, requests)
        self._begin()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, requests)):
                group.create_task(self._worker(bounded))
        return self._end()

    async def opened(
        self, jobs: Iterator[Job], requests: int, moments: Iterator[float], most: int
    ) -> Measured:
        """A request at each of `moments` (seconds after the begin), `requests` in all, at most `most` under way.

        A job of a trace that has its own moment is sent at that.
        """
        room = asyncio.Semaphore(most)
        self._begin()
        async with asyncio.TaskGroup() as group:
            for job in itertools.islice(jobs, requests):
                moment = self.measured.began + (next(moments) if job.at is None else job.at)
                await asyncio.sleep(max(0.0, moment - time.perf_counter()))
                if room.locked():
                    self.measured.late += 1
                await room.acquire()
                task = group.create_task(self._one(job, moment))
                task.add_done_callback(lambda _: room.release())
            self._on_dry()
        return self._end()

    async def _worker(self, jobs: Iterator[Job]) -> None:
        for job in jobs:
            await self._one(job, time.perf_counter())
        if not self._dry:
            self._dry = True
            self._on_dry()

    async def _one(self, job: Job, scheduled: float) -> None:
        measured = self.measured
        measured.sent += 1
        self._under_way += 1
        measured.most_under_way = max(measured.most_under_way, self._under_way)
        try:
            measured.add(await ask(self._target, job, scheduled, measured.itl.add))
        except EndpointError as error:
            measured.add_error(error)
        finally:
            self._under_way -= 1
            self._on_end()

    def _begin(self) -> None:
        self.measured.began = time.perf_counter()

    def _end(self) -> Measured:
        self.measured.ended = time.perf_counter()
        return self.measured
