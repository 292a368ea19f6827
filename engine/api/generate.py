"""Runs the choices of one request on the engine and answers with them, whole or streamed.

Whatever happens, each sequence that was submitted and did not end is cancelled before the handler returns: with
DISCONNECTED when the client went away (aiohttp cancels the handler's task then), else with CANCELLED.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from aiohttp import web

from ..core.interface import Draining, EngineHandle, TooManyWaiting
from ..sequence import FinishReason, Output
from .choices import Choice, usage_of
from .errors import ApiError, bad_request, internal_error, refused_at_the_door
from .formats import Format
from .streams import EventStream

Deliver = Callable[[Choice], Awaitable[None]]


class Sequences:
    """The sequences behind one response: submitted together, followed to their ends, released whatever happens."""

    def __init__(self, handle: EngineHandle, choices: Sequence[Choice]) -> None:
        self._handle = handle
        self._choices = choices
        self._outputs: list[AsyncIterator[Output]] = []

    def submit(self) -> None:
        """Submit all, or raise ApiError; `release` takes back those that were in before the one that was refused."""
        count = len(self._choices)
        try:
            self._handle.check_room(count)  # so that a refused request has never taken another's place
            for choice in self._choices:
                self._outputs.append(self._handle.submit(choice.request))
        except TooManyWaiting as error:
            if count > error.cap:  # waiting would not help
                message = f"{count} sequences in one request; sched.max_waiting allows {error.cap}"
                raise bad_request(message, "n", "invalid_value") from None
            raise refused_at_the_door(error) from None
        except Draining as error:
            raise refused_at_the_door(error) from None

    async def follow(self, deliver: Deliver | None = None) -> None:
        """Run all choices to their ends; `deliver` is called after each output. The first failure ends them all."""
        if len(self._choices) == 1:
            await self._follow_one(self._choices[0], self._outputs[0], deliver)
            return
        try:
            async with asyncio.TaskGroup() as group:
                for choice, outputs in zip(self._choices, self._outputs, strict=True):
                    group.create_task(self._follow_one(choice, outputs, deliver))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _follow_one(
        self, choice: Choice, outputs: AsyncIterator[Output], deliver: Deliver | None
    ) -> None:
        async for output in outputs:
            choice.absorb(output)
            if choice.done and not choice.ended:  # a stop string, which the engine does not see
                self._handle.cancel(choice.request.id, FinishReason.STOP)
                choice.ended = True
            if deliver is not None:
                await deliver(choice)
            if choice.done:
                return
        raise ApiError(
            500, "the engine's outputs ended without a finish", kind="server_error", code="engine_fault"
        )

    def release(self, reason: FinishReason) -> None:
        """Cancel every submitted sequence that has not ended."""
        for choice, _ in zip(
            self._choices, self._outputs, strict=False
        ):  # the first len(outputs) were submitted
            if not choice.ended:
                self._handle.cancel(choice.request.id, reason)
                choice.ended = True


async def respond(
    handle: EngineHandle, request: web.Request, choices: Sequence[Choice], form: Format, stream: bool
) -> web.StreamResponse:
    """The response to one checked request."""
    sequences = Sequences(handle, choices)
    reason = FinishReason.CANCELLED
    try:
        sequences.submit()
        if stream:
            return await _stream(request, choices, sequences, form)
        await sequences.follow()
        return web.Response(body=form.answer(choices, usage_of(choices)), content_type="application/json")
    except (asyncio.CancelledError, ConnectionError):
        reason = FinishReason.DISCONNECTED
        raise
    finally:
        sequences.release(reason)


async def _stream(
    request: web.Request, choices: Sequence[Choice], sequences: Sequences, form: Format
) -> web.StreamResponse:
    events = EventStream(request)
    running = len(choices)
    last = b""  # the last choice's last chunk goes out in one write with the events that end the stream

    async def deliver(choice: Choice) -> None:
        nonlocal running, last
        if choice.done:
            running -= 1
        elif not choice.texts or events.full:
            return
        chunk = form.chunk(choice, usage_of(choices) if form.usage_always else None)
        if running == 0:
            last = chunk
        else:
            await events.send(chunk)

    try:
        await sequences.follow(deliver)
    except ConnectionError:
        raise
    except Exception as error:
        if not events.open:
            raise  # an ordinary error answer is still possible
        sequences.release(FinishReason.CANCELLED)
        failure = error if isinstance(error, ApiError) else internal_error(error)
        return await events.end(b"data: " + failure.body() + b"\n\n")
    return await events.end(last + form.last_events(usage_of(choices)))
