"""An engine behind `EngineHandle` whose every step is decided by the test: what the API does is seen alone.

Each request runs a script, by default its prompt's tokens again and again until max_tokens. One loop makes the steps,
all requests together, as the real engine does. A test may stop the steps (`hold`), let a few through (`step`), and
look at what was submitted, cancelled and still lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import cycle, islice

from arc.engine.core.interface import EngineInfo, Health, Receive
from arc.engine.sequence import Finish, FinishReason, Output, Request, TokenLogprob
from arc.engine.telemetry.records import Counters

Script = Iterator[Output]


def info(**changes: object) -> EngineInfo:
    fields: dict[str, object] = {
        "name": "main",
        "model": "austen",
        "model_path": "/models/austen",
        "model_type": "deepseek_v3",
        "parameters": 3_620_000,
        "dtype": "bfloat16",
        "device": "cpu",
        "max_model_len": 512,
        "vocab_size": 260,
        "page_size": 16,
        "pages": 128,
        "version": "0.1.0",
        "revision": "abc1234",
        "pid": 1,
        "started": 1_700_000_000.0,
        "profile": "default",
    }
    return EngineInfo(**(fields | changes))  # pyright: ignore[reportArgumentType]


def echo(request: Request) -> Script:
    """The prompt's tokens, one a step, to max_tokens; log-probabilities are -1, -2, ... where asked for."""
    params = request.params
    for count, token in enumerate(islice(cycle(request.prompt), params.max_tokens), start=1):
        finish = Finish(reason=FinishReason.LENGTH) if count == params.max_tokens else None
        yield output(request, token, finish=finish)


def output(request: Request, *tokens: int, finish: Finish | None = None, cached: int = 0) -> Output:
    logprobs = None
    if request.params.logprobs is not None:
        logprobs = tuple(
            TokenLogprob(
                token,
                -1.0,
                tuple(
                    (other, -1.0 - rank)
                    for rank, other in enumerate(range(token, token + request.params.logprobs))
                ),
            )
            for token in tokens
        )
    return Output(
        request_id=request.id, token_ids=tokens, logprobs=logprobs, finish=finish, cached_tokens=cached
    )


def saying(
    *tokens: int, reason: FinishReason = FinishReason.STOP, **finish: object
) -> Callable[[Request], Script]:
    """A script of exactly these tokens, one a step; the last one carries the finish."""

    def script(request: Request) -> Script:
        for token in tokens[:-1]:
            yield output(request, token)
        yield output(request, tokens[-1], finish=Finish(reason=reason, **finish))  # pyright: ignore[reportArgumentType]

    return script


def failing(
    after: int, reason: FinishReason = FinishReason.FAULT, detail: str = "a step failed"
) -> Callable[[Request], Script]:
    """The prompt's tokens `after` times, then the end by `reason`."""

    def script(request: Request) -> Script:
        for token in islice(cycle(request.prompt), after):
            yield output(request, token)
        yield Output(request_id=request.id, finish=Finish(reason=reason, detail=detail))

    return script


class ScriptedEngine:
    """An `EngineHandle` for tests. Runs on the loop that calls `start`."""

    def __init__(self, script: Callable[[Request], Script] = echo, **changes: object) -> None:
        self.info = info(**changes)
        self.counters = Counters()
        self.script = script
        self.refuse: Exception | None = None  # raised by the next submissions
        self.refuse_from = 0  # submissions that still succeed before `refuse` holds
        self.state = Health(ok=True)
        self.requests: list[Request] = []
        self.cancelled: dict[str, FinishReason] = {}
        self.steps_run = 0
        self.changed = asyncio.Event()  # set at each submit, cancel and finish
        self._live: dict[str, tuple[Receive, Script]] = {}
        self._steps: asyncio.Semaphore | None = None  # None: free running
        self._task: asyncio.Task[None] | None = None

    @property
    def live(self) -> set[str]:
        return set(self._live)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def hold(self) -> None:
        """No step from here on but those let through by `step`."""
        self._steps = asyncio.Semaphore(0)

    def step(self, count: int = 1) -> None:
        assert self._steps is not None
        for _ in range(count):
            self._steps.release()

    def release(self) -> None:
        """Run freely again."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.release()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something changed so that `condition` holds; the test's own time limit ends a wait in vain."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def check_room(self, count: int) -> None:
        if self.refuse is not None and self.refuse_from == 0:
            raise self.refuse

    def submit(self, request: Request, receive: Receive) -> None:
        if self.refuse is not None:
            if self.refuse_from == 0:
                raise self.refuse
            self.refuse_from -= 1
        self.requests.append(request)
        self._live[request.id] = (receive, self.script(request))
        self.changed.set()

    def cancel(self, request_id: str, reason: FinishReason) -> None:
        found = self._live.pop(request_id, None)
        if found is None:
            return
        self.cancelled[request_id] = reason
        self.changed.set()
        found[0](Output(request_id=request_id, finish=Finish(reason=reason)))

    def health(self) -> Health:
        return self.state

    async def _run(self) -> None:
        while True:
            if self._steps is not None:
                await self._steps.acquire()
            else:
                await asyncio.sleep(0)
            if not self._live:
                self.changed.clear()
                await self.changed.wait()
            for request_id, (receive, script) in list(self._live.items()):
                if request_id not in self._live:
                    continue  # ended by what another one's output brought about
                try:
                    result = next(script)
                except Exception as error:  # a mistake of the test: it must see it, and not wait in vain
                    result = Output(
                        request_id=request_id, finish=Finish(reason=FinishReason.FAULT, detail=repr(error))
                    )
                if result.finish is not None:
                    del self._live[request_id]
                receive(result)
            self.steps_run += 1
            self.changed.set()
