"""Imports without the garbage collector: they make tens of thousands of objects that stay, and it would go through all
of them again and again, at a seventh of the time that the console takes to start.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is collected within; what came stays out of later collections. Not for work that makes garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
