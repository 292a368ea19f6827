"""Runs the choices of one request on the engine and answers with them, whole or streamed.

Whatever happens, each sequence that was submitted and did not end is cancelled before the handler returns: with
DISCONNECTED when the client went away (aiohttp cancels the handler's task then), else with CANCELLED.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from aiohttp import web

from ..core.interface import Draining, EngineHandle, TooManyWaiting
from ..sequence import FinishReason, Output
from .choices import Choice, usage_of
from .errors import ApiError, bad_request, internal_error, refused_at_the_door
from .formats import Format
from .streams import EventStream

Deliver = Callable[[Choice], None]


class Sequences:
    """The sequences behind one response: submitted together, followed to their ends, released whatever happens.

    `over` is done when all have ended, with None, or when the first one has failed, with its error.
    """

    def __init__(self, handle: EngineHandle, choices: Sequence[Choice]) -> None:
        self._handle = handle
        self._choices = choices
        self._submitted = 0
        self._running = len(choices)
        self.over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def submit(self, deliver: Deliver | None = None) -> None:
        """Submit all, or raise ApiError; `release` takes back those that were in before the one that was refused.

        `deliver` is called after each output, in the turn of the loop that brought it.
        """
        count = len(self._choices)
        try:
            self._handle.check_room(count)  # so that a refused request has never taken another's place
            for choice in self._choices:
                self._handle.submit(choice.request, partial(self._receive, choice, deliver))
                self._submitted += 1
        except TooManyWaiting as error:
            if count > error.cap:  # waiting would not help
                message = f"{count} sequences in one request; sched.max_waiting allows {error.cap}"
                raise bad_request(message, "n", "invalid_value") from None
            raise refused_at_the_door(error) from None
        except Draining as error:
            raise refused_at_the_door(error) from None

    async def end(self) -> None:
        """When all have ended. Raises what the first failure was."""
        if (failure := await self.over) is not None:
            raise failure

    def _receive(self, choice: Choice, deliver: Deliver | None, output: Output) -> None:
        if choice.done or self.over.done():
            return
        try:
            choice.absorb(output)
            if choice.done:
                self._running -= 1
                if not choice.ended:  # a stop string, which the engine does not see
                    self._handle.cancel(choice.request.id, FinishReason.STOP)
                    choice.ended = True
            if deliver is not None:
                deliver(choice)
        except Exception as error:
            self.over.set_result(error)
            return
        if not self._running:
            self.over.set_result(None)

    def release(self, reason: FinishReason) -> None:
        """Cancel every submitted sequence that has not ended. Nothing is delivered any more."""
        self.over.cancel()
        for choice in self._choices[: self._submitted]:
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
        if stream:
            return await _stream(request, choices, sequences, form)
        sequences.submit()
        await sequences.end()
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

    def deliver(choice: Choice) -> None:
        nonlocal running, last
        if choice.done:
            running -= 1
        elif not choice.texts or events.full:
            return
        chunk = form.chunk(choice, usage_of(choices) if form.usage_always else None)
        if running == 0:
            last = chunk
        else:
            events.send(chunk)

    sequences.submit(deliver)
    try:
        await asyncio.wait((events.begun, sequences.over), return_when=asyncio.FIRST_COMPLETED)
        if events.begun.done():
            await events.begin()
        await sequences.end()
    except ConnectionError:
        raise
    except Exception as error:
        if not events.open:
            raise  # an ordinary error answer is still possible
        sequences.release(FinishReason.CANCELLED)
        failure = error if isinstance(error, ApiError) else internal_error(error)
        return await events.end(b"data: " + failure.body() + b"\n\n")
    return await events.end(last + form.last_events(usage_of(choices)))
