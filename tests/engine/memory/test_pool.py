"""The pool: what it hands out never overlaps, what it holds stays under the cap, and nothing is lost."""

from __future__ import annotations

import contextlib
import gc
import resource
import threading
from pathlib import Path

import pytest
import torch
from arc.engine.memory.allocator import CaptureMiss
from arc.engine.memory.cap import MIB
from arc.engine.memory.classes import LEAST, size_class
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .pools import check, pool

U8 = torch.uint8


def test_a_buffer_is_what_was_asked_for() -> None:
    made = pool()
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.bool):
        taken = made.take((7, 5, 99_999), dtype)
        assert taken is not None
        assert taken.shape == (7, 5, 99_999) and taken.dtype == dtype and taken.is_contiguous()
        assert taken.data_ptr() % 4096 == 0
        taken.zero_()


def test_small_ones_are_torchs_own_and_counted() -> None:
    made = pool()
    assert made.take((LEAST - 1,), U8) is None
    assert made.take((0, 5), U8) is None
    assert made.take((LEAST,), U8) is not None
    made.bypass()
    assert (made.counters.small, made.counters.own, made.counters.taken) == (2, 1, 1)
    bypassed = made.state().bypassed
    assert bypassed["below 1 MiB"] == 2 and bypassed["the operation makes its own result"] == 1


def test_a_buffer_comes_back_with_its_last_view_and_not_before() -> None:
    made = pool()
    taken = made.take((LEAST,), U8)
    assert taken is not None
    taken.fill_(3)
    view = taken.view(2, -1)[1, 5:]
    address = taken.data_ptr()
    del taken
    other = made.take((LEAST,), U8)
    assert other is not None and other.data_ptr() != address
    assert (view == 3).all()
    del view
    again = made.take((LEAST,), U8)
    assert again is not None and again.data_ptr() == address
    assert made.counters.hits == 1
    check(made)


def test_the_next_operation_gets_what_the_last_one_left() -> None:
    """The newest of the free ones, whose lines are still in the processor's cache."""
    made = pool()
    both = [made.take((LEAST,), U8), made.take((LEAST,), U8)]
    address = both[0].data_ptr()  # pyright: ignore[reportOptionalMemberAccess]
    both.pop()
    made.end_step()
    both.clear()
    again = made.take((LEAST,), U8)
    assert again is not None and again.data_ptr() == address


def test_one_that_is_held_past_its_step_is_left_alone_and_counted() -> None:
    made = pool()
    kept, forgotten = made.take((LEAST,), U8), made.take((LEAST,), U8)
    assert kept is not None and forgotten is not None
    made.keep(kept[10:])
    made.keep(torch.zeros(3))  # not the pool's: nothing to do
    forgotten.fill_(1)
    made.end_step()
    assert made.counters.overdue == 1
    assert made.state().kept == LEAST and made.state().live == 2 * LEAST
    assert (forgotten == 1).all()
    del forgotten
    made.end_step()
    assert made.counters.overdue == 0
    del kept
    made.end_step()
    assert made.state().live == 0
    check(made)


def test_eviction_takes_the_least_recently_used_class_and_goes_to_seven_eighths() -> None:
    made = pool(cap_mib=16)
    for size in (2, 3, 4, 6):  # 15 MiB
        made.take((size * MIB,), U8)
    made.take((2 * MIB,), U8)  # of all of them, the first is now the one used last
    made.end_step()
    assert made.counters.evictions == 0 and made.state().bound == 0
    made.take((5 * MIB,), U8)
    made.end_step()
    # 20 MiB are over the cap: 3, then 4 go, and what is left is at most 14
    assert [each.size // MIB for each in made.state().classes] == [2, 5, 6]
    assert made.counters.evictions == 2 and made.state().bound == 1
    assert made.counters.held <= 14 * MIB
    check(made)


def test_what_the_cap_cannot_hold_is_bypassed_by_name() -> None:
    made = pool(cap_mib=4)
    assert made.take((5 * MIB,), U8) is None
    first = made.take((3 * MIB,), U8)
    assert made.take((2 * MIB,), U8) is None
    assert first is not None
    assert (made.counters.large, made.counters.full) == (1, 1)
    assert made.state().bound == 2
    check(made)


def test_a_lowered_cap_evicts_at_once_and_waits_for_what_is_in_use() -> None:
    made = pool(cap_mib=32)
    inuse = made.take((10 * MIB,), U8)
    for size in (4, 5, 6):
        made.take((size * MIB,), U8)
    made.configure(True, 8)
    assert made.counters.held == 10 * MIB  # in use, and over the cap
    check(made)
    assert inuse is not None
    inuse.fill_(1)
    del inuse
    made.end_step()
    assert made.counters.held == 0
    check(made)


def test_unbounded_never_evicts_and_off_holds_nothing() -> None:
    made = pool(cap_mib=0)
    for size in range(1, 40):
        made.take((size * MIB,), U8)
    made.end_step()
    assert made.state().cap is None and "unbounded" in made.state().cap_from
    assert made.counters.freed == 0 and made.counters.held > 400 * MIB
    made.configure(False, 0)
    assert made.counters.held == 0 and not made.counters.enabled
    asked = (made.counters.taken, made.counters.bypassed)
    assert made.take((MIB,), U8) is None
    made.bypass()
    assert (made.counters.taken, made.counters.bypassed) == asked
    check(made)


def test_what_was_taken_before_it_was_turned_off_is_freed_when_it_comes_back() -> None:
    made = pool()
    taken = made.take((MIB,), U8)
    made.configure(False, 64)
    assert taken is not None and made.counters.held == MIB
    del taken
    made.end_step()
    assert made.counters.held == 0
    check(made)


def test_trim_frees_what_is_free_and_measures_an_auto_cap_anew() -> None:
    free = [8 << 30]
    made = pool(cap_mib=None)
    made._measure = lambda: free[0]
    made.trim()
    assert made.cap is not None and made.cap.bytes == 1024 * MIB
    inuse = made.take((3 * MIB,), U8)
    made.take((5 * MIB,), U8)
    free[0] = 1 << 30
    assert made.trim() == 5 * MIB
    assert made.cap.bytes == 128 * MIB
    assert inuse is not None and made.counters.held == 3 * MIB
    assert made.counters.evictions == 0 and made.counters.freed == 1
    check(made)


def test_other_flags_changing_do_not_move_the_cap() -> None:
    made = pool(cap_mib=None, free=1 << 30)
    made._measure = lambda: 1
    made.configure(True, None)
    assert made.cap is not None and made.cap.bytes == 128 * MIB


def test_freed_memory_is_the_systems_again() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    made = pool(cap_mib=0)
    before = resident()
    taken = [made.take((8 * MIB,), U8) for _ in range(16)]
    for each in taken:
        assert each is not None
        each.fill_(1)
    each = None
    assert resident() - before > 100 * MIB
    taken.clear()
    made.trim()
    assert resident() - before < 28 * MIB


def test_buffers_may_die_on_any_thread() -> None:
    made = pool(cap_mib=0)
    for _ in range(50):
        taken = [made.take((LEAST,), U8) for _ in range(8)]
        threads = [threading.Thread(target=taken.pop) for _ in range(8)]
        for thread in threads:
            thread.start()
        made.take((LEAST,), U8)
        for thread in threads:
            thread.join()
    made.end_step()
    assert made.state().live == 0
    check(made)


def test_conservation_is_broken_by_a_lost_buffer() -> None:
    """The check itself: one that vanished is seen."""
    made = pool()
    made.take((MIB,), U8)
    made.end_step()
    made._free[MIB].pop()
    with pytest.raises(AssertionError):
        check(made)


# -- capture ------------------------------------------------------------------------------------------------------


def test_a_capture_finds_what_it_announced() -> None:
    made = pool(cap_mib=8)
    made.take((6 * MIB,), U8)
    wanted = [((MIB,), U8), ((MIB,), U8), ((512, 1024), torch.float32), ((10,), U8)]
    with made.capture(wanted):
        taken = [made.take(*each) for each in wanted]
        assert [each is None for each in taken] == [False, False, False, True]
        misses = made.counters.misses
    assert misses == 1  # the one before the window
    assert made.counters.capture_misses == 0
    check(made)


def test_a_miss_inside_a_capture_names_the_size_and_the_pool_goes_on() -> None:
    made = pool()
    with pytest.raises(CaptureMiss, match="3,145,728 bytes"), made.capture([((MIB,), U8)]):
        made.take((MIB,), U8)
        made.take((3 * MIB,), U8)
    assert made.counters.capture_misses == 1
    assert made.take((3 * MIB,), U8) is not None  # outside, it is had from the system as ever
    made.end_step()
    check(made)


def test_nothing_is_evicted_inside_a_capture() -> None:
    made = pool(cap_mib=8)
    for size in (1, 2, 4):
        made.take((size * MIB,), U8)
    freed = made.counters.freed
    with pytest.raises(CaptureMiss), made.capture([((MIB,), U8)]):
        made.take((3 * MIB,), U8)
    assert made.counters.freed == freed


def test_a_capture_that_the_cap_cannot_hold_does_not_begin() -> None:
    made = pool(cap_mib=4)
    with pytest.raises(CaptureMiss, match="before the capture"), made.capture([((3 * MIB,), U8)] * 2):
        raise AssertionError("it began")
    check(made)


# -- all of it, in any order ----------------------------------------------------------------------------------------


class PoolMachine(RuleBasedStateMachine):
    """Steps that take, keep, fail and capture under caps that change; every buffer carries its own number."""

    @initialize(cap=st.sampled_from([0, 1, 2, 4]))
    def begin(self, cap: int) -> None:
        self.pool = pool(cap_mib=cap)
        self.live: dict[int, torch.Tensor] = {}
        self.kept: set[int] = set()
        self.number = 0

    @rule(size=st.integers(LEAST - 1000, 3 * MIB))
    def take(self, size: int) -> None:
        counters = self.pool.counters
        before = counters.taken + counters.bypassed
        taken = self.pool.take((size,), U8)
        assert counters.taken + counters.bypassed == before + self.pool.counters.enabled
        if taken is not None:
            assert len(taken) == size
            self.number += 1
            self.live[self.number] = taken.fill_(self.number % 251)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.live)))
        del self.live[number]
        self.kept.discard(number)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.live)))
        self.pool.keep(self.live[number])
        self.kept.add(number)

    @rule()
    def end_step(self) -> None:
        self.pool.end_step()
        assert self.pool.counters.overdue == len(self.live) - len(self.kept)
        check(self.pool)

    @rule(sizes=st.lists(st.integers(LEAST, 3 * MIB), max_size=4))
    def a_step_that_fails(self, sizes: list[int]) -> None:
        def step() -> None:
            taken = [self.pool.take((size,), U8) for size in sizes]
            raise RuntimeError(f"after {len(taken)} buffers")

        with contextlib.suppress(RuntimeError):
            step()
        self.pool.end_step()
        assert self.pool.counters.taken == self.pool.counters.given + len(self.live)

    @rule(enabled=st.booleans(), cap=st.sampled_from([0, 1, 2, 3, 5, 8]))
    def configure(self, enabled: bool, cap: int) -> None:
        self.pool.configure(enabled, cap)

    @rule()
    def trim(self) -> None:
        self.pool.trim()
        assert self.pool.counters.held == self.pool.state().live

    @precondition(lambda self: self.pool.counters.enabled)
    @rule(
        wanted=st.lists(st.integers(LEAST, 2 * MIB), max_size=3),
        more=st.lists(st.integers(LEAST, 2 * MIB), max_size=2),
    )
    def capture(self, wanted: list[int], more: list[int]) -> None:
        counters = self.pool.counters
        freed = None
        try:
            with self.pool.capture([((size,), U8) for size in wanted]):
                freed = counters.freed
                taken = [self.pool.take((size,), U8) for size in wanted]
                assert all(each is not None for each in taken)
                for size in more:
                    self.pool.take((size,), U8)
        except CaptureMiss:
            pass
        assert freed in (None, counters.freed)

    @invariant()
    def nothing_overlaps_and_nothing_is_lost(self) -> None:
        if not hasattr(self, "pool"):
            return
        check(self.pool)
        for number, tensor in self.live.items():
            assert bool((tensor == number % 251).all()), "a buffer in use was overwritten"

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.live.clear()
            gc.collect()
            self.pool.end_step()
            assert self.pool.state().live == 0
            check(self.pool)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_classes_are_shared_by_sizes_that_differ_a_little() -> None:
    """What follows the KV length grows every step; its buffers do not."""
    made = pool()
    sizes = range(MIB, 2 * MIB, 4096)
    for size in sizes:
        made.take((size,), U8)
        made.end_step()
    assert made.counters.misses == len({size_class(size) for size in sizes}) <= 9
    assert made.counters.hits == len(sizes) - made.counters.misses
