"""The views in the order of their number keys."""

from __future__ import annotations

from .allocator import Allocator
from .events import Events
from .flags import Flags
from .overview import Overview
from .sequences import Sequences
from .spans import Spans
from .view import View

SEQUENCES, FLAGS = 1, 4


def make_views() -> tuple[View, ...]:
    return (Overview(), Sequences(), Spans(), Allocator(), Flags(), Events())
