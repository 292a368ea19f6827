"""Blocks whose device events are yet to be passed: read when they are, given up on when they never are."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from .device import NO_EVENT, NOT_ASKED, Anchor, EventRing
from .fold import DeviceTimes
from .tape import Block, StepMark

PATIENCE = 32  # blocks that may wait; past it the oldest is folded with what can be known of it


@dataclass(frozen=True, slots=True)
class Resolved:
    block: Block
    times: DeviceTimes
    unresolved: int  # device spans that have no time


class Pending:
    """In order: a stream passes its events in order, so what is younger than an event not passed is not passed."""

    def __init__(self, ring: EventRing, anchor: Anchor) -> None:
        self._ring = ring
        self._anchor = anchor
        self._blocks: deque[Block] = deque()

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, block: Block) -> None:
        self._blocks.append(block)

    def ready(self) -> list[Resolved]:
        """What can be read by now, oldest first. Never waits."""
        self._anchor.renew()
        found: list[Resolved] = []
        while self._blocks and (len(self._blocks) > PATIENCE or self._passed(self._blocks[0])):
            block = self._blocks.popleft()
            found.append(self._read(block))
            self._ring.release(_last_ticket(block) + 1)
        return found

    def _passed(self, block: Block) -> bool:
        last = _last_ticket(block)
        return last < 0 or self._ring.done(last)

    def _read(self, block: Block) -> Resolved:
        assert block.first is not None and block.last is not None
        began, wall = np.full(len(block.node), np.nan), np.full(len(block.node), np.nan)
        whole = np.zeros(len(block.steps), dtype=bool)
        in_flight = np.zeros(len(block.steps))
        unresolved = 0
        for index, mark in enumerate(block.steps):
            missing = self._read_step(block, mark, began, wall)
            unresolved += missing
            whole[index] = missing == 0 and wall[mark.start] >= 0
            if wall[mark.start] >= 0:
                in_flight[index] = began[mark.start] + wall[mark.start] - block.ended[mark.start]
        return Resolved(block, DeviceTimes(began, wall, whole, in_flight), unresolved)

    def _read_step(self, block: Block, mark: StepMark, began: np.ndarray, wall: np.ndarray) -> int:
        """Fill in the step's device times; the number of device spans that have none."""
        assert block.first is not None and block.last is not None
        ring, missing = self._ring, 0
        root_first, root_last = int(block.first[mark.start]), int(block.last[mark.start])
        # A step's own events lie around those of all its calls, so its last one speaks for them.
        known = root_first >= 0 and root_last >= 0 and ring.done(root_last)
        zero = self._anchor.place(ring.of(root_first)) if known else 0
        for place in range(mark.start, mark.end):
            first, last = int(block.first[place]), int(block.last[place])
            if first == NOT_ASKED:
                continue
            if not known or NO_EVENT in (first, last):
                missing += 1
                continue
            root = ring.of(root_first)
            start, end = (root.elapsed_time(ring.of(each)) * 1e6 for each in (first, last))
            began[place], wall[place] = zero + start, end - start
        return missing


def _last_ticket(block: Block) -> int:
    assert block.last is not None and block.first is not None
    return int(max(block.last.max(initial=NO_EVENT), block.first.max(initial=NO_EVENT)))
