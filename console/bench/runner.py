"""Runs passes over some work against one endpoint, with what the engine counted meanwhile, and flags held for it."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ...engine.control import protocol as p
from ...engine.control.protocol import NA
from ...engine.flags import Value
from ..client import Client, find
from ..exits import Failure
from ..held_flags import HeldFlags
from . import provenance, scrape
from .endpoint import Address
from .load import Bounds, Load, Measured
from .request import Endpoint, Target
from .result import Engine, Pass, Server, pass_of
from .work import Job, Plan, arrivals, trace_jobs

HOLD = 60.0  # seconds after which the engine takes flags back when nobody renews them
_RENEW = 15.0  # seconds
_NO_SOCKET = "this needs an arc engine's control socket: name it with --engine, or leave --url out"

Ticked = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """How requests follow each other: so many at once, or so many a second."""

    concurrency: int | None
    rate: float | None
    burstiness: float = 1.0
    most: int = 1024  # under way at once, at a rate


@dataclass(frozen=True, slots=True)
class Work:
    """What is sent in one pass."""

    plan: Plan
    trace: Path | None
    requests: int
    warmup: int

    def jobs(self, seed: int) -> Iterator[Job]:
        if self.trace is None:
            return self.plan.jobs(seed)
        return iter(trace_jobs(self.trace, self.plan.vocab, self.plan.context, seed))


@dataclass(frozen=True, slots=True)
class Site:
    """An endpoint, and where it is an arc engine whose control socket is known, that too."""

    target: Target
    server: Server
    socket: Path | None

    @property
    def context(self) -> int:
        length = self.server.max_model_len
        return length if isinstance(length, int) else 4096

    @contextmanager
    def control(self) -> Iterator[Client]:
        """A connection of its own. Raises Failure where there is no control socket."""
        if self.socket is None:
            raise Failure(_NO_SOCKET)
        with Client(self.socket) as client:
            yield client


def site(
    url: str | None,
    engine: str | None,
    model: str | None,
    endpoint: Endpoint,
    key: str | None,
    timeout: float,
) -> Site:
    """From what the command line says: an engine by its control socket, an endpoint by its address, or both as one."""
    with ExitStack() as stack:
        socket = find(engine) if engine is not None or url is None else None
        control = stack.enter_context(Client(socket)) if socket is not None else None
        if url is None:
            assert control is not None
            url = provenance.url_of(control)
        try:
            address = Address.of(url)
        except ValueError as error:
            raise Failure(str(error)) from None
        name, context = provenance.served(address, key, model)
        server = (
            provenance.over_http(address, key, name, context)
            if control is None
            else provenance.over_control(control, address, name)
        )
    return Site(Target(address, endpoint, name, key, timeout), server, socket)


class Runner:
    """One site, measured pass by pass. No pass finds another's prompts in the cache: each has a seed of its own."""

    def __init__(self, at: Site, bounds: Bounds = Bounds(), on_end: Ticked = lambda: None) -> None:  # noqa: B008
        self._site = at
        self._bounds = bounds
        self._on_end = on_end

    def warm_up(self, work: Work, pace: Pace, seed: int) -> None:
        """Send `work.warmup` requests and forget them. Raises Failure when none of them ends well."""
        if not work.warmup:
            return
        # Of another seed than any pass, and of the plan's lengths even when the passes are of a trace.
        jobs = work.jobs(seed) if work.trace else work.plan.jobs(-1 - seed)
        measured = self._load(jobs, replace(work, requests=work.warmup), pace, seed, None)[0]
        if not measured.finished:
            said = "; ".join(f"{kind}: {texts[0]}" for kind, texts in measured.messages.items())
            raise Failure(f"no request of the warm-up ended well: {said}")

    def one(
        self, work: Work, pace: Pace, seed: int, *, held: HeldFlags | None = None, steady: bool = False
    ) -> Pass:
        """One pass. `steady`: what the engine counted ends where the last request was sent, before rows run out."""
        measured, engine = self._load(work.jobs(seed), work, pace, seed, held, steady=steady, scraped=True)
        return pass_of(measured, seed, engine)

    def _load(
        self,
        jobs: Iterator[Job],
        work: Work,
        pace: Pace,
        seed: int,
        held: HeldFlags | None,
        *,
        steady: bool = False,
        scraped: bool = False,
    ) -> tuple[Measured, Engine | NA]:
        socket = self._site.socket if scraped else None
        return asyncio.run(self._measure(jobs, work, pace, seed, held, socket, steady))

    async def _measure(
        self,
        jobs: Iterator[Job],
        work: Work,
        pace: Pace,
        seed: int,
        held: HeldFlags | None,
        socket: Path | None,
        steady: bool,
    ) -> tuple[Measured, Engine | NA]:
        dry = asyncio.Event()
        load = Load(self._site.target, self._bounds, self._on_end, dry.set)
        renewal = asyncio.create_task(_renew(held)) if held is not None else None
        start = await asyncio.to_thread(scrape.life, socket) if socket is not None else None
        sending = asyncio.create_task(_send(load, jobs, work, pace, seed))
        try:
            end: p.Interval | None = None
            if steady and socket is not None:
                await dry.wait()
                end = await asyncio.to_thread(scrape.life, socket)
            measured = await _first_of(sending, renewal)
            if end is None and socket is not None:
                end = await asyncio.to_thread(scrape.life, socket)
        finally:
            for task in (sending, renewal):
                if task is not None:
                    task.cancel()
            await asyncio.wait([task for task in (sending, renewal) if task is not None])
        if start is None or end is None:
            return measured, NA("no control socket was named: the engine's own counters were not read")
        return measured, scrape.between(start, end)


async def _send(load: Load, jobs: Iterator[Job], work: Work, pace: Pace, seed: int) -> Measured:
    if pace.concurrency is not None:
        return await load.closed(jobs, work.requests, pace.concurrency)
    if pace.rate is None:
        return await load.opened(jobs, work.requests, itertools.repeat(0.0), pace.most)
    moments = arrivals(pace.rate, pace.burstiness, random.Random(f"arrivals {seed}"))
    untimed = (
        replace(job, at=None) for job in jobs
    )  # a rate that was asked for goes before a trace's own times
    return await load.opened(untimed, work.requests, moments, pace.most)


async def _first_of(sending: asyncio.Task[Measured], renewal: asyncio.Task[None] | None) -> Measured:
    """The measurement; a renewal never ends but by a failure, which ends the measurement."""
    if renewal is not None:
        await asyncio.wait((sending, renewal), return_when=asyncio.FIRST_COMPLETED)
        if renewal.done():
            renewal.result()
    return await sending


async def _renew(held: HeldFlags) -> None:
    while True:
        await asyncio.sleep(_RENEW)
        await asyncio.to_thread(held.renew)


@contextmanager
def holding(at: Site, changes: Mapping[str, Value], why: str) -> Iterator[HeldFlags | None]:
    """The engine with these flags for the block; None when there are none to hold."""
    if not changes:
        yield None
        return
    if at.socket is None:
        raise Failure(_NO_SOCKET)
    held = HeldFlags(at.socket, why, HOLD)
    try:
        held.change(changes)
        yield held
    finally:
        held.give_back()
