"""The matrix of block tables mirrors the sequences' pages, whatever order they come and go in."""

from __future__ import annotations

import hypothesis.strategies as st
from arc.engine.core.block_tables import BlockTables
from arc.engine.sequence import Request, SamplingParams, Sequence, sequence_of
from hypothesis import given

NULL = 999


def a_sequence(number: int) -> Sequence:
    return sequence_of(number, Request(id=str(number), prompt=(1,), params=SamplingParams()))


actions = st.lists(
    st.tuples(
        st.sampled_from(["grow", "release", "gather", "gather"]), st.integers(0, 5), st.integers(1, 40)
    ),
    max_size=60,
)


@given(actions)
def test_gather_gives_each_sequence_its_pages_and_the_null_page_beyond(
    script: list[tuple[str, int, int]],
) -> None:
    tables = BlockTables(NULL)
    sequences = {number: a_sequence(number) for number in range(6)}
    page = 0
    for action, number, count in script:
        seq = sequences[number]
        if action == "grow":
            seq.pages += range(page, page + count)
            page += count
        elif action == "release":
            seq.pages.clear()
            tables.release(number)
        else:
            chosen = [each for each in sequences.values() if each.pages and each.number != 5 - count % 9]
            if chosen:
                got = tables.gather(chosen).tolist()
                longest = max(len(each.pages) for each in chosen)
                assert got == [each.pages + [NULL] * (longest - len(each.pages)) for each in chosen]


def test_the_same_sequences_again_copy_only_what_came_since() -> None:
    tables = BlockTables(NULL)
    sequences = [a_sequence(number) for number in range(3)]
    for seq in sequences:
        seq.pages = list(range(100 * seq.number, 100 * seq.number + 20 * (1 + seq.number)))
    first = tables.gather(sequences)
    sequences[0].pages.append(7)
    again = tables.gather(sequences)
    assert again is first
    assert again.tolist() == [seq.pages + [NULL] * (60 - len(seq.pages)) for seq in sequences]


def test_a_sequence_that_comes_back_with_other_pages_shows_none_of_the_old() -> None:
    tables = BlockTables(NULL)
    one, long = a_sequence(1), a_sequence(2)
    one.pages, long.pages = [1, 2, 3], [4, 5, 6, 7]
    tables.gather([one, long])
    one.pages = [8]
    tables.release(1)
    assert tables.gather([one, long]).tolist() == [[8, NULL, NULL, NULL], [4, 5, 6, 7]]


def test_rows_of_the_gone_are_used_again() -> None:
    tables = BlockTables(NULL)
    for number in range(1000):
        seq = a_sequence(number)
        seq.pages = [number]
        assert tables.gather([seq]).tolist() == [[number]]
        tables.release(number)
    assert len(tables) == 0


def test_more_sequences_than_rows_at_first() -> None:
    tables = BlockTables(NULL)
    sequences = [a_sequence(number) for number in range(300)]
    for seq in sequences:
        seq.pages = [seq.number, seq.number + 1]
    assert tables.gather(sequences).tolist() == [seq.pages for seq in sequences]
