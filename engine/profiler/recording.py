"""One stretch of profiling, until it is turned off or to another detail: its tape, its sums, its newest calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...kernels.operations import Stamps
from .device import Anchor, Device, EventRing, SelfTested, self_test
from .fold import DeviceTimes, Expected, Part, fold, nothing
from .resolve import Pending
from .sites import Detail, Role, Site
from .tape import Block, Tape
from .timed import Swap, maker
from .tree import Tree
from .window import Windows

# Folding costs some 200 us however few steps it is of, so it is done seldom; who asks for a report has it done then.
STEPS_AT_ONCE = 256
_AT_LEAST_EVERY = 1_000_000_000  # ns
CALLS_KEPT = 200_000  # single calls, for a trace: some 10 MB


@dataclass(frozen=True, slots=True)
class Kept:
    """Single calls, as they were."""

    block: Block
    times: DeviceTimes | None


class Recording:
    """Its methods are the engine thread's; the attributes anyone may read, as values that are replaced whole."""

    def __init__(
        self,
        sites: Sequence[Site],
        detail: Detail,
        *,
        stamps: Stamps | None,
        device: Device | None,
        clock: Callable[[], int],
        failed: Callable[[Exception], None],
        collected: Callable[[], None],
    ) -> None:
        """`failed` is told when it breaks in the midst of the engine's work, and takes it away; `collected` when the
        sums have risen by themselves."""
        self.detail = detail
        self.tree = Tree()
        self.tested: SelfTested | None = None
        self.total = nothing()  # since it began
        self.windows = Windows(clock())
        self.kept: deque[Kept] = deque()
        self.dropped = False  # calls older than those in `kept` are gone
        self.sites = [
            site
            for site in sites
            if site.detail <= detail and (device is not None or site.role is not Role.WAIT)
        ]
        self.tape = Tape(self.tree, device=device is not None)
        self._clock = clock
        self._failed = failed
        self._collected_more = collected
        self._stamps = stamps if detail > Detail.STEP else None
        self._shallow = {site.name for site in sites if site.detail <= Detail.LAYER}
        self._waits = frozenset(site.name for site in self.sites if site.role is Role.WAIT)
        self._expected = _expected(self.sites)
        self._swap = Swap()
        self._collected = clock()
        self._spliced = 0  # ns spent on sections since the last collection
        self._calls_kept = 0
        self._ring: EventRing | None = None
        self._pending: Pending | None = None
        if device is not None:
            self.tested = self_test(device)
            self._ring = EventRing(device)
            self._pending = Pending(self._ring, Anchor(device, clock))

    def put(self) -> None:
        """From the next step on. Raises SiteError, with nothing put."""
        self._swap.put(self.sites, maker(self.tape, self._clock, self._ring, self._ended, self._step_kept))
        if self._stamps is not None:
            self._stamps.take()  # what is left of another time
            self._stamps.record(True)

    def take_away(self) -> None:
        self._swap.take_away()
        if self._stamps is not None:
            self._stamps.record(False)

    def _ended(self) -> None:
        if self._stamps is None:
            return
        began = self._clock()
        try:
            self._splice(self._stamps)
        except Exception as error:
            self._failed(error)
        self._spliced += self._clock() - began

    def _splice(self, stamps: Stamps) -> None:
        sections = stamps.take()
        if self.detail < Detail.OP:
            sections = [each for each in sections if each.name in self._shallow]
        if self.tape.facts is not None:
            self.tape.splice(sections)

    def _step_kept(self) -> None:
        tape = self.tape
        ended = tape.ended[tape.steps[-1].start]
        if (
            len(tape.steps) >= STEPS_AT_ONCE
            or ended - self._collected >= _AT_LEAST_EVERY
            or tape.crowded
            or (self._ring is not None and self._ring.crowded)
        ):
            try:
                self.collect()
            except Exception as error:
                self._failed(error)
            else:
                self._collected_more()

    def collect(self) -> None:
        """Fold what is on the tape, as far as the device's part of it is known. Never waits. Not within a step."""
        began = self._collected = self._clock()
        part = nothing()
        block = self.tape.take()
        if self._pending is None:
            if block is not None:
                part = self._fold(block, None, 0)
        else:
            if block is not None:
                self._pending.add(block)
            for resolved in self._pending.ready():
                part += self._fold(resolved.block, resolved.times, resolved.unresolved)
        if not part.kinds.any():
            return
        now = self._clock()
        part += Part(nothing().spans, nothing().kinds, own=(now - began + self._spliced) * 1e-9)
        self._spliced = 0
        self.total += part
        self.windows.add(part, now)

    def _fold(self, block: Block, times: DeviceTimes | None, unresolved: int) -> Part:
        self.kept.append(Kept(block, times))
        self._calls_kept += len(block.node)
        while self._calls_kept > CALLS_KEPT and len(self.kept) > 1:
            self._calls_kept -= len(self.kept.popleft().block.node)
            self.dropped = True
        return fold(
            block,
            self.tree,
            expected=self._expected,
            waits=self._waits,
            device=times,
            unresolved=unresolved,
        )


def _expected(sites: Sequence[Site]) -> list[Expected]:
    calls: dict[tuple[str, str], int] = {}
    for site in sites:
        if site.once_per:
            calls[site.once_per, site.name] = calls.get((site.once_per, site.name), 0) + 1
    return [Expected(parent, name, count) for (parent, name), count in calls.items()]
