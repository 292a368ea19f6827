"""An A/B from the console: asked for at a flag, watched, stopped, and given back when the console is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from arc.console.ab.report import Report
from arc.console.top.app import Console, Options
from arc.console.top.experiments import Ask, Watch
from textual.pilot import Pilot
from textual.widgets import Button, Input, Select, Static

from .conftest import Engine

FLAG = "sched.prefill_chunk"


async def until(pilot: Pilot[None], condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await pilot.pause(0.02)


async def ask(pilot: Pilot[None], app: Console, values: str) -> Ask:
    """The dialog, filled in, on its flag."""
    await until(pilot, lambda: app.store.picture.flags is not None)
    await pilot.press("5")
    app.main.flags.choose(FLAG)
    await pilot.press("b")
    await until(pilot, lambda: isinstance(app.screen, Ask))
    dialog = app.screen
    assert isinstance(dialog, Ask)
    dialog.query_one("#values", Input).value = values
    dialog.query_one("#metric", Select).value = "step_ms"
    dialog.query_one("#limit", Select).value = 120.0
    return dialog


def shown(app: Console) -> str:
    return str(app.screen.query_one("#arms", Static).render())


def written(folder: Path) -> Report:
    (file,) = folder.iterdir()
    return msgspec.json.decode(file.read_bytes(), type=Report)


def held(engine: Engine) -> bool:
    return bool(engine.engine.pending)


async def test_it_is_started_at_a_flag_watched_and_stopped(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine.engine.submit(10_000_000)
    before = engine.engine.settings[FLAG]
    app = Console(Options(engine.path))
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot, app, "64, 128")
        await pilot.click("#yes")
        await until(pilot, lambda: isinstance(app.screen, Watch) and held(engine))
        await until(pilot, lambda: "pair 1 of" in shown(app) and "▶" in shown(app))
        assert engine.engine.settings[FLAG] in (64, 128)
        await pilot.press("escape")
        assert app.screen is app.main and app.main.experiments.runs, "it goes on while nobody looks"
        await pilot.press("b")
        await until(pilot, lambda: isinstance(app.screen, Watch))
        app.screen.query_one("#yes", Button).press()
        await until(pilot, lambda: not app.main.experiments.runs)
        await until(pilot, lambda: f"{FLAG} is {before} again" in shown(app))
        app.screen.query_one("#write", Button).press()
        await until(pilot, lambda: any(tmp_path.iterdir()))
    assert engine.engine.settings[FLAG] == before and not held(engine)
    report = written(tmp_path)
    assert (report.end, report.restored, report.values) == ("operator", True, (64, 128))


async def test_leaving_the_console_gives_the_flag_back(engine: Engine) -> None:
    engine.engine.submit(10_000_000)
    before = engine.engine.settings[FLAG]
    app = Console(Options(engine.path))
    async with app.run_test(size=(120, 40)) as pilot:
        await ask(pilot, app, "64,128")
        await pilot.click("#yes")
        await until(pilot, lambda: held(engine))
    assert not app.main.experiments.runs
    assert engine.engine.settings[FLAG] == before and not held(engine), "at once, not when its time is over"


@pytest.mark.parametrize(
    ("values", "said"),
    [("64", "two values"), ("64,64", "same value"), ("64,0", "it may be"), ("64,many", "number")],
)
async def test_values_that_cannot_be_tried_are_refused_in_the_dialog(
    engine: Engine, values: str, said: str
) -> None:
    app = Console(Options(engine.path))
    async with app.run_test(size=(120, 40)) as pilot:
        dialog = await ask(pilot, app, values)
        dialog.query_one("#yes", Button).press()
        await until(pilot, lambda: said in str(dialog.query_one("#answer", Static).render()))
        assert app.screen is dialog and not app.main.experiments.runs


async def test_a_viewer_and_a_restart_flag_are_told_so(engine: Engine) -> None:
    app = Console(Options(engine.path, viewer=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.store.picture.flags is not None)
        await pilot.press("5")
        app.main.flags.choose(FLAG)
        await pilot.press("b")
        await until(pilot, lambda: any("read-only" in each.message for each in app._notifications))
        app.main.flags.choose("cache.page_size")
        await pilot.press("b")
        await until(pilot, lambda: any("restart only" in each.message for each in app._notifications))
        assert app.screen is app.main
