"""Work that is too long for the event loop, in threads, with a bound on how much of it is under way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class LongWork:
    """Runs functions in threads, in the order they came, of at most `most` in size together; a larger one runs alone.

    Tokenizing takes about a hundred times its text in memory, so what requests take together must not be up to them.
    Belongs to one event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """What `work` returns or raises. Cancelled, it does not begin, or runs to its end and counts until then."""
        loop = asyncio.get_running_loop()
        size = min(size, self._most)
        turn = loop.create_future()
        self._waiting.append((size, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn came in the same round of the loop
                self._ended(size)
            raise
        running = loop.run_in_executor(None, work)
        running.add_done_callback(lambda _: self._ended(size))
        return await asyncio.shield(running)

    def _ended(self, size: int) -> None:
        self._under_way -= size
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.cancelled():
                if self._under_way + size > self._most:
                    return
                self._under_way += size
                turn.set_result(None)
            self._waiting.popleft()
