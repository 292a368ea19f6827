"""Several engines: the odd one out by its rule, the table's text, and opening one and coming back."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from arc.console.main import arc
from arc.console.metrics.fetch import address
from arc.console.top.app import Console, Options, Palette
from arc.console.top.canvas import Canvas
from arc.console.top.dialogs import Confirm
from arc.console.top.fleet import FAR, LEAST_TO_COMPARE, QUANTITIES, Fleet, Member, Row, with_odd
from arc.console.top.help import Help
from arc.console.top.keys import KEYS
from arc.console.top.scene import SPANS, Scene
from arc.console.top.sources import EngineSource, PageSource
from arc.console.top.store import Picture, Store
from arc.console.top.views import fleet as view
from arc.console.top.views.fleet import FleetView
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from tests.console.metrics.pages import vllm
from tests.console.metrics.served import Server, page, serving

from .conftest import Engine
from .paged import START
from .pictures import expected_path, fleet_lines, fleet_of
from .recorded import SIZES, texts, widths
from .test_app import lines, names, press, toasts, until

# -- the odd one out --------------------------------------------------------------------------------------------------


def row(name: str, *, model: str = "m", gone: bool = False, **numbers: float | None) -> Row:
    known = {
        "waiting": None,
        "kv": None,
        "output": None,
        "first_token": None,
        "between_tokens": None,
        **numbers,
    }
    return Row(
        member=Member(name, f"http://{name}/metrics", Store(), None),
        kind="vLLM", model=model, state="gone" if gone else "answers", gone=gone, why="", restarted=False, seconds=60.0,
        running=1.0, prompt=None, **known,
    )  # fmt: skip


def odd(rows: list[Row]) -> dict[str, list[str]]:
    return {each.member.name: [odd.quantity for odd in each.odd] for each in with_odd(rows) if each.odd}


def test_the_one_that_is_not_like_the_others_is_named_with_what_and_the_median() -> None:
    rows = [row(str(n), first_token=0.200 + 0.001 * n, output=1000.0) for n in range(5)]
    rows[3] = replace(rows[3], first_token=0.900)
    assert odd(rows) == {"3": ["first token p95"]}
    assert str(with_odd(rows)[3].odd[0]) == "first token p95 900 ms, median 202 ms"


@given(st.integers(LEAST_TO_COMPARE, 12), st.floats(0.0, 1e6), st.integers(0, 2**32))
def test_equals_with_noise_are_equals(count: int, value: float, seed: int) -> None:
    noise = random.Random(seed)
    rows = [
        row(str(n), waiting=value * noise.uniform(0.9, 1.1), output=value * noise.uniform(0.9, 1.1))
        for n in range(count)
    ]
    assert odd(rows) == {}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12))
def test_less_than_half_are_ever_odd_and_the_order_does_not_matter(values: list[float]) -> None:
    rows = [row(str(n), waiting=value) for n, value in enumerate(values)]
    found = odd(rows)
    assert len(found) <= len(values) / 2
    assert odd(rows[::-1]) == found
    if len(values) < LEAST_TO_COMPARE:
        assert found == {}


@given(st.integers(LEAST_TO_COMPARE, 12), st.floats(0, 1e5), st.sampled_from(QUANTITIES))
def test_one_that_is_far_enough_is_always_found(count: int, value: float, quantity: Any) -> None:
    field = {"waiting": "waiting", "KV": "kv", "output": "output", "first token p95": "first_token",
             "between tokens p95": "between_tokens"}[quantity.name]  # fmt: skip
    rows = [replace(row(str(n)), **{field: value}) for n in range(count)]
    step = FAR * max(0.1 * value, quantity.least)
    far, near = (replace(rows[0], **{field: value + step * by}) for by in (1.01, 0.99))
    assert odd([far, *rows[1:]]) == {"0": [quantity.name]}
    assert odd([near, *rows[1:]]) == {}


def test_engines_that_are_gone_or_serve_something_else_are_not_compared() -> None:
    rows = [row(str(n), waiting=1.0) for n in range(3)]
    far = row("far", waiting=500.0)
    assert odd([*rows, far]) == {"far": ["waiting"]}
    assert odd([*rows, replace(far, gone=True)]) == {}
    assert odd([*rows, replace(far, model="other")]) == {}
    assert odd([*rows[:1], far, row("unknown"), row("unknown too")]) == {}  # of two neither is odd


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_picture_is_the_expected_one(size: tuple[int, int]) -> None:
    assert fleet_lines(size) == expected_path("fleet", size).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("width", [80, 97, 100, 119, 120, 149, 150, 200])
def test_lines_fill_the_width_and_numbers_are_whole(width: int) -> None:
    fleet = fleet_of()
    shown = FleetView(fleet)
    scene = Scene(Picture(), SPANS[1], None, START + 60.5)
    shown.update(scene)
    table = shown.lines(scene, width, 20)
    assert widths(table) == {width} and widths(view.alarms(shown.rows, width)) == {width}
    assert widths([view.header(shown.rows, width), view.status(scene, shown.rows, 4, width)]) == {width}
    for number in ("139", "2,300", "17.6"):
        assert any(number in line for line in texts(table)), number


def test_the_sum_is_unknown_as_soon_as_a_part_is() -> None:
    rows = [row("a", waiting=3.0, output=10.0), row("b", waiting=4.0)]
    text = texts([view.header(rows, 100)])[0]
    assert "waiting 7" in text and "tok/s --" in text


def test_a_restarted_engine_says_so_and_one_that_is_gone_why() -> None:
    rows = [
        replace(row("a"), restarted=True),
        replace(row("b", gone=True), why="nothing listens there", restarted=True),
    ]
    table = texts(view.make_table().lines(rows, 200, 5))
    assert "▲ restarted" in table[1] and "○ gone" in table[2] and "nothing listens there" in table[2]
    assert "b gone" in texts(view.alarms(rows, 100))[0]


# -- the screen -------------------------------------------------------------------------------------------------------


@dataclass
class Served:
    servers: list[Server]
    app: Console


@contextmanager
def fleet_console(*pages: str, **options: Any) -> Iterator[Served]:
    with (
        serving(page(pages[0])) as first,
        serving(page(pages[1])) as second,
        serving(page(pages[2])) as third,
    ):
        servers = [first, second, third]
        sources = [PageSource(address(each.url)) for each in servers]
        for source in sources:
            source.reader._interval = 0.02
        yield Served(servers, Console(Options(hz=20.0, **options), fleet=Fleet(sources)))


def small(running: float, waiting: float = 1.0) -> str:
    return vllm(
        started=1.0, num_requests_running=running, num_requests_waiting=waiting, generation_tokens_total=5.0
    )


async def shown(pilot: Pilot[None], app: Console, *words: str, name: str = "body") -> None:
    await until(pilot, lambda: all(any(word in line for line in lines(app, name)) for word in words))


async def test_enter_opens_one_and_esc_comes_back() -> None:
    with fleet_console(small(11), small(22), small(33)) as served:
        app = served.app
        async with app.run_test(size=(120, 40)) as pilot:
            await shown(pilot, app, "11", "22", "33")
            table = app.main
            ports = [each.url.removeprefix("http://").removesuffix("/metrics") for each in served.servers]
            assert [line.split()[0].lstrip("▸") or line.split()[1] for line in lines(app)[1:4]][1:] == ports[
                1:
            ]
            await press(pilot, "down", "enter")
            assert app.main is not table and app.screen is app.main
            await shown(pilot, app, "running       22")
            assert ports[1] in lines(app, "head")[0]
            assert "Esc fleet" in lines(app, "foot")[0]
            await press(pilot, "2")
            assert any("no single requests" in line for line in lines(app))
            await press(pilot, "1", "left", "escape")  # out of the past first
            assert app.main is not table
            await press(pilot, "escape")
            assert app.main is table and app.screen is table and app.opened is None
            await shown(pilot, app, "11", "22", "33")
            await press(pilot, "down", "enter")  # the cursor is where it was, and the next one opens
            await shown(pilot, app, "running       33")
            await press(pilot, "escape", "escape", "escape")
            assert app.screen is table


async def test_an_engine_that_goes_and_comes_back_is_shown_so() -> None:
    with fleet_console(small(11), small(22), small(33)) as served:
        async with served.app.run_test(size=(120, 40)) as pilot:
            app = served.app
            await shown(pilot, app, "11", "22", "33")
            served.servers[1].answer = page("no", 500)
            await shown(pilot, app, "○ gone")
            assert any("answered 500" in line for line in lines(app, "alarms"))
            assert "○ 1 gone" in lines(app, "head")[0]
            assert any(
                "○ gone" in line and "22" in line for line in lines(app)
            )  # its last number stays, greyed
            served.servers[1].answer = page(small(44).replace("seconds 1.0", "seconds 2.0"))
            await shown(pilot, app, "▲ restarted", "44")
            assert "gone" not in lines(app, "head")[0]
            served.servers[2].answer = page(small(33, waiting=900))
            served.servers[0].answer = page(small(11, waiting=2))
            await until(pilot, lambda: any("odd one out" in line for line in lines(app, "alarms")))
            assert any("◆900" in line for line in lines(app))


async def test_the_table_filters_sorts_freezes_and_fills_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with fleet_console(small(11), small(22), small(33)) as served:
        app = served.app
        async with app.run_test(size=(80, 24)) as pilot:
            await shown(pilot, app, "11", "22", "33")
            await press(pilot, *["full_stop"] * 3)
            assert "running↓" in lines(app)[0]
            assert [line.split()[-5] for line in lines(app)[1:4]] == ["33", "22", "11"]
            port = str(served.servers[0].server_address[1])
            await press(pilot, "slash", *port, "enter")
            assert len([line for line in lines(app) if "answers" in line]) == 1
            await press(pilot, "escape", "space")
            assert "◌ frozen" in lines(app, "head")[1]
            served.servers[0].answer = page(small(99))
            await pilot.pause(0.3)
            app.main.draw()
            assert not any("99" in line.split() for line in lines(app))
            await press(pilot, "space")
            await shown(pilot, app, "99")
            await press(pilot, "x", "y")
            assert app.clipboard.startswith("http://127.0.0.1:")
            canvas = app.main.query_one("#body", Canvas)
            assert {len(line) for line in canvas.text} == {80}
        assert names(tmp_path)[0].startswith("arc-fleet-")


async def test_no_key_does_anything_but_say_so_where_there_is_no_one_engine() -> None:
    with fleet_console(small(11), small(22), small(33)) as served:
        app = served.app
        async with app.run_test(size=(120, 40)) as pilot:
            await shown(pilot, app, "33")
            table = app.main
            for key in KEYS:
                if key.id in ("quit", "palette", "enter", "export", "copy"):
                    continue
                await pilot.press(key.keys.split(",")[0])
                while app.screen is not table:
                    assert isinstance(app.screen, Help)
                    await press(pilot, "escape")
                if table.query_one("#filter").display:
                    await press(pilot, "escape")
                assert app.main is table
            assert sum("open an engine first" in each for each in toasts(app)) > 5
            found = {what for what, _, _ in Palette(app.screen)._commands()}
            assert sum(what.startswith("engine 127.0.0.1:") for what in found) == 3


async def test_an_address_that_never_answered_is_in_the_table_and_opens_as_attaching() -> None:
    with serving(page(small(11))) as server:
        sources = [PageSource(address(server.url)), PageSource(address("http://127.0.0.1:1/metrics"))]
        app = Console(Options(hz=20.0), fleet=Fleet(sources))
        async with app.run_test(size=(120, 40)) as pilot:
            await shown(pilot, app, "11", "○ no answer")
            await press(pilot, "down", "enter")
            await until(pilot, lambda: "nothing listens there" in lines(app, "head")[0])
            await press(pilot, "escape")
            await shown(pilot, app, "11")


# -- arc engines ------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(engine: Engine) -> Iterator[list[Engine]]:
    other = Engine("other")
    yield [engine, other]
    other.end()


async def test_arc_engines_are_a_fleet_and_an_opened_one_can_be_operated(two: list[Engine]) -> None:
    for number, each in enumerate(two):
        for index in range(number + 1):
            each.engine.submit(1_000_000, f"long{index}")
    app = Console(Options(hz=20.0), fleet=Fleet([EngineSource(each.path, viewer=False) for each in two]))
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot, app, "● serving")
        await until(pilot, lambda: "running 3" in lines(app, "head")[0])
        await press(pilot, "down", "enter", "2")
        assert app.opened is not None and app.opened.name == "other"
        await shown(pilot, app, "long0", "long1")
        await press(pilot, "c")
        assert isinstance(app.screen, Confirm), toasts(app)
        await pilot.click("#yes")
        await until(pilot, lambda: two[1].engine.counters.running == 1)
        assert two[0].engine.counters.running == 1
        await press(pilot, "escape")
        await until(pilot, lambda: "running 2" in lines(app, "head")[0])
        two[1].end()
        await shown(pilot, app, "○ gone")
        two[1].begin()
        await until(pilot, lambda: "gone" not in lines(app, "head")[0])


def test_the_command_prints_fleets_and_refuses_what_is_named_twice(two: list[Engine]) -> None:
    run = CliRunner()
    with serving(page(vllm("0") + vllm("1"))) as server:
        every = run.invoke(arc, ["top", "--all", "--metrics", server.url, "--once"], env={"COLUMNS": "120"})
        assert every.exit_code == 0, every.output
        for word in ("fleet of 4", "sim", "other", "#0", "#1", "● serving", "● answers"):
            assert word in every.output, word
        found = json.loads(run.invoke(arc, ["top", "-e", "sim", "-e", "other", "--json"]).stdout)
        assert [each["name"] for each in found["engines"]] == ["sim", "other"]
        assert all(each["kind"] == "arc" and each["running"] == 0 for each in found["engines"])
        split = json.loads(run.invoke(arc, ["top", "--metrics", server.url, "--json"]).stdout)
        assert [each["name"].partition("#")[2] for each in split["engines"]] == ["0", "1"]
        twice = run.invoke(arc, ["top", "-e", "sim", "--all", "-e", "sim", "--once"])
        assert twice.exit_code == 2 and "named twice" in twice.output


def test_the_command_says_when_nobody_answers() -> None:
    nobody = ["--metrics", "http://127.0.0.1:1/metrics"]
    run = CliRunner().invoke(arc, ["top", *nobody, "--metrics", "http://127.0.0.1:2/metrics", "--json"])
    assert run.exit_code == 3
    found = json.loads(run.stdout)
    assert len(found["gone"]) == 2 and all("nothing listens" in each["why"] for each in found["engines"])
    alone = CliRunner().invoke(arc, ["top", *nobody, "--once"])
    assert alone.exit_code == 3 and "nothing listens there" in alone.output


@pytest.mark.parametrize(
    "named",
    [
        ["--metrics", "http://127.0.0.1:1/metrics"],
        ["-e", "sim", "-e", "other"],
        ["-e", "sim", "--metrics", "http://127.0.0.1:1/metrics"],
        ["--all"],
    ],
    ids=["a page", "two engines", "an engine and a page", "all"],
)
def test_what_has_no_one_control_socket_is_not_recorded(
    two: list[Engine], named: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "seen.top"
    refused = CliRunner().invoke(arc, ["top", *named, "--record", str(path)])
    assert refused.exit_code == 2 and "--record is for one engine" in refused.output
    assert not path.exists()
