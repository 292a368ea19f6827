"""The text of a page: what is Prometheus text is read, what is not is refused with the line."""

from __future__ import annotations

import math

import pytest
from arc.console.metrics import dialects
from arc.console.metrics.page import NotMetrics, parse
from hypothesis import given
from hypothesis import strategies as st

from .pages import IDLE, LOADED, reading

NAME = "vllm:num_requests_running"


def every(name: str) -> bool:
    return True


def test_the_recorded_pages_are_read_whole_and_in_part() -> None:
    for text in (IDLE, LOADED):
        whole, part = parse(text, every), parse(text, dialects.wanted)
        assert len(whole.series) > 100 and whole.first == part.first == "python_gc_objects_collected_total"
        assert set(part.series) < set(whole.series)
        assert all(whole.series[name] == series for name, series in part.series.items())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        ("<!DOCTYPE html>\n<html>\n", "line 1: <!DOCTYPE html>"),
        ('{"error": "not found"}\n', "no metric of vLLM"),
        ("a 1\nNot Found\n", "line 2: Not Found"),
        ("a 1\n# x\n\x1b[2Jb 2\n", "line 3: ?[2Jb 2"),
        (f"{NAME}{{a=\"b\" 1\n", f"line 1: {NAME}"),
        (f"{NAME} one\n", "no Prometheus text, line 1"),
        (f"{NAME} 1\n{NAME}{{a=\"1\",a=\"2\"}} 1\n", "line 2"),
        (f"{NAME} 1_000\n", "line 1"),
        (f"{NAME} 1", "breaks off in the middle of a line"),
        (f"{NAME} 1\n# HELP a", "breaks off in the middle of a line"),
        ("<!DOCTYPE html><html></html>", "no Prometheus text, line 1: <!DOCTYPE html>"),
        ("<html>\n</html>", "no Prometheus text, line 1: <html>"),
        (f"{NAME} 1\n<hr>", "no Prometheus text, line 2: <hr>"),
        ("go_goroutines 12\n", "no metric of vLLM, SGLang or arc: it begins with go_goroutines"),
        ("vllm:prompt_tokens_total 3\n", "without vllm:num_requests_running"),
    ],
)  # fmt: skip
def test_what_is_no_page_of_an_engine_is_said(text: str, says: str) -> None:
    with pytest.raises(NotMetrics) as raised:
        reading(text)
    message = str(raised.value)
    assert says in message and message.isprintable() and len(message) < 300


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        reading(text)
    except NotMetrics as refused:
        assert str(refused).isprintable()


@given(st.integers(0, len(LOADED) - 1))
def test_a_page_cut_off_anywhere_is_refused_or_read_as_far_as_it_goes(length: int) -> None:
    """What is told of a part is what the whole tells, or why it is not told."""
    whole = reading(LOADED)
    try:
        part = reading(LOADED[:length])
    except NotMetrics:
        return
    assert part.counters.items() <= whole.counters.items()
    assert part.histograms.items() <= whole.histograms.items()
    assert set(whole.counters) - set(part.counters) <= set(part.why)
    assert set(whole.histograms) - set(part.histograms) <= set(part.why)


@given(
    st.permutations(["engine", "model_name", "le", "reason"]), st.floats(allow_nan=True, allow_infinity=True)
)
def test_neither_the_order_of_labels_nor_the_value_matters_to_the_parser(
    order: list[str], value: float
) -> None:
    labels = ",".join(f'{name}="{name[0]}"' for name in order)
    (series,) = parse(f"x{{{labels}}} {value!r}\n", every).series["x"]
    assert series.labels == {name: name[0] for name in order}
    assert series.value == value or (math.isnan(value) and math.isnan(series.value))


def test_of_two_alike_the_later_counts() -> None:
    text = 'x{a="1",b="2"} 1\nx{b="2",a="1"} 5\n'
    assert [each.value for each in parse(text, every).series["x"]] == [5.0]
