"""What is made of measurements: verdicts, comparisons, and files that say what they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from arc.console.bench import provenance, scrape
from arc.console.bench.admission import ARMS, ArmWork, judge, lines, ratio
from arc.console.bench.chart import Chart, Series, png
from arc.console.bench.chart import lines as chart_lines
from arc.console.bench.compare import compared, differences
from arc.console.bench.layouts import Copies, Rates
from arc.console.bench.layouts import counted as counted_copies
from arc.console.bench.load import Bounds, Measured
from arc.console.bench.result import (
    FORMAT,
    Cell,
    Engine,
    Pass,
    Result,
    Server,
    one_revision,
    pass_of,
    read,
    spread_of,
    write,
)
from arc.console.bench.spec import Acceptance, Drafts
from arc.console.bench.work import Lengths, Plan
from arc.console.exits import Failure
from arc.engine.control import protocol as p
from arc.engine.control.protocol import NA

from ..test_control_commands import run

SIZES = (1, 8, 32)


def counted(rate: float | NA, batch: float | NA = 4.0) -> Engine:
    return Engine(
        seconds=10.0, steps=100, effective_batch=batch, admitted=8.0, step_ms=1.0, output_rate=rate, preemptions=0,
        recomputed_tokens=0,
    )  # fmt: skip


def a_pass(rate: float, **more: Any) -> Pass:
    fields: dict[str, Any] = {
        "seed": 0, "seconds": 10.0, "sent": 5, "finished": 5, "prompt_tokens": 50, "output_tokens": int(10 * rate),
        "texts": 5, "late": 0, "most_under_way": 1, "good": None, "ttft": None, "itl": None, "tpot": None, "e2e": None,
        "errors": {}, "messages": {}, "engine": counted(rate),
    }  # fmt: skip
    return Pass(**(fields | more))


def cells(curve: dict[int, float], **rates: float) -> list[Cell]:
    """Arms A, C and D at 100 tok/s for each under way, B at the curve's share of it."""
    found = []
    for arm in ARMS:
        for size in SIZES:
            rate = 100.0 * size * (curve[size] if arm == "B" else 1.0) * rates.get(f"{arm}{size}", 1.0)
            found.append(
                Cell(
                    name=f"{arm} x {size}", labels={"arm": arm, "size": size}, revision="abc",
                    passes=(a_pass(0.9 * rate), a_pass(rate), a_pass(1.1 * rate)),
                )
            )  # fmt: skip
    return found


def word(found: list[Cell], *changed: str) -> tuple[str, str]:
    verdict = judge(found, SIZES, 0.15, changed)
    return verdict.word, verdict.why


def test_a_falling_ratio_confirms_and_a_flat_one_refutes() -> None:
    assert word(cells({1: 1.0, 8: 0.4, 32: 0.1}))[0] == "confirmed"
    assert word(cells({1: 1.0, 8: 1.05, 32: 0.93}))[0] == "refuted"
    assert ratio(cells({1: 1.0, 8: 0.4, 32: 0.1}), "D", "B", 32) == pytest.approx(10)


@pytest.mark.parametrize("arm", ["B", "C", "D"])
def test_arms_that_disagree_at_one_make_it_void_whatever_the_curve(arm: str) -> None:
    found = cells({1: 1.0, 8: 0.4, 32: 0.1}, **{f"{arm}1": 0.8})
    said = word(found)
    assert said[0] == "void" and f"{arm} / A is 0.80" in said[1]


def test_what_spoils_the_cells_makes_it_void() -> None:
    falling = {1: 1.0, 8: 0.4, 32: 0.1}
    assert word(cells({1: 1.0, 8: 0.4, 32: 0.8}))[1].startswith("tok/s(B) / tok/s(A) neither")
    assert "sched.order" in word(cells(falling), "sched.order")[1]
    failed = cells(falling)
    failed[5] = msgspec.structs.replace(failed[5], passes=(a_pass(1.0, errors={"HTTP 429": 1}),))
    assert "B x 32: HTTP 429" in word(failed)[1]
    mixed = cells(falling)
    mixed[0] = msgspec.structs.replace(mixed[0], revision="def")
    assert "different revisions: abc, def" in word(mixed)[1]


def test_what_was_not_logged_is_na_with_its_reason_and_never_zero() -> None:
    found = cells({1: 1.0, 8: 0.4, 32: 0.1})
    none = NA("no step ran in these 3.0 s: nothing was logged")
    found[0] = msgspec.structs.replace(found[0], passes=(a_pass(1.0, engine=counted(none, none)),))
    text = lines(found, SIZES, judge(found, SIZES, 0.15, ()))
    row = next(line for line in text if line.split()[:2] == ["1", "NA"])
    assert "0.00" not in row and row.split()[5:8] == ["NA", "1.00", "NA"]
    assert "NA: no step ran in these 3.0 s: nothing was logged" in text
    assert text[-1].startswith("void: ")


def interval(**counts: Any) -> p.Interval:
    fields: dict[str, Any] = dict.fromkeys(p.Interval.__struct_fields__, 0) | {"finished": {}, "latency": {}}
    return p.Interval(**(fields | counts))


def test_means_are_of_differences_and_of_nothing_there_is_no_mean() -> None:
    start = interval(seconds=100.0, steps=1000, rows=9000, generation_tokens=9000, admitted=9000)
    end = interval(
        seconds=102.0, steps=1010, rows=9040, generation_tokens=9040, admitted=9080, step_seconds=0.5
    )
    found = scrape.between(start, end)
    assert isinstance(found, Engine)
    assert (found.effective_batch, found.admitted, found.output_rate, found.step_ms) == (4.0, 8.0, 20.0, 50.0)
    idle = scrape.between(end, interval(seconds=105.0, steps=1010))
    assert isinstance(idle, Engine) and idle.effective_batch == NA(
        "no step ran in these 3.0 s: nothing was logged"
    )
    assert isinstance(scrape.between(end, interval(seconds=1.0, steps=3)), NA), "reset meanwhile"


@pytest.mark.parametrize("size", [1, 8])
def test_all_arms_of_a_size_send_the_same_numbers_of_tokens(size: int) -> None:
    plan = Plan("mixed", Lengths(32, 512), Lengths(32, 256), size, 2048, 4096)
    works = {arm: list(ArmWork(plan, None, 12 * size, 0, arm).jobs(7)) for arm in ARMS}
    totals = {(sum(len(j.prompt) for j in jobs), sum(j.output for j in jobs)) for jobs in works.values()}
    assert len(totals) == 1
    assert [(len(j.prompt), j.output) for j in works["B"]] == [(len(j.prompt), j.output) for j in works["D"]]
    assert len({len(j.prompt) for j in works["A"]}) <= 2 < len({len(j.prompt) for j in works["B"]})
    starts = [j.prompt[:16] for jobs in works.values() for j in jobs]
    assert len(set(starts)) == len(starts), "no arm finds another's prompts in the cache"


# -- files ------------------------------------------------------------------------------------------------------------


def result(*found: Cell, **more: Any) -> Result:
    server = Server(
        url="http://127.0.0.1:1", model="m", version="1", revision="abc", dirty=False, name="main", pid=1, device="cpu",
        dtype="bfloat16", parameters=1, max_model_len=2048, page_size=32, pages=9, profile="default", differs={},
    )  # fmt: skip
    fields: dict[str, Any] = {
        "kind": "run", "created": "2026-01-01T00:00:00Z", "command": {"work": "uniform"},
        "client": provenance.client(), "server": server, "cells": found,
    }  # fmt: skip
    return Result(**(fields | more))


def cell(name: str, *rates: float, revision: str = "abc") -> Cell:
    return Cell(name=name, labels={}, revision=revision, passes=tuple(map(a_pass, rates)))


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    measured = Measured(Bounds(ttft=1.0), began=1.0, ended=3.0)
    measured.itl.add(0.5)
    whole = msgspec.structs.replace(
        cell("x", 1.0), passes=(pass_of(measured, 3, NA("not asked")), a_pass(2.0))
    )
    written = result(whole, cell("y", 5.0))
    write(tmp_path / "a.json", written)
    assert read(tmp_path / "a.json") == written


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "no result"), (b'{"format": 99}', f"reads format {FORMAT}"), (b'{"format": 1}', "no result")],
)
def test_a_file_that_is_no_result_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(Failure, match=said):
        read(tmp_path / "a.json")
    with pytest.raises(Failure, match="cannot be read"):
        read(tmp_path / "none.json")


def test_cells_of_different_revisions_are_refused_by_name(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    write(good, result(cell("x", 1.0), cell("y", 1.0)))
    write(bad, result(cell("x", 1.0), cell("y", 1.0, revision="def"), cell("z", 1.0)))
    assert one_revision(read(good), "good") == "abc"
    for pair in ((good, bad), (bad, good)):
        said = run("bench", "compare", *map(str, pair), code=1).output
        assert "bad.json mixes cells of different revisions" in said
        assert "abc: x, z" in said and "def: y" in said


def test_two_results_are_compared_cell_by_cell(tmp_path: Path) -> None:
    a = result(cell("x", 90.0, 100.0, 110.0), cell("only here", 1.0))
    b = result(cell("x", 190.0, 200.0, 210.0, revision="def"))
    found = {each.metric: each for each in compared(a, b)}
    assert found["output_tok_s"].ratio == 2.0 and found["output_tok_s"].apart
    assert found["effective_batch"].ratio == 1.0 and not found["effective_batch"].apart
    assert {each.cell for each in compared(a, b)} == {"x"} and "ttft_p50_ms" not in found
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, each in zip(paths, (a, b), strict=True):
        write(path, each)
    text = run("bench", "compare", *map(str, paths)).output
    assert "revision abc" in text and "revision def" in text and "2.000" in text


def test_different_work_is_not_compared(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"]
    write(paths[0], result(cell("x", 1.0)))
    write(paths[1], result(cell("x", 1.0), command={"work": "mixed"}))
    write(paths[2], result(cell("x", 1.0), kind="spec"))
    assert "work differ" in run("bench", "compare", *map(str, paths[:2]), code=1).output
    assert "arc bench spec" in run("bench", "compare", str(paths[0]), str(paths[2]), code=1).output


def test_what_else_differs_is_said() -> None:
    a = result(cell("x", 1.0))
    assert a.server is not None
    other = msgspec.structs.replace(a.server, device="cuda", dirty=True, differs={"sched.order": "prefix"})
    said = "\n".join(differences(a, msgspec.structs.replace(a, server=other)))
    assert "device: cpu | cuda" in said and "sched.order" in said and "no commit has" in said
    assert differences(a, a) == []


# -- what the engine counts -------------------------------------------------------------------------------------------


def test_acceptance_is_of_what_was_drafted_in_the_window() -> None:
    pairs = [
        (Drafts(100, (100, 90), (50, 10)), Drafts(110, (110, 98), (58, 12))),
        (Drafts(110, (110, 98), (58, 12)), Drafts(120, (120, 106, 4), (65, 16, 1))),
    ]
    found = Acceptance.between(pairs)
    assert found.by_place == (15 / 20, 6 / 16, 1 / 4) and found.rows == 20
    assert found.a_row == 22 / 20
    none = Acceptance.between([(Drafts(), Drafts())])
    assert none.a_row is None and none.by_place == ()


METRICS_PAGE = """# TYPE arc:cache_copies counter
arc:cache_copies_total{model="m",operation="clone_in.alloc"} 84
arc:cache_copies_total{model="m",operation="clone_in.slice_set"} 200
arc:cache_copies_total{model="m",operation="front_pad_grow"} 21
arc:steps_total{model="m"} 7
"""


def test_copies_leave_allocations_out_and_are_na_where_nobody_counts() -> None:
    end = counted_copies(20, 7, METRICS_PAGE)
    assert end == Copies(20, 7, 221.0)
    assert Rates.between([(Copies(10, 2, 21.0), end)]) == Rates(a_token=20, a_step=40)
    none = (counted_copies(1, 1, ""), counted_copies(2, 2, "arc:steps_total 7\n"))
    assert isinstance(Rates.between([none]).a_token, NA)
    assert isinstance(Rates.between([(Copies(10, 1, 5.0), Copies(10, 1, 5.0))]).a_token, NA)
    assert Rates.between([(Copies(0, 0, 0.0), Copies(9, 3, 0.0))]) == Rates(
        0, 0
    )  # counted, and none was made


# -- pictures ---------------------------------------------------------------------------------------------------------

CHART = Chart(
    "rate", "under way", ("1", "8", "32"), (Series("a", (1.0, None, 3.0)), Series("b", (3.0, 2.0, 1.0))), "x"
)


@pytest.mark.parametrize("ascii_text", [False, True])
def test_a_chart_fits_the_terminal(ascii_text: bool) -> None:
    drawn = chart_lines(CHART, 60, ascii_text=ascii_text)
    assert all(len(line) <= 75 for line in drawn)
    assert "fill: a" in drawn[0] and drawn[-1].split()[:3] == ["1", "8", "32"]
    assert ascii_text == all(line.isascii() for line in drawn)


def test_a_picture_is_written_or_its_extra_is_named(tmp_path: Path) -> None:
    """One or the other, as matplotlib is installed or not: both are what a user meets."""
    path = tmp_path / "a.png"
    try:
        png([CHART, replace(CHART, title="again", bars=True)], path, "of what")
    except Failure as failure:
        assert "arc-console[bench]" in failure.message and not path.exists()
    else:
        assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_a_picture_without_matplotlib_names_the_extra_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = run("bench", "--url", "http://127.0.0.1:1", "--plot", str(tmp_path / "a.png"), code=1).output
    assert "arc-console[bench]" in said and "endpoint" not in said
    assert "only FILE.png" in run("bench", "--url", "http://127.0.0.1:1", "--plot", "a.svg", code=1).output


def test_spreads_leave_out_what_was_not_measured() -> None:
    found = spread_of([a_pass(1.0), a_pass(3.0)], "output_tok_s")
    assert found is not None and (found.median, found.least, found.most) == (2.0, 1.0, 3.0)
    assert spread_of([a_pass(1.0)], "ttft_p50_ms") is None
