"""Size classes and the cap's rule, over all sizes."""

from __future__ import annotations

import pytest
from arc.engine.flags import FLAGS, FlagError, check, parse
from arc.engine.memory.cap import HIGH, LOW, MIB, cap_of, derive
from arc.engine.memory.classes import LEAST, PER_DOUBLING, size_class
from hypothesis import given
from hypothesis import strategies as st

SIZES = st.integers(LEAST, 1 << 45) | st.integers(20, 45).flatmap(
    lambda power: st.integers((1 << power) - 2, (1 << power) + 2).filter(lambda size: size >= LEAST)
)


@given(SIZES)
def test_a_class_holds_its_sizes_and_wastes_less_than_an_eighth(size: int) -> None:
    rounded = size_class(size)
    assert size <= rounded
    assert (rounded - size) * 8 < size
    assert rounded % 4096 == 0  # whole pages
    assert size_class(rounded) == rounded  # a class is of its own class


@given(SIZES, SIZES)
def test_classes_are_in_the_order_of_their_sizes(one: int, two: int) -> None:
    small, large = sorted((one, two))
    assert size_class(small) <= size_class(large)


@given(st.integers(20, 44))
def test_there_are_few_classes(power: int) -> None:
    """A buffer that grows by a byte a step meets eight sizes until it is twice as large."""
    steps = range(1 << power, 2 << power, max(1, (1 << power) // 999))
    assert len({size_class(size) for size in steps}) <= PER_DOUBLING + 1


@given(st.integers(0, 1 << 45))
def test_an_auto_cap_is_an_eighth_between_its_bounds_and_never_more_than_there_is(free: int) -> None:
    cap = derive(free)
    assert cap <= free // 2 or free < 2
    assert cap <= HIGH
    if free >= 2 * LOW:
        assert cap == min(HIGH, max(LOW, free // 8))


def test_the_rule_at_the_figures_of_a_small_and_a_large_machine() -> None:
    assert derive(262 * MIB) == 64 * MIB  # where a fixed 1 GiB never bound
    assert derive(4096 * MIB) == 512 * MIB
    assert derive(128 << 30) == 1024 * MIB
    assert derive(100 * MIB) == 50 * MIB


def test_free_memory_is_measured_for_auto_alone() -> None:
    measured: list[int] = []

    def free() -> int:
        measured.append(1)
        return 800 * MIB

    assert cap_of(7, free).bytes == 7 * MIB
    assert cap_of(0, free).bytes is None
    assert measured == []
    auto = cap_of(None, free)
    assert auto.bytes == 100 * MIB and "800 MiB" in auto.why


@pytest.mark.parametrize("text", ["-1", "2g", "unbounded", "none", "", "1.5", "auto ", "0x10", "Auto"])
def test_a_mistyped_cap_is_an_error_and_never_unbounded(text: str) -> None:
    with pytest.raises(FlagError, match=r"alloc\.cap_mib cannot be"):
        parse(FLAGS["alloc.cap_mib"], text)


@pytest.mark.parametrize("value", [-1, True, False, 1.0, None, "2g", "0", 1 << 40])
def test_so_is_one_of_the_wrong_type(value: object) -> None:
    with pytest.raises(FlagError):
        check(FLAGS["alloc.cap_mib"], value)


def test_what_a_cap_may_be() -> None:
    flag = FLAGS["alloc.cap_mib"]
    assert [parse(flag, text) for text in ("auto", "0", "64")] == ["auto", 0, 64]
