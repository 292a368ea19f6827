"""Pieces and lines: whatever the text, a line is as wide as it was asked to be."""

from __future__ import annotations

from arc.console.top import figures, lines
from arc.engine.control.protocol import NA
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cf", "Mn", "Me", "Mc")), max_size=40)
LINE = st.lists(st.tuples(TEXT, st.just("text")), max_size=5)


@given(LINE, st.integers(0, 60))
def test_fit_gives_exactly_the_width(line: lines.Line, width: int) -> None:
    assert lines.width_of(lines.fit(line, width)) == width


@given(LINE, st.integers(0, 60))
def test_what_fits_is_not_changed(line: lines.Line, more: int) -> None:
    width = lines.width_of(line) + more
    assert lines.text_of(lines.fit(line, width)) == lines.text_of(line) + " " * more


@given(TEXT, st.integers(1, 60))
def test_what_is_cut_off_shows(text: str, width: int) -> None:
    clipped = lines.clip(text, width)
    assert cell_len(clipped) <= width
    assert clipped == text or clipped.endswith("…")


@given(LINE, st.text("abc", max_size=10), st.integers(10, 60))
def test_spread_keeps_the_end_whole(line: lines.Line, end: str, width: int) -> None:
    spread = lines.spread(line, [(end, "dim")], width)
    assert lines.width_of(spread) == width and lines.text_of(spread).endswith(end)


@given(st.lists(st.lists(LINE, max_size=4), min_size=1, max_size=3), st.integers(1, 5))
def test_blocks_beside_each_other_fill_a_rectangle(blocks: list[list[lines.Line]], height: int) -> None:
    joined = lines.beside([(block, 12) for block in blocks], height, [("│", "rule")])
    assert len(joined) == height
    assert {lines.width_of(line) for line in joined} == {13 * len(blocks) - 1}


@given(TEXT)
def test_ascii_text_is_ascii_and_as_long(text: str) -> None:
    plain = lines.ascii_only(text)
    assert plain.isascii() and len(plain) == len(text)


def test_state_glyphs_differ_in_ascii_too() -> None:
    glyphs = "●○◐◌▲"
    assert len(set(lines.ascii_only(glyphs))) == len(glyphs)


@given(st.floats(0, 1e15), st.integers(6, 9))
def test_a_count_fits_into_its_place(value: float, width: int) -> None:
    assert len(figures.count(value, width)) <= width


@given(st.floats(0, 1e15))
def test_a_decimal_fits_and_means_its_value(value: float) -> None:
    text = figures.decimal(value, 7)
    assert len(text) <= 7
    units = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    read = float(text.rstrip("kMGT").replace(",", "")) * units.get(text[-1], 1)
    assert abs(read - value) <= max(0.006 * value, 0.0051)


@given(st.floats(-1e-2, 1e-2))
def test_what_is_shown_as_zero_has_no_sign(value: float) -> None:
    assert figures.decimal(value) != "-0.00"


def test_unknown_is_not_zero() -> None:
    assert (
        figures.count(None) == figures.decimal(None) == figures.percent(3, 0) == figures.percent(None) == "--"
    )
    assert figures.count(0) == "0" and figures.percent(0, 5) == "0.0"
    assert figures.milliseconds(NA("past the last bucket")) == "--"
    assert figures.mebibytes(NA("why")) == "--"
