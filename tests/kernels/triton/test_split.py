"""How decode attention is cut along the cache: every token once, and no part that holds the launch."""

from __future__ import annotations

import numpy as np
from arc.kernels.triton.split import BLOCK, most_items, programs_wanted, split
from hypothesis import given
from hypothesis import strategies as st

LENGTHS = st.lists(st.one_of(st.integers(1, 600), st.integers(1, 131_072)), min_size=1, max_size=80)


@given(lengths=LENGTHS, wanted=st.integers(1, 400), data=st.data())
def test_every_token_is_walked_once_by_a_part_that_is_not_too_long(lengths, wanted, data):
    counts = [data.draw(st.integers(1, min(length, 5))) for length in lengths]
    cut = split(lengths, counts, wanted)
    assert cut.items.dtype == cut.rows.dtype == np.int32
    assert len(cut.items) <= most_items(len(lengths), wanted)
    walked = {row: [] for row in range(len(lengths))}
    for row, begin, end, part in cut.items.tolist():
        assert begin < end
        assert begin % BLOCK == 0
        walked[row].append((begin, end, part))
    size = cut.items[:, 2] - cut.items[:, 1]
    assert list(size) == sorted(size, reverse=True)
    assert size.max() <= max(256, sum(lengths) / wanted) + BLOCK
    places: list[int] = []
    first = 0
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        pieces = sorted(walked[row])
        assert [begin for begin, _, _ in pieces] == [0, *(end for _, end, _ in pieces[:-1])]
        assert pieces[-1][1] == length
        starts, queries, of_length, first_part, parts = cut.rows[row].tolist()
        assert (starts, queries, of_length) == (first, count, length)
        own = [part for _, _, part in pieces]
        assert own == ([-1] if len(pieces) == 1 else [*range(first_part, first_part + parts)])
        places += [part for part in own if part >= 0]
        first += count
    assert sorted(places) == [*range(cut.parts)]


def test_one_long_row_does_not_hold_the_launch():
    """131,072 tokens beside 63 rows of 1,000: a program that took the long row alone would walk two thirds of all."""
    lengths = [131_072, *[1000] * 63]
    wanted = programs_wanted(processors=132, tiles=1)
    size = np.diff(split(lengths, [1] * 64, wanted).items[:, 1:3])[:, 0]
    busiest = np.zeros(132)
    for each in size:  # as the hardware hands programs out: to whoever is free
        busiest[busiest.argmin()] += each
    assert busiest.max() <= 1.25 * sum(lengths) / 132


def test_rows_of_one_part_need_no_reduction():
    assert split([64] * 500, [1] * 500, 264).parts == 0
    assert split([8192], [1], 1).parts == 0
