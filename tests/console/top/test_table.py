"""The table: order, filter, a cursor that stays with its row, and work only for the rows in sight."""

from __future__ import annotations

import re

import pytest
from arc.console.top.lines import text_of, width_of
from arc.console.top.table import Column, Table, parse_filter
from hypothesis import given
from hypothesis import strategies as st

Row = tuple[str, int | None]


def table(*, follows_end: bool = False) -> Table[Row]:
    return Table(
        (
            Column("name", 8, lambda row: (row[0], "text"), lambda row: row[0], is_right=False, grows=True),
            Column(
                "size", 6, lambda row: ("--" if row[1] is None else str(row[1]), "text"), lambda row: row[1]
            ),
            Column("wide", 6, lambda row: ("w", "dim"), lambda row: 0, least=100),
        ),
        lambda row: row[0],
        text=lambda row: row[0],
        empty="none",
        follows_end=follows_end,
    )


def rows(count: int) -> tuple[Row, ...]:
    return tuple((f"row-{index}", (index * 7919) % 1000) for index in range(count))


def test_ten_thousand_rows_cost_the_rows_in_sight() -> None:
    big, many = table(), rows(10_000)
    lines = big.lines(many, 80, 20)
    assert len(lines) == 20 and big.lines_made == 19
    big.go(9_999)
    lines = big.lines(many, 80, 20)
    assert big.lines_made == 38
    assert text_of(lines[-1]).startswith("▸ row-9999") and big.position() == "9982–10000 of 10,000"


@given(
    st.integers(0, 60), st.integers(2, 30), st.integers(20, 150), st.lists(st.integers(-70, 70), max_size=8)
)
def test_the_cursor_is_always_in_sight(count: int, height: int, width: int, moves: list[int]) -> None:
    each, some = table(), rows(count)
    for by in (0, *moves):
        each.move(by)
        lines = each.lines(some, width, height)
        assert len(lines) <= max(2, height)
        assert {width_of(line) for line in lines} == {width}
        marked = [line for line in lines if text_of(line).startswith("▸")]
        assert len(marked) == (1 if count else 0)


def test_the_cursor_stays_with_its_row_while_the_order_moves() -> None:
    each = table()
    each.lines(rows(50), 80, 10)
    each.go(20)
    chosen = each.chosen
    each.move_sort(2, 80)
    each.lines(rows(50), 80, 10)
    assert each.chosen == chosen
    fresh = tuple(reversed(rows(50)))
    each.lines(fresh, 80, 10)
    assert each.chosen == chosen


def test_a_row_that_goes_away_leaves_the_cursor_in_its_place() -> None:
    each = table()
    each.lines(rows(50), 80, 10)
    each.go(20)
    each.lines(tuple(row for row in rows(50) if row[0] != "row-20"), 80, 10)
    assert each.chosen == ("row-21", rows(50)[21][1])
    each.lines(rows(3), 80, 10)
    assert each.place == 2
    each.lines((), 80, 10)
    assert each.chosen is None


def test_sorting_goes_through_the_columns_in_sight_and_back_to_the_rows_own_order() -> None:
    each, some = table(), (("b", 2), ("a", None), ("c", 1))
    order = []
    for _ in range(4):
        each.move_sort(1, 80)
        order.append((each.sorted_by, [row[0] for row in each.arrange(some)]))
    assert order == [
        (0, ["a", "b", "c"]),
        (1, ["b", "c", "a"]),
        (None, ["b", "a", "c"]),
        (0, ["a", "b", "c"]),
    ]
    each.move_sort(-2, 80)
    assert each.sorted_by == 1
    each.move_sort(1, 120)
    assert each.sorted_by == 2  # it is in sight at this width


def test_a_click_on_the_head_sorts_and_turns() -> None:
    each = table()
    assert "size" in text_of(each.lines(rows(5), 40, 10)[0])
    at = text_of(each.lines(rows(5), 40, 10)[0]).index("size")
    each.sort_at(at, 40)
    assert (each.sorted_by, each.descending) == (1, True)
    assert "size↓" in text_of(each.lines(rows(5), 40, 10)[0])
    each.sort_at(at, 40)
    assert (each.sorted_by, each.descending) == (1, False)
    each.sort_at(3, 40)
    assert (each.sorted_by, each.descending) == (0, False)


def test_a_filter_and_its_opposite_share_the_rows() -> None:
    each, some = table(), rows(40)
    each.filter = parse_filter("1$")
    kept = each.arrange(some)
    each.filter = parse_filter("!1$")
    rest = each.arrange(some)
    assert {row[0] for row in kept} == {"row-1", "row-11", "row-21", "row-31"}
    assert sorted(kept + rest) == sorted(some)
    each.filter = parse_filter("nowhere")
    assert "nothing matches /nowhere" in text_of(each.lines(some, 80, 5)[1])
    assert parse_filter("") is None and parse_filter("!") is None
    with pytest.raises(re.error):
        parse_filter("(")


def test_a_table_that_follows_its_end_stops_when_the_operator_looks_back() -> None:
    each = table(follows_end=True)
    each.lines(rows(10), 80, 5)
    assert each.place == 9
    each.lines(rows(12), 80, 5)
    assert each.place == 11
    each.move(-3)
    each.lines(rows(20), 80, 5)
    assert each.chosen == rows(20)[8]
    each.go(19)
    each.lines(rows(25), 80, 5)
    assert each.place == 24


def test_a_click_chooses_the_row_in_sight() -> None:
    each = table()
    each.lines(rows(50), 80, 10)
    each.go(30)
    each.lines(rows(50), 80, 10)
    each.click(2)
    assert each.place == 24
    each.click(200)
    assert each.place == 24


def test_the_arrow_of_the_order_moves_no_head() -> None:
    full: Table[str] = Table(
        (
            Column("name", 6, lambda row: (row, "text"), lambda row: row, is_right=False),
            Column("cached", 6, lambda row: ("1", "text"), len),
            Column("left", 4, lambda row: ("x", "text"), len, is_right=False),
            Column("pages", 5, lambda row: ("2", "text"), len),
        ),
        lambda row: row,
        text=str,
        empty="none",
    )
    plain = text_of(full.lines(("a", "b"), 40, 5)[0])
    for index in range(4):
        full.sorted_by, full.descending = index, True
        head = text_of(full.lines(("a", "b"), 40, 5)[0])
        assert head.replace("↓", " ") == plain and "↓" in head
