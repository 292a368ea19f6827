"""The Allocator view and the Overview's panel of it: every state says its name, and no window without events a rate."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from arc.console.top.scene import Scene
from arc.console.top.views.allocator import Allocator, deciles
from arc.console.top.views.overview import Overview
from arc.engine.control import allocator_messages as a
from arc.engine.control import protocol as p

from .recorded import SIZES, allocator, picture, scene, texts, widths

MIB = 1 << 20


def state(**changes: Any) -> a.Allocator:
    now = allocator().allocator.now
    assert now is not None
    return msgspec.structs.replace(allocator().allocator, now=msgspec.structs.replace(now, **changes))


def samples(*held: int | None, **counts: int) -> tuple[p.Sample, ...]:
    """Of these held bytes, one a second; None: the allocator was off."""
    sample, zero = (
        picture().samples[-1],
        dict.fromkeys(("hits", "misses", "allocated", "freed", "evictions"), 0),
    )
    assert isinstance(sample, p.Sample)
    return tuple(
        msgspec.structs.replace(
            sample,
            time=sample.time - len(held) + 1 + index,
            allocator=None
            if value is None
            else p.AllocatorCounts(**{**zero, "bypassed": 0, **counts}, held=value, cap=64 * MIB),
        )
        for index, value in enumerate(held)
    )


def shown(view_scene: Scene, size: tuple[int, int] = (120, 40)) -> str:
    lines = Allocator().lines(view_scene, size[0], size[1] - 3)
    assert widths(lines) <= {size[0]} and len(lines) <= size[1] - 3
    return "\n".join(texts(lines))


def panel(view_scene: Scene, size: tuple[int, int]) -> str:
    lines = texts(Overview().lines(view_scene, size[0], size[1] - 3))
    at = next(index for index, line in enumerate(lines) if "Allocator" in line)
    return " ".join(line.split("│")[1] for line in lines[at : at + 2])


@pytest.mark.parametrize("size", SIZES)
def test_a_cap_that_never_bound_is_said(size: tuple[int, int]) -> None:
    never = scene(allocator=state(bound=0))
    assert "cap not reached" in shown(never, size)
    assert "cap bound 3×" in shown(scene(allocator=state(bound=3)), size)
    assert "cap not reached" in panel(never, size)
    large = samples(*[12_345 * MIB] * 20, hits=3, misses=1)
    for bound, says in ((0, "cap not reached"), (1_234_567, "cap bound 1,234,567×")):
        text = panel(scene(allocator=state(bound=bound), samples=large), size)
        assert says in text and "12,345 of 64 MiB" in text and "75.0 %" in text


@pytest.mark.parametrize("size", SIZES)
def test_unbounded_is_loud_and_off_is_no_zero(size: tuple[int, int]) -> None:
    unbounded = scene(allocator=state(cap=None, cap_from="alloc.cap_mib = 0: unbounded, for comparison only"))
    assert "▲ unbounded" in shown(unbounded, size) and "for comparison only" in shown(unbounded, size)
    assert "▲ unbounded" in panel(unbounded, size)
    off = scene(
        allocator=state(enabled=False, cap=None, cap_from="alloc.enabled is off"), samples=samples(None, None)
    )
    assert "off" in panel(off, size)
    text = shown(off, size)
    assert (
        "alloc.enabled is off" in text
        and "nothing is known of this window" in text
        and "hit rate" not in text
    )


def test_a_window_in_which_nothing_was_taken_has_no_hit_rate() -> None:
    quiet = scene(samples=samples(*[8 * MIB] * 20, bypassed=5))
    assert "hit rate" not in shown(quiet) and "bypassed 100" in shown(quiet)
    busy = scene(samples=samples(*[8 * MIB] * 20, hits=3, misses=1, allocated=1))
    assert "hit rate 75.0 %" in shown(busy)


def test_seldom_is_not_never() -> None:
    steps = sum(sample.steps for sample in samples(*[MIB] * 20))
    rare = samples(*[MIB] * 20)
    one = msgspec.structs.replace(rare[0].allocator, freed=1) if rare[0].allocator else None
    rare = (msgspec.structs.replace(rare[0], allocator=one), *rare[1:])
    assert steps > 200
    rates = next(line for line in shown(scene(samples=rare)).splitlines() if "alloc/step" in line)
    assert rates.split()[:4] == ["alloc/step", "0.00", "free/step", "<0.01"]


def test_growth_is_told_by_tenths_of_the_window() -> None:
    grown = samples(*(n * MIB for n in range(51)))
    assert deciles(grown) == [n * 5 * MIB for n in range(11)]
    line = next(
        each for each in shown(scene(samples=grown), (80, 24)).splitlines() if each.startswith("  held, MiB")
    )
    assert line.split()[2:] == [str(n * 5) for n in range(11)]
    assert deciles(()) == [None] * 11
    assert deciles(samples(None, 5, None))[0] is None
    large = samples(*[999_999 * MIB] * 20)
    line = next(
        each for each in shown(scene(samples=large), (80, 24)).splitlines() if each.startswith("  held, MiB")
    )
    assert line.split()[2:] == ["999999"] * 11 or line.count("999999") == 11


def test_every_size_has_a_bar_as_long_as_its_bytes() -> None:
    classes = (
        a.SizeClass(size=2 * MIB, free=3, live=1, recency=0),
        a.SizeClass(size=16 * MIB, free=1, live=0, recency=1),
    )
    lines = shown(scene(allocator=state(classes=classes))).splitlines()
    small = next(line for line in lines if line.strip().startswith("2.00 MiB"))
    large = next(line for line in lines if line.strip().startswith("16.0 MiB"))
    assert small.count("█") * 3 in range(small.count("▒") - 2, small.count("▒") + 3)
    assert 2 * (small.count("█") + small.count("▒")) == large.count("▒")
    assert "1 in use  3 free" in small


def test_sizes_that_have_no_room_are_counted() -> None:
    many = tuple(a.SizeClass(size=(n + 1) * MIB, free=1, live=0, recency=n) for n in range(100))
    for size in SIZES:
        text = shown(scene(allocator=state(classes=many)), size)
        bars = text.count("in use  1 free")
        assert f"{100 - bars} more sizes have no room here" in text


def test_faults_of_the_instrument_are_shown() -> None:
    text = shown(scene(allocator=state(overdue=2, capture_misses=5)))
    assert "outlived their step unannounced 2" in text and "misses in captures 5" in text


def test_the_past_shows_what_it_knows_and_no_more() -> None:
    series = samples(*(n * MIB for n in range(30)))
    past = scene(samples=series, at=series[10].time)
    text = shown(past)
    assert "10 of 64 MiB" in text
    for unknown in ("cap not reached", "cap bound", "Since the start", "Size classes", "cap from"):
        assert unknown not in text


def test_an_engine_without_one_is_na() -> None:
    without = scene(allocator=a.Allocator(seconds=10.0, steps=0, window=None, now=None))
    assert "NA" in shown(without) and "NA" in panel(without, (120, 40))


def test_export_has_the_numbers() -> None:
    exported = Allocator().export(scene())
    assert exported is not None and exported.value["now"].held == allocator().seconds[-1].held
