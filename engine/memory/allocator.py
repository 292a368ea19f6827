"""What the engine asks of its allocator, on whatever device it governs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from ...kernels.operations import Buffers
from ..control.allocator_messages import AllocatorState
from ..telemetry.records import AllocatorCounters
from .cap import Cap

Wanted = tuple[Sequence[int], torch.dtype]  # shape and dtype of one buffer


class CaptureMiss(Exception):
    """Memory had to be had from the system inside a capture window: the graph would be wrong at its next replay."""


class Allocator(Buffers, Protocol):
    """Owned by the engine thread. `counters` may be read by others."""

    counters: AllocatorCounters

    @property
    def cap(self) -> Cap | None:
        """None while it is off."""
        ...

    def configure(self, enabled: bool, cap_mib: int | None) -> None:
        """Put the flags in force at a step border: arming measures free memory, a lower cap evicts at once."""
        ...

    def end_step(self) -> None:
        """The step is over, whether it went well or not: what it took is back, or counted as outliving it."""
        ...

    def trim(self) -> int:
        """Give everything that is free back to the system, and derive an `auto` cap anew. The bytes given back."""
        ...

    def capture(self, wanted: Iterable[Wanted]) -> AbstractContextManager[None]:
        """A window in which a graph is captured: nothing is evicted, and `wanted` is there before it opens.

        Raises CaptureMiss, from within the window, when memory is wanted that is not there.
        """
        ...

    def state(self) -> AllocatorState:
        """Everything about it, at a step border."""
        ...
