"""From records to sums: what the steps of a block add to each span, and what is wrong with them.

All of it is done for a block of steps at once in numpy, so that a record costs well under a microsecond. Times are
seconds from here on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .sites import KINDS
from .tape import Block
from .tree import Tree

Floats = NDArray[np.float64]

# Sums by kind of step and span. With ROWS_WALL and WALL_WALL, and the sums of rows below, a line can be fitted over the
# steps of any window without keeping the steps.
CALLS, WALL, SELF, SYNC, DEVICE, ROWS_WALL, WALL_WALL = range(7)
SPAN_SUMS = 7
# Sums by kind of step.
STEPS, ROWS, TOKENS, ROWS_ROWS, DEVICE_STEPS = range(5)
KIND_SUMS = 5

LONGER_CHILD = "a span longer than the one it is in"
NEGATIVE_SELF = "spans that add up to more than the one they are in"
LONGER_DEVICE = "device time longer than its step and what was in flight"
WRONG_CALLS = "calls that do not match the layers"

_DEVICE_SLACK = 50e-6  # seconds, and a hundredth: two clocks are compared
_DEVICE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Of a block's records: when they began on the device, in ns on the host's clock, and how long they took there."""

    began: Floats  # NaN: not known
    wall: Floats  # ns
    whole: NDArray[np.bool_]  # [steps]: all of the step's device spans are known
    in_flight: Floats  # [steps] ns: how long the device still worked when the step had ended


@dataclass(frozen=True, slots=True)
class Part:
    """What some steps add. Adding parts up gives a window."""

    spans: Floats  # [SPAN_SUMS, kinds, nodes]
    kinds: Floats  # [KIND_SUMS, kinds]
    unresolved: int = 0  # device spans without a time
    misnested: int = 0
    lost: int = 0
    violations: dict[str, int] = field(default_factory=dict)
    own: float = 0.0  # what the profiler itself took between steps, seconds

    def __add__(self, other: Part) -> Part:
        nodes = max(self.spans.shape[2], other.spans.shape[2])
        violations = dict(self.violations)
        for name, count in other.violations.items():
            violations[name] = violations.get(name, 0) + count
        return Part(
            spans=_widened(self.spans, nodes) + _widened(other.spans, nodes),
            kinds=self.kinds + other.kinds,
            unresolved=self.unresolved + other.unresolved,
            misnested=self.misnested + other.misnested,
            lost=self.lost + other.lost,
            violations=violations,
            own=self.own + other.own,
        )


def nothing() -> Part:
    return Part(np.zeros((SPAN_SUMS, len(KINDS), 0)), np.zeros((KIND_SUMS, len(KINDS))))


def _widened(sums: Floats, nodes: int) -> Floats:
    missing = nodes - sums.shape[2]
    return np.pad(sums, ((0, 0), (0, 0), (0, missing))) if missing else sums


@dataclass(frozen=True, slots=True)
class Expected:
    """In each call of the span `parent`, the span `name` is called `calls` times."""

    parent: str
    name: str
    calls: int


def fold(
    block: Block,
    tree: Tree,
    *,
    expected: Sequence[Expected],
    waits: frozenset[str],
    device: DeviceTimes | None,
    unresolved: int,
) -> Part:
    """`waits`: names of the spans in which the host waits for the device."""
    nodes, steps = len(tree), len(block.steps)
    lengths = [mark.end - mark.start for mark in block.steps]
    step_of = np.repeat(np.arange(steps), lengths)
    cell = step_of * nodes + block.node
    wall: Floats = (block.ended - block.began).astype(np.float64) * 1e-9
    inner = np.flatnonzero(block.outer >= 0)
    outer = block.outer[inner]
    children = np.bincount(outer, weights=wall[inner], minlength=len(wall))
    own = wall - children

    def by_step(weights: Floats | None) -> Floats:
        sums = np.bincount(cell, weights=weights, minlength=steps * nodes)
        return sums.astype(np.float64, copy=False).reshape(steps, nodes)

    calls, walls = by_step(None), by_step(wall)
    waiting = _waiting(block, tree, waits, wall)
    device_walls = np.zeros((steps, nodes))
    whole = np.zeros(steps, dtype=bool)
    if device is not None:
        whole = device.whole
        device_walls = by_step(np.nan_to_num(device.wall) * 1e-9) * whole[:, None]
    host_self = by_step(np.where(_is_wait(block, tree, waits), 0.0, own))

    kind = np.array([KINDS.index(mark.facts.kind) for mark in block.steps])
    rows = np.array([mark.facts.rows for mark in block.steps], dtype=float)
    tokens = np.array([mark.facts.tokens for mark in block.steps], dtype=float)
    of_kind = (kind == np.arange(len(KINDS))[:, None]).astype(float)  # [kinds, steps]
    spans = np.stack(
        [
            of_kind @ sums
            for sums in (
                calls, walls, host_self, by_step(waiting), device_walls, rows[:, None] * walls, walls * walls,
            )
        ]
    )  # fmt: skip
    kinds = np.stack(
        [of_kind @ sums for sums in (np.ones(steps), rows, tokens, rows * rows, whole.astype(float))]
    )
    outside = (block.began[inner] < block.began[outer]) | (block.ended[inner] > block.ended[outer])
    found = {
        LONGER_CHILD: int(
            (block.ended[inner] - block.began[inner] > (block.ended - block.began)[outer]).sum()
        ),
        NEGATIVE_SELF: int((own < -1e-9).sum()),
        WRONG_CALLS: _wrong_calls(calls, tree, expected),
        LONGER_DEVICE: 0 if device is None else _longer_device(block, step_of, device),
    }
    return Part(
        spans=spans,
        kinds=kinds,
        unresolved=unresolved,
        misnested=block.misnested + int(outside.sum()),
        lost=block.lost,
        violations={name: count for name, count in found.items() if count},
    )


def _is_wait(block: Block, tree: Tree, waits: frozenset[str]) -> NDArray[np.bool_]:
    nodes = [node for node, name in enumerate(tree.names) if name in waits]
    return np.isin(block.node, nodes) if nodes else np.zeros(len(block.node), dtype=bool)


def _waiting(block: Block, tree: Tree, waits: frozenset[str], wall: Floats) -> Floats:
    """Each record's time in which the host waited for the device: its own, or that of the calls in it."""
    waiting = np.zeros(len(wall))
    at = np.flatnonzero(_is_wait(block, tree, waits))
    times = wall[at]
    while len(at):
        np.add.at(waiting, at, times)
        at = block.outer[at]
        inside = at >= 0
        at, times = at[inside], times[inside]
    return waiting


def _wrong_calls(calls: NDArray[np.float64], tree: Tree, expected: Sequence[Expected]) -> int:
    """Steps in which some span was not called as often as there are layers for it."""
    wrong = np.zeros(len(calls), dtype=bool)
    for each in expected:
        for parent in [node for node, name in enumerate(tree.names) if name == each.parent]:
            child = tree.find(parent, each.name)
            made = calls[:, child] if child is not None else 0.0
            wrong |= made != calls[:, parent] * each.calls
    return int(wrong.sum())


def _longer_device(block: Block, step_of: NDArray[np.int64], device: DeviceTimes) -> int:
    """A span cannot have kept the device for longer than its step lasted and what the step left in flight."""
    starts = [mark.start for mark in block.steps]
    most = (block.ended - block.began)[starts] + np.maximum(device.in_flight, 0.0)
    most = most * (1 + _DEVICE_SHARE) + _DEVICE_SLACK * 1e9
    return int((device.wall > most[step_of]).sum())  # NaN, unknown, is not greater
