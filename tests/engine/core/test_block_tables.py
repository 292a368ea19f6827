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
    st.tuples(st.sampled_from(["grow", "release", "gather"]), st.integers(0, 5), st.integers(1, 40)),
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
            chosen = [each for each in sequences.values() if each.pages]
            if chosen:
                got = tables.gather(chosen).tolist()
                longest = max(len(each.pages) for each in chosen)
                assert got == [each.pages + [NULL] * (longest - len(each.pages)) for each in chosen]


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
