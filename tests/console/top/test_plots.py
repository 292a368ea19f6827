"""Plots: dots count what they show, empty is unknown, and a line is told from a fill by its shape."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from arc.console.top import plots
from arc.console.top.lines import Piece, text_of, width_of
from arc.console.top.views import panels
from hypothesis import given
from hypothesis import strategies as st

from .recorded import recorded

VALUES = st.lists(st.none() | st.floats(0, 100), min_size=2, max_size=40).map(lambda v: v[: len(v) // 2 * 2])


def dots(lines: list) -> int:
    return sum(
        (ord(letter) - 0x2800).bit_count() for line in lines for letter in text_of(line) if letter != " "
    )


@given(VALUES, st.integers(1, 8))
def test_a_fill_has_the_dots_of_its_values(values: list[float | None], rows: int) -> None:
    drawn = plots.plot(values, None, rows, 100.0)
    assert len(drawn) == rows and {width_of(line) for line in drawn} == {len(values) // 2}
    expected = [0 if not v else max(1, round(4 * rows * v / 100)) for v in values]
    assert dots(drawn) == sum(expected)


@given(VALUES, st.randoms(), st.integers(1, 8))
def test_a_line_lies_over_its_fill_dot_by_dot(values: list[float | None], dice: Random, rows: int) -> None:
    """Against the rule itself: a dot is there where the fill reaches it or the line crosses it."""
    line = [value if dice.random() < 0.5 else 100 * dice.random() for value in values]
    levels = [plots._level(value, 4 * rows, 100.0) for value in values]
    strokes = plots._strokes([plots._level(value, 4 * rows, 100.0) for value in line])
    places = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
    expected: list[list[Piece]] = []
    for base in range(4 * (rows - 1), -1, -4):
        cells: list[Piece] = []
        for cell in range(len(values) // 2):
            bits = stroke = 0
            for side, dots in enumerate(places):
                column = 2 * cell + side
                for dot, bit in enumerate(dots):
                    bits |= bit if levels[column] > base + dot else 0
                    stroke |= bit if strokes[column][0] <= base + dot < strokes[column][1] else 0
            cells.append(
                (chr(0x2800 + (bits | stroke)) if bits | stroke else " ", "line" if stroke else "fill")
            )
        expected.append(cells)
    drawn: list[list[Piece]] = [
        [(letter, role) for text, role in row for letter in text]
        for row in plots.plot(values, line, rows, 100.0)
    ]
    seen = [[cell for cell in row if cell[0] != " "] for row in drawn]
    assert [text_of(row) for row in drawn] == [text_of(row) for row in expected]
    assert seen == [[cell for cell in row if cell[0] != " "] for row in expected]


@given(
    st.lists(st.sampled_from([("  x", "fill"), (" ", "line"), ("yy ", "line"), ("z", "fill")])),
    st.sets(st.integers(0, 30)),
)
def test_marks_go_through_the_empty_cells_alone(pieces: list[Piece], cells: set[int]) -> None:
    letters = [(letter, role) for text, role in pieces for letter in text]
    expected = [
        ("┊", "mark") if each[0] == " " and cell in cells else each for cell, each in enumerate(letters)
    ]
    event = recorded().events.events[-1]
    drawn = panels._through(pieces, dict.fromkeys(cells, event))
    assert [(letter, role) for text, role in drawn for letter in text] == expected
    assert all(text for text, _ in drawn)


def test_a_fill_grows_from_the_bottom_left_to_right() -> None:
    assert [text_of(line) for line in plots.plot([1, 2, 3, 4], None, 1, 4)] == ["⣠⣾"]
    assert [text_of(line) for line in plots.plot([4, 8], None, 2, 8)] == ["⢸", "⣿"]


def test_unknown_is_empty_and_the_smallest_value_is_seen() -> None:
    assert text_of(plots.plot([None, None, 0, 0], None, 1, 4)[0]) == "  "
    assert text_of(plots.plot([0.0001, 0], None, 1, 100)[0]) == "⡀"


@given(VALUES)
def test_a_line_joins_its_points(values: list[float | None]) -> None:
    """Each column has a dot at its own level, and the columns in between leave no gap."""
    strokes = plots._strokes([plots._level(value, 16, 100.0) for value in values])
    for (start, stop), value in zip(strokes, values, strict=True):
        level = plots._level(value, 16, 100.0)
        assert (start < stop) == (level > 0)
        assert level == 0 or start <= level - 1 < stop
    for (a, b), (c, d) in itertools.pairwise(strokes):
        if a < b and c < d:
            assert c <= b and a <= d  # they touch


def test_line_and_fill_differ_without_colour() -> None:
    drawn = plots.plot([2] * 4, [4] * 4, 1, 4)
    assert text_of(drawn[0]) == "⣭⣭" and drawn[0][0][1] == "line"
    drawn = plots.plot([1] * 4, [3] * 4, 3, 3, ascii_dots=True)
    assert [text_of(line) for line in drawn] == ["====", "    ", "####"]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=5))
def test_the_axis_is_round_and_high_enough(values: list[float]) -> None:
    top = plots.top_of(values)
    assert top >= max(values) * 0.999 and top > 0
    assert max(values) < 1e-9 or top <= max(values) * 1.7


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=4).filter(lambda parts: sum(parts) > 0),
    st.integers(4, 80),
)
def test_a_bar_is_as_wide_as_asked_and_shows_every_part(parts: list[int], width: int) -> None:
    bar = plots.bar([(part, "abcd"[index], "fill") for index, part in enumerate(parts)], width)
    assert width_of(bar) == width
    assert {text[0] for text, _ in bar} == {"abcd"[index] for index, part in enumerate(parts) if part}


def test_columns_take_each_sample_into_the_time_it_covers() -> None:
    samples = recorded().history.samples
    end = samples[-1].time
    seen = plots.columns(samples, end, 60.0, 120, lambda each: float(len(each)))
    assert None not in seen[4:] and set(seen[4:-1]) <= {1.0, 2.0}
    total = plots.columns(
        samples, end, 60.0, 1, lambda each: float(sum(sample.steps or 0 for sample in each))
    )
    inside = [sample for sample in samples if sample.time > end - 60.0]
    assert total[0] == pytest.approx(
        sum(sample.steps for sample in inside), abs=max(s.steps for s in samples)
    )
    assert plots.columns(samples, samples[0].time - 100, 60.0, 10, lambda each: 1.0) == [None] * 10


def test_places_on_the_axis() -> None:
    assert plots.place(100.0, 100.0, 60.0, 60) is None  # the window's end is not in it
    assert plots.place(99.5, 100.0, 60.0, 60) == 59
    assert plots.place(40.0, 100.0, 60.0, 60) == 0
    assert plots.place(39.0, 100.0, 60.0, 60) is None
