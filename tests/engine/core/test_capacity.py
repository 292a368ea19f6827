"""Pages from free memory: the rule, its bounds, and what each refusal says."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from arc.engine.core.capacity import MIB, Capacity, CapacityError, plan
from hypothesis import given

BASE: dict[str, Any] = {
    "free": 1000 * MIB, "on_card": False, "page_bytes": MIB, "page_size": 16, "memory_mib": None,
    "max_running": 8, "max_len": None, "model_limit": 512,
}  # fmt: skip


def planned(**differing: Any) -> Capacity:
    chosen: dict[str, Any] = {**BASE, **differing}
    return plan(**chosen)


def test_on_the_host_no_more_than_the_running_cap_can_fill() -> None:
    sized = planned()
    assert (sized.pages, sized.max_model_len) == (8 * 512 // 16, 512)


def test_half_of_a_smaller_host_and_nine_tenths_of_a_card() -> None:
    assert planned(free=100 * MIB).pages == 50
    assert planned(on_card=True).pages == 900


def test_a_longest_length_that_does_not_fit_is_shortened_when_auto_and_refused_when_asked_for() -> None:
    assert planned(free=40 * MIB).max_model_len == 20 * 16
    with pytest.raises(CapacityError, match=r"model\.max_len = 512.*lower model\.max_len to 320"):
        planned(free=40 * MIB, max_len=512)


def test_refusals_name_the_flag() -> None:
    with pytest.raises(CapacityError, match=r"cache\.memory_mib = 2000 is more than the 1000 MiB"):
        planned(memory_mib=2000)
    with pytest.raises(CapacityError, match=r"model\.max_len = 513 is more than the 512"):
        planned(max_len=513)
    with pytest.raises(CapacityError, match=r"raise cache\.memory_mib"):
        planned(free=MIB)


@given(
    free=st.integers(0, 1 << 40), page_bytes=st.integers(1, 1 << 26), page_size=st.sampled_from([8, 16, 128]),
    memory=st.none() | st.integers(1, 1 << 20), running=st.integers(1, 4096), card=st.booleans(),
    length=st.none() | st.integers(16, 1 << 20), limit=st.integers(16, 1 << 20),
)  # fmt: skip
def test_a_plan_fits_the_memory_and_holds_one_longest_sequence(
    free: int,
    page_bytes: int,
    page_size: int,
    memory: int | None,
    running: int,
    card: bool,
    length: int | None,
    limit: int,
) -> None:
    try:
        sized = plan(
            free=free, on_card=card, page_bytes=page_bytes, page_size=page_size, memory_mib=memory,
            max_running=running, max_len=length, model_limit=limit,
        )  # fmt: skip
    except CapacityError:
        return
    assert 0 < sized.bytes == sized.pages * page_bytes <= free
    assert 0 < sized.max_model_len <= min(limit, sized.pages * page_size)
