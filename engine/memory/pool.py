"""The pool of host memory: free lists by size class under a cap.

A buffer comes back by itself when the last tensor that refers to it is gone, as with torch's own allocator, so no
result can be overwritten while somebody still reads it. Within a layer the next operation thus gets what the last one
left, which is still in the processor's cache. At the step's end all must be back that was not announced with `keep`:
what is not is left alone and counted (`overdue`).

Invariants, at any time: taken = given + live; held = the bytes of all blocks, free and live; held <= cap, except that
blocks in use when the cap is lowered come back first.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..control.allocator_messages import AllocatorState, SizeClass
from ..control.protocol import NA
from ..telemetry.records import AllocatorCounters
from .allocator import CaptureMiss, Wanted
from .blocks import Block
from .cap import Cap, cap_of
from .classes import LEAST, size_class


class _Loan(weakref.ref[memoryview]):
    """One taken buffer: dead when its memory is referred to by no tensor any more."""

    __slots__ = ("block", "kept", "number")

    block: Block
    number: int
    kept: bool


class HostPool:
    """An Allocator over host memory."""

    def __init__(
        self,
        counters: AllocatorCounters,
        free: Callable[[], int],
        on_return: Callable[[Block], None] = lambda _: None,
    ) -> None:
        """`free` measures free memory. `on_return` sees each block that comes back, such as a test that poisons it."""
        self.counters = counters
        self._measure = free
        self._on_return = on_return
        self._cap: Cap | None = None  # None: off
        self._settings: tuple[bool, int | None] = (False, None)  # as configured
        self._free: OrderedDict[int, list[Block]] = OrderedDict()  # least recently used class first
        self._loans: dict[int, _Loan] = {}
        self._back: deque[_Loan] = deque()  # dead ones that are not in the free lists yet: any thread may add
        self._numbers = 0
        self._capturing = False

    # -- what operations ask ---------------------------------------------------------------------------------------

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        if self._cap is None:
            return None
        size = math.prod(shape) * dtype.itemsize
        if size < LEAST:
            self.counters.small += 1
            return None
        if self._back:
            self._collect()
            if not self._capturing:
                self._settle()  # a cap that was lowered while these were in use
        block = self._block(size_class(size))
        return None if block is None else self._lend(block, size, dtype).view(shape)

    def _lend(self, block: Block, size: int, dtype: torch.dtype) -> Tensor:
        """The first `size` bytes of the block, until no tensor refers to them any more."""
        part = block.view[:size]
        loan = _Loan(part, self._back.append)
        self._numbers += 1
        loan.block, loan.number, loan.kept = block, self._numbers, False
        self._loans[loan.number] = loan
        return torch.frombuffer(part, dtype=dtype)  # its storage holds on to `part`, and to nothing else

    def keep(self, tensor: Tensor) -> None:
        address = tensor.untyped_storage().data_ptr()
        for loan in self._loans.values():
            if loan.block.address == address:
                loan.kept = True

    def bypass(self) -> None:
        if self._cap is not None:
            self.counters.own += 1

    # -- what the engine asks ----------------------------------------------------------------------------------------

    @property
    def cap(self) -> Cap | None:
        return self._cap

    def configure(self, enabled: bool, cap_mib: int | None) -> None:
        if (enabled, cap_mib) != self._settings:
            self._settings = (enabled, cap_mib)
            self._set_cap(cap_of(cap_mib, self._measure) if enabled else None)

    def _set_cap(self, cap: Cap | None) -> None:
        counters = self.counters
        self._cap = cap
        counters.enabled, counters.cap, counters.bound = (
            cap is not None,
            None if cap is None else cap.bytes,
            0,
        )
        self._collect()
        self._settle()

    def end_step(self) -> None:
        self._collect()
        self._settle()
        self.counters.overdue = sum(not loan.kept for loan in self._loans.values())

    def trim(self) -> int:
        self._collect()
        before = self.counters.held
        self._shrink(0)
        freed = before - self.counters.held
        if self._settings == (True, None):
            self._set_cap(cap_of(None, self._measure))
        return freed

    @contextmanager
    def capture(self, wanted: Iterable[Wanted]) -> Iterator[None]:
        self._collect()
        self._warm(wanted)
        self._capturing = True
        try:
            yield
        finally:
            self._capturing = False

    def state(self) -> AllocatorState:
        counters, cap = self.counters, self._cap
        sizes = {size: [len(blocks), 0] for size, blocks in self._free.items()}
        for loan in self._loans.values():
            sizes.setdefault(loan.block.size, [0, 0])[1] += 1
        recency = {size: place for place, size in enumerate(reversed(self._free))}
        unknown = NA("all of it are in use and were never free")
        return AllocatorState(
            kind="pool",
            place="host",
            enabled=cap is not None,
            cap=None if cap is None else cap.bytes,
            cap_from="alloc.enabled is off" if cap is None else cap.why,
            bound=counters.bound,
            held=counters.held,
            peak=counters.peak,
            live=sum(loan.block.size for loan in self._loans.values()),
            kept=sum(loan.block.size for loan in self._loans.values() if loan.kept),
            overdue=counters.overdue,
            hits=counters.hits,
            misses=counters.misses,
            given=counters.given,
            allocated=counters.allocated,
            freed=counters.freed,
            evictions=counters.evictions,
            capture_misses=counters.capture_misses,
            bypassed={
                f"below {LEAST >> 20} MiB": counters.small,
                "larger than the cap": counters.large,
                "the cap was full of buffers in use": counters.full,
                "the operation makes its own result": counters.own,
            },
            classes=tuple(
                SizeClass(size=size, free=free, live=live, recency=recency.get(size, unknown))
                for size, (free, live) in sorted(sizes.items())
                if free or live
            ),
        )

    # -- blocks --------------------------------------------------------------------------------------------------

    def _block(self, size: int) -> Block | None:
        """A block of this class; None, counted, when the cap leaves no room for one."""
        free = self._free.setdefault(size, [])
        self._free.move_to_end(size)
        if free:
            self.counters.hits += 1
            return free.pop()
        if self._capturing:
            self.counters.capture_misses += 1
            raise CaptureMiss(
                f"a buffer of {size:,} bytes was wanted inside the capture window and none was free"
            )
        if not self._make_room(size):
            return None
        block = Block(size)
        self.counters.misses += 1
        self._hold(block)
        return block

    def _make_room(self, size: int) -> bool:
        cap = self._cap.bytes if self._cap is not None else 0
        counters = self.counters
        if cap is None or counters.held + size <= cap:
            return True
        counters.bound += 1
        if size > cap:
            counters.large += 1
            return False
        self._evict(cap * 7 // 8 - size)
        if counters.held + size <= cap:
            return True
        counters.full += 1
        return False

    def _hold(self, block: Block) -> None:
        counters = self.counters
        counters.allocated += 1
        counters.held += block.size
        counters.peak = max(counters.peak, counters.held)

    def _settle(self) -> None:
        """Back under the cap, should it have been lowered: to 7/8 of it, so that the next miss need not evict again."""
        if self._cap is None:
            self._shrink(0)
        elif self._cap.bytes is not None and self.counters.held > self._cap.bytes:
            self.counters.bound += 1
            self._evict(self._cap.bytes * 7 // 8)

    def _evict(self, down_to: int) -> None:
        freed = self.counters.freed
        self._shrink(down_to)
        self.counters.evictions += self.counters.freed - freed

    def _shrink(self, down_to: int) -> None:
        """Close free blocks, those of the least recently used class first, until no more than that is held."""
        counters = self.counters
        for size in list(self._free):
            blocks = self._free[size]
            while blocks and counters.held > down_to:
                blocks.pop().close()
                counters.freed += 1
                counters.held -= size
            if blocks:
                return
            del self._free[size]

    def _collect(self) -> None:
        """Put what came back into the free lists."""
        while self._back:
            loan = self._back.popleft()
            del self._loans[loan.number]
            self.counters.given += 1
            self._on_return(loan.block)
            self._free.setdefault(loan.block.size, []).append(loan.block)

    def _warm(self, wanted: Iterable[Wanted]) -> None:
        """Have a free block for each, all at once. Raises CaptureMiss when the cap does not hold them."""
        needed: Counter[int] = Counter()
        for shape, dtype in wanted:
            size = math.prod(shape) * dtype.itemsize
            if size >= LEAST:
                needed[size_class(size)] += 1
        ready: list[Block] = []  # out of the free lists, so that making room for one cannot evict another
        try:
            for size, count in needed.items():
                free = self._free.get(size, [])
                ready += [free.pop() for _ in range(min(count, len(free)))]
            for size in (needed - Counter(block.size for block in ready)).elements():
                if not self._make_room(size):
                    self.counters.capture_misses += 1
                    raise CaptureMiss(
                        f"the cap leaves no room for a buffer of {size:,} bytes before the capture"
                    )
                block = Block(size)
                self._hold(block)
                ready.append(block)
        finally:
            for block in ready:
                self._free.setdefault(block.size, []).append(block)
                self._free.move_to_end(block.size)
