"""Ten thousand sequences and two thousand spans cost what is in sight: the work is counted, not timed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from arc.console.top import plots
from arc.console.top import table as table_module
from arc.console.top.app import Console
from arc.console.top.canvas import Canvas
from arc.console.top.table import Column, Table
from arc.console.top.views.overview import Overview
from arc.engine.control import protocol as p

from .recorded import picture, recorded
from .test_app import console

MANY = 10_000
SPANS = 2_000


@pytest.fixture
def sorted_keys(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a row was made ready to be sorted."""
    counted: Counter[str] = Counter()
    plain = table_module._ordered

    def ordered(value: object) -> tuple[bool, object]:
        counted["rows"] += 1
        return plain(value)

    monkeypatch.setattr(table_module, "_ordered", ordered)
    return counted


def many(*, first_output: int = 0) -> p.Sequences:
    rows = recorded().sequences.sequences
    made = tuple(
        msgspec.structs.replace(
            rows[number % len(rows)], id=f"seq-{number:05}", number=number,
            output_tokens=first_output if number == 0 else number,
        )
        for number in range(MANY)
    )  # fmt: skip
    return msgspec.structs.replace(recorded().sequences, total=MANY, listed=MANY, sequences=made)


def body(app: Console) -> Canvas:
    return app.main.query_one("#body", Canvas)


async def test_ten_thousand_sequences_cost_the_rows_in_sight(sorted_keys: Counter[str]) -> None:
    app = console(replace(picture(), sequences=many()), view=1)
    async with app.run_test(size=(120, 40)) as pilot:
        table = app.main.view.table
        assert table is not None and len(table.shown) == MANY
        in_sight = body(app).size.height - 1
        app.main.draw()
        await pilot.pause()
        made, painted = table.lines_made, body(app).repainted
        for _ in range(5):
            app.main.draw()
        assert table.lines_made - made == 5 * in_sight and body(app).repainted == painted
        assert sorted_keys["rows"] == 0  # nobody sorted

        await pilot.press("full_stop")
        assert sorted_keys["rows"] == MANY  # once for the new order
        for _ in range(5):
            app.main.draw()
        assert sorted_keys["rows"] == MANY

        painted = body(app).repainted
        app.store.put(sequences=many(first_output=7))  # one row in sight is another
        app.main.draw()
        assert sorted_keys["rows"] == 2 * MANY and body(app).repainted == painted + 1
        await pilot.press("end")
        made = table.lines_made
        app.main.draw()
        assert table.lines_made - made == in_sight


async def test_the_overview_makes_a_line_of_no_more_sequences_than_it_shows() -> None:
    made: list[int] = []
    plain = Table.lines

    def lines(self: Table[object], rows: tuple[object, ...], width: int, height: int) -> object:
        made.append(len(rows))
        return plain(self, rows, width, height)

    app = console(replace(picture(), sequences=many()))
    async with app.run_test(size=(200, 60)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Table, "lines", lines)
            app.main.draw()
    assert made and max(made) < 60


async def test_a_plot_is_drawn_once_for_each_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two samples, a second apart, pictures come four times: they have new numbers and the same plots."""
    drawn: Counter[str] = Counter()
    plain = plots.plot

    def plot(*arguments: Any, **options: Any) -> Any:
        drawn["plots"] += 1
        return plain(*arguments, **options)

    monkeypatch.setattr(plots, "plot", plot)
    app = console(picture())
    async with app.run_test(size=(200, 60)) as pilot:
        every = 5
        assert drawn["plots"] == every

        def again() -> int:
            """How many were drawn for a picture more, which shows what one without a past would show."""
            drawn.clear()
            app.main.draw()
            count, scene = drawn["plots"], app.main._scene
            assert scene is not None
            assert body(app)._lines == Overview().lines(replace(scene), *body(app).size)
            return count

        for step in range(4):
            app.store.put(snapshot=msgspec.structs.replace(recorded().snapshot, step=step, running=step))
            assert again() == 0
        event = msgspec.structs.replace(picture().events[-1], kind="mark", text="lunch")
        app.store.put(events=(*picture().events, event))
        assert again() == every and any("lunch" in line for line in body(app).text)
        app.store.put(samples=picture().samples[:-1])
        assert again() == every
        drawn.clear()
        await pilot.press("right_square_bracket")
        assert drawn["plots"] == every
        drawn.clear()
        await pilot.resize_terminal(180, 50)
        await pilot.pause()
        assert drawn["plots"] == every


def test_two_thousand_spans_cost_the_rows_in_sight(sorted_keys: Counter[str]) -> None:
    """Spans as the table will have them: a tree's rows in their own order, sorted by a column, filtered."""
    calls: Counter[str] = Counter()

    def cell(name: str) -> Column[tuple[str, float]]:
        def made(row: tuple[str, float]) -> tuple[str, table_module.Role]:
            calls["cells"] += 1
            return (row[0] if name == "span" else f"{row[1]:.2f}", "text")

        return Column(name, 12, made, lambda row: row[1], is_right=name != "span")

    def key(row: tuple[str, float]) -> str:
        calls["keys"] += 1
        return row[0]

    table = Table(
        tuple(cell(name) for name in ("span", "calls", "wall", "device")),
        key,
        text=lambda row: row[0],
        empty="none",
    )
    rows = tuple((f"layer.{number}.mla_attn", float(number * 7919 % 1000)) for number in range(SPANS))
    table.lines(rows, 120, 37)
    calls.clear()
    for _ in range(10):
        table.lines(rows, 120, 37)
    assert table.lines_made == 11 * 36
    assert calls["cells"] == 10 * 36 * 4
    assert calls["keys"] <= 10 * 5  # the cursor is found where it was, without a search
    table.go(SPANS - 1)
    table.lines(rows, 120, 37)
    calls.clear()
    table.lines(rows, 120, 37)
    assert calls["keys"] <= 5 and calls["cells"] == 36 * 4
    table.sort_at(20, 120)
    table.lines(rows, 120, 37)
    table.lines(rows, 120, 37)
    assert sorted_keys["rows"] == SPANS
