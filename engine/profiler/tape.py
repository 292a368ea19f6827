"""Where timed methods write: one record a call, in arrays that are there already.

The engine thread alone writes here. A step's records lie one after the other, the step itself first and each call after
the one that it was made in. Reading them is for later (fold.py): a call pays for a few stores and two looks at a clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...kernels.operations import Section
from .device import NOT_ASKED
from .sites import StepFacts
from .tree import ROOT, Tree

CAPACITY = 1 << 16  # records
STEP_ROOM = (
    1 << 14
)  # records that must be free when a step begins: a step that takes more loses the rest, counted

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepMark:
    """One step's part of a block: records [start, end)."""

    start: int
    end: int
    facts: StepFacts


@dataclass(frozen=True, slots=True)
class Block:
    """The records of some steps, off the tape. `outer` is a record's place in the block, -1 of a step itself."""

    node: Ints
    outer: Ints
    began: Ints  # ns
    ended: Ints
    first: Ints | None  # tickets of the device's events; None: there is no device channel
    last: Ints | None
    steps: tuple[StepMark, ...]
    lost: int  # calls that found no room
    misnested: int  # calls that ended while another was open inside


class Tape:
    __slots__ = (
        "began", "device", "ended", "facts", "first", "last", "lead", "lost", "misnested", "n", "node", "open", "outer",
        "start", "steps", "tree",
    )  # fmt: skip

    def __init__(self, tree: Tree, *, device: bool) -> None:
        def room() -> array[int]:
            return array("q", bytes(8 * CAPACITY))

        self.tree = tree
        self.device = device
        self.node, self.outer, self.began, self.ended = room(), room(), room(), room()
        self.first = room() if device else array("q")
        self.last = room() if device else array("q")
        self.n = 0  # the next record
        self.start = 0  # of the step that is open, or the next one
        self.open = -1  # the record of the innermost call; -1: no step is open
        self.lead: tuple[int, int, int] | None = None  # node, began, ended of what ran before the step
        self.facts: StepFacts | None = None
        self.steps: list[StepMark] = []
        self.lost = 0
        self.misnested = 0

    def begin(self, began: int) -> int:
        """Open a step's record, with what led to it as its first child."""
        root = self.start
        self.node[root], self.outer[root], self.began[root] = ROOT, -1, began
        self.n = root + 1
        self.facts = None
        if self.device:
            self.first[root] = self.last[root] = NOT_ASKED
        if self.lead is not None:
            lead, self.lead = self.lead, None
            self.began[root] = lead[1]
            self.put(lead[0], root, lead[1], lead[2])
        self.open = root
        return root

    def put(self, node: int, outer: int, began: int, ended: int) -> int:
        """A record that is whole already; it has no events of the device."""
        place = self.n
        if place >= CAPACITY:
            self.lost += 1
            return outer
        self.node[place], self.outer[place], self.began[place], self.ended[place] = node, outer, began, ended
        if self.device:
            self.first[place] = self.last[place] = NOT_ASKED
        self.n = place + 1
        return place

    def splice(self, sections: Sequence[Section]) -> None:
        """Put what a backend timed itself under the calls that it ran in.

        A section belongs to the innermost call or section that was open when it began. One that ends after that is
        found by the fold; one that began outside the step is misnested and left out.
        """
        begans, endeds, nodes = self.began, self.ended, self.node
        calls, call = self.n, self.start
        open_: list[int] = []
        for section in sorted(sections, key=lambda each: (each.began, -each.ended)):
            while call < calls and begans[call] <= section.began:
                while open_ and endeds[open_[-1]] <= begans[call]:
                    open_.pop()
                open_.append(call)
                call += 1
            while open_ and endeds[open_[-1]] <= section.began:
                open_.pop()
            if not open_:
                self.misnested += 1
                continue
            outer = open_[-1]
            open_.append(
                self.put(self.tree.node(nodes[outer], section.name), outer, section.began, section.ended)
            )

    def close(self) -> bool:
        """The step has ended. False when there was nothing to keep: its records are written over."""
        self.open = -1
        if self.facts is None:
            self.n = self.start
            return False
        self.steps.append(StepMark(self.start, self.n, self.facts))
        self.start = self.n
        return True

    @property
    def crowded(self) -> bool:
        return CAPACITY - self.start < STEP_ROOM

    def take(self) -> Block | None:
        """The steps that are whole, off the tape; None when there are none."""
        if not self.steps:
            return None
        count = self.start

        def copy(values: array[int]) -> Ints:
            return np.frombuffer(values, dtype=np.int64)[:count].copy()

        block = Block(
            node=copy(self.node),
            outer=copy(self.outer),
            began=copy(self.began),
            ended=copy(self.ended),
            first=copy(self.first) if self.device else None,
            last=copy(self.last) if self.device else None,
            steps=tuple(self.steps),
            lost=self.lost,
            misnested=self.misnested,
        )
        self.steps = []
        self.n = self.start = self.lost = self.misnested = 0
        return block

    def open_path(self) -> str | None:
        """The innermost open span, from any thread: what a stalled step is doing. None while no step is open."""
        place = self.open
        return None if place < 0 else self.tree.path(self.node[place])
