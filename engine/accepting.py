"""What an event loop says when the process has no file descriptor left for another connection.

asyncio reports each attempt, with a traceback, up to the length of the listening queue and each second anew: a flood of
connections would flood the log. It goes on trying by itself, so one line a while is all that is needed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import resource
from typing import Any

SAID_EVERY = 60.0  # seconds
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class AcceptTrouble:
    """An event loop's exception handler: that trouble once in SAID_EVERY, everything else as asyncio does."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "socket" not in context or not isinstance(error, OSError) or error.errno not in _EXHAUSTED:
            loop.default_exception_handler(context)
            return
        if loop.time() - self._said < SAID_EVERY:
            return
        self._said = loop.time()
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._log.error(
            "no more connections can be taken: %s (%d open files are allowed, see ulimit -n); tried again each second, "
            "and said once in %.0f s",
            error.strerror,
            allowed,
            SAID_EVERY,
        )
