"""Every key in the real application, over recorded data, and the changes it makes over a simulated engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arc.console.client import Refused
from arc.console.metrics.fetch import address
from arc.console.top.app import Console, Options, Palette
from arc.console.top.apply import Apply
from arc.console.top.canvas import Canvas
from arc.console.top.dialogs import Choose, Confirm, Prompt
from arc.console.top.experiments import Ask
from arc.console.top.filter_field import FilterField
from arc.console.top.help import Help
from arc.console.top.keys import KEYS
from arc.console.top.metrics_reader import MetricsReader
from arc.console.top.store import Link, Picture, Store
from arc.console.top.themes import THEMES
from arc.engine.control import protocol as p
from textual import events
from textual.pilot import Pilot
from textual.widgets import Button, Input, OptionList, Select, Static

from tests.console.metrics.pages import vllm
from tests.console.metrics.served import page, serving

from .conftest import Engine
from .recorded import SIZES, picture, recorded, snapshot

NOW = recorded().time


def console(recording: Picture | None = None, **options: Any) -> Console:
    store = Store()
    store.picture = recording or picture()
    keymap = options.pop("keymap", None)
    return Console(Options(Path("/nowhere"), **options), keymap=keymap, store=store, clock=lambda: NOW)


def lines(app: Console, name: str = "body") -> list[str]:
    return [line.rstrip() for line in app.main.query_one(f"#{name}", Canvas).text]


def toasts(app: Console) -> list[str]:
    return [each.message for each in app._notifications]


async def press(pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def whole(app: Console, size: tuple[int, int]) -> bool:
    """The body fills its place, and no line is wider or narrower."""
    canvas = app.main.query_one("#body", Canvas)
    alarms = app.main.query_one("#alarms", Canvas)
    assert canvas.size.height == size[1] - 3 - (alarms.size.height if alarms.display else 0)
    return len(canvas.text) <= canvas.size.height and {len(line) for line in canvas.text} == {size[0]}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_every_view_fills_the_screen(size: tuple[int, int]) -> None:
    app = console()
    async with app.run_test(size=size) as pilot:
        for view in "123456":
            await press(pilot, view)
            assert whole(app, size), view


@pytest.mark.parametrize("view", ["1", "2", "5"])
async def test_every_key_leaves_a_whole_screen(
    view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(view)
        here = app.main.view
        for key in KEYS:
            if key.id in ("quit", "palette"):
                continue
            await pilot.press(key.keys.split(",")[0])
            while app.screen is not app.main:
                await press(pilot, "escape")
            if app.main.query_one("#filter").display:
                await press(pilot, "escape")
            assert whole(app, (80, 24)), key.id
            if app.main.view is not here:
                await pilot.press(view)
    assert len(names(tmp_path)) == 1  # what x wrote


async def test_views_by_number_tab_and_mouse() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        seen = []
        for key in ("2", "3", "tab", "shift+tab", "6", "tab", "shift+tab"):
            await press(pilot, key)
            seen.append(app.main.view.name)
        assert seen == ["Sequences", "Spans", "Allocator", "Spans", "Events", "Overview", "Events"]
        await pilot.click("#head", offset=(lines(app, "head")[1].index("5 Flags"), 1))
        assert app.main.view.name == "Flags"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_help_names_every_key_and_what_it_does_on_one_screen(size: tuple[int, int]) -> None:
    app = console(keymap={"freeze": "f"})
    async with app.run_test(size=size) as pilot:
        await press(pilot, "question_mark")
        assert isinstance(app.screen, Help)
        canvas = app.screen.query_one(Canvas)
        assert app.screen.query_one("VerticalScroll").max_scroll_y == 0
        assert len(canvas.text) == canvas.size.height and {len(line) for line in canvas.text} <= {
            canvas.size.width
        }
        text = "\n".join(canvas.text)
        for key in KEYS:
            shown = "f" if key.id == "freeze" else key.shown
            assert re.search(
                rf"(^|  ){re.escape(shown)} +{re.escape(key.what)}( *$|:|  )", text, re.MULTILINE
            ), key
        if size[0] > 80:
            assert "expression" in text and "comes back" in text
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert {len(line) for line in canvas.text} <= {canvas.size.width}
        await press(pilot, "escape")
        assert app.screen is app.main


async def test_the_help_of_a_viewer_names_no_key_that_it_may_not_use() -> None:
    app = console(viewer=True, ascii_text=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "question_mark")
        assert app.screen.query_one("VerticalScroll").max_scroll_y == 0
        text = "\n".join(app.screen.query_one(Canvas).text)
        assert (
            "next view" in text and "viewer" in text and "Changes" not in text and "drop a mark" not in text
        )


async def test_the_palette_has_every_action_and_every_flag() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "ctrl+p")
        assert app.screen is not app.main
        names = {what for what, _, _ in Palette(app.screen)._commands()}
        assert names >= {key.explained for key in KEYS if key.id != "palette"}
        assert names >= {f"flag {row.name}" for row in recorded().flags.flags}
        await press(pilot, *"sched.ord")
        await until(pilot, lambda: app.screen.query_one(OptionList).option_count == 1)
        await press(pilot, "down", "enter")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        assert app.main.view.name == "Flags"


async def test_the_filter_works_while_it_is_typed() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "2", "slash", *"!running$")
        waiting = [each for each in recorded().sequences.sequences if each.status == "waiting"]
        assert sum("○" in line for line in lines(app)) == len(waiting)
        assert sum("●" in line for line in lines(app)) == 0
        await press(pilot, "enter")
        assert "/!running$/" in lines(app, "foot")[0] and not app.main.query_one("#filter").display
        await press(pilot, "escape")
        assert sum("●" in line for line in lines(app)) > 0
        await press(pilot, "slash", "(", "enter")
        assert any("no regular expression" in each for each in toasts(app))


@pytest.mark.parametrize("before", ["", "waiting"])
async def test_keys_typed_ahead_of_the_filter_are_all_in_it_and_no_commands(before: str) -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "2")
        if before:
            await press(pilot, "slash", *before, "enter")
        for key in "/", *"^cmpl-am1":  # as a paste brings them: none waits for the one before
            app.post_message(events.Key("slash" if key == "/" else key, key))
        field = app.main.query_one(FilterField)
        await until(pilot, lambda: field.value == "^cmpl-am1")
        await press(pilot, "enter")
        assert app.screen is app.main and app.main.view.name == "Sequences" and toasts(app) == []
        assert app.main.view.filter is not None and app.main.view.filter.text == "^cmpl-am1"


async def test_the_filter_stands_in_the_footer_s_place() -> None:
    """Also after the next picture: no line of the view is pushed out."""
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "2", "slash")
        for _ in range(2):
            app.main.draw()
            await pilot.pause()
            assert whole(app, (80, 24)) and not app.main.query_one("#foot").display
        await press(pilot, "enter")
        assert whole(app, (80, 24)) and app.main.query_one("#foot").display


async def test_freezing_keeps_the_picture_while_collection_goes_on() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "space")
        assert "◌ frozen" in lines(app, "head")[1]
        app.store.snapshot(snapshot(running=77), NOW)
        app.main.draw()
        assert not any("77" in line for line in lines(app))
        await press(pilot, "space")
        assert any("running       77" in line for line in lines(app))


async def test_back_into_history_and_to_now() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "left", "left")
        assert "◀ 1" in lines(app, "head")[1]
        assert any("why they waited was not kept" in line or "nothing waited" in line for line in lines(app))
        await press(pilot, *["right"] * 3)
        assert "live" in lines(app, "head")[1]
        await press(pilot, *["left"] * 6, "end")
        assert "live" in lines(app, "head")[1]
        await press(pilot, "right_square_bracket")
        assert "5 min window" in lines(app, "head")[1]


async def test_a_tick_without_news_paints_nothing_and_one_line_of_news_paints_one() -> None:
    app = console()
    async with app.run_test(size=(120, 40)):
        app.main.draw()
        canvas = app.main.query_one("#body", Canvas)
        before = canvas.repainted
        app.main.draw()
        assert canvas.repainted == before
        app.store.put(flags=recorded().flags)
        app.main.draw()
        assert canvas.repainted == before
        app.store.snapshot(snapshot(running=5), NOW)
        app.main.draw()
        assert canvas.repainted == before + 1


async def test_a_terminal_that_is_too_small_is_told_so() -> None:
    app = console()
    async with app.run_test(size=(79, 24)) as pilot:
        assert lines(app)[0] == "arc top needs 80x24, this terminal is 79x24"
        assert not app.main.query_one("#head").display
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert app.main.query_one("#head").display and lines(app)[0].startswith("── Batch")
        await pilot.resize_terminal(30, 5)
        await pilot.pause()
        assert "arc top needs" in lines(app)[0]


async def test_the_last_picture_of_a_lost_engine_is_grey_and_cannot_be_changed() -> None:
    gone = replace(picture(), link=Link("lost", NOW, "it ended the stream", heard=NOW))
    app = console(gone)
    async with app.run_test(size=(120, 40)) as pilot:
        assert "engine gone since" in lines(app, "alarms")[0]
        canvas = app.main.query_one("#body", Canvas)
        off = app.styles_by_role["off"].color
        assert off is not None and {s.style.color for s in canvas.render_line(1) if s.style} == {off}
        await press(pilot, "m")
        assert app.screen is app.main and any("engine is gone" in each for each in toasts(app))


async def test_a_viewer_is_offered_nothing_that_changes_the_engine() -> None:
    app = console(viewer=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "5")
        foot = lines(app, "foot")[0]
        assert "apply" not in foot and "filter" in foot
        for key in ("e", "m", "p"):
            await press(pilot, key)
            assert app.screen is app.main
        assert all("read-only" in each for each in toasts(app)) and len(toasts(app)) >= 1


async def test_a_remapped_key_moves_and_is_named_in_the_footer() -> None:
    app = console(keymap={"freeze": "f"})
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "space")
        assert "live" in lines(app, "head")[1]
        await press(pilot, "f")
        assert "frozen" in lines(app, "head")[1]
        assert "f freeze" in lines(app, "foot")[0]


async def test_every_theme_has_a_style_for_every_role() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        seen = set()
        for _ in THEMES:
            seen.add(app.theme)
            assert len(set(app.styles_by_role.values())) > 6
            await press(pilot, "T")
        assert seen == set(THEMES)


async def test_without_colours_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = console()
    async with app.run_test(size=(120, 40)):
        assert all(style.color is None and style.bgcolor is None for style in app.styles_by_role.values())


async def test_an_ascii_screen_is_ascii() -> None:
    app = console(ascii_text=True)
    async with app.run_test(size=(80, 24)) as pilot:
        for view in "123456":
            await press(pilot, view)
            for name in ("head", "body", "foot"):
                canvas = app.main.query_one(f"#{name}", Canvas)
                for y in range(canvas.size.height):
                    assert canvas.render_line(y).text.isascii()


async def test_copy_takes_the_row_and_export_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "2", "y")
        assert app.clipboard == recorded().sequences.sequences[0].id
        await press(pilot, "x")
        told = toasts(app)
    (written,) = names(tmp_path)
    assert any(written in each for each in told)


# -- over an engine -----------------------------------------------------------------------------------------------


async def attached(engine: Engine, pilot: Pilot[None], app: Console) -> None:
    await until(pilot, lambda: app.store.picture.snapshot is not None)


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    for _ in range(1500):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError("it did not come about")


def live(engine: Engine, **options: Any) -> Console:
    return Console(Options(engine.path, **options))


async def edit(pilot: Pilot[None], app: Console, flag: str, value: str) -> None:
    app.main.changes.choose_flag(flag)
    await pilot.pause()
    assert isinstance(app.screen, Prompt)
    app.screen.query_one(Input).value = value
    await pilot.pause()
    await press(pilot, "enter")


async def test_edits_are_tried_applied_for_a_reason_and_undone(engine: Engine) -> None:
    app = live(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        await attached(engine, pilot, app)
        await edit(pilot, app, "sched.max_running", "16")
        await edit(pilot, app, "sched.prefill_chunk", "64")
        await press(pilot, "a")
        dialog = app.screen
        assert isinstance(dialog, Apply)
        assert dialog.focused is dialog.query_one("#yes", Button)  # neither hurts: fewer rows, smaller chunks
        dialog.query_one("#reason", Input).value = "evening peak"
        dialog.query_one("#limit", Select).value = 300.0
        await pilot.click("#try")
        await until(pilot, lambda: "dry run" in str(dialog.query_one("#answer", Static).render()))
        assert engine.engine.settings.get_int("sched.max_running") != 16
        await pilot.click("#yes")
        await until(pilot, lambda: app.screen is app.main)
        assert engine.engine.settings.get_int("sched.max_running") == 16
        assert engine.engine.settings.get_int("sched.prefill_chunk") == 64
        assert [each.until is not None for each in engine.engine.pending] == [True, True]
        (event,) = engine.engine.events.since(0)[1]
        assert "evening peak" in event.text and "for 300 s" in event.text
        assert app.main.flags.edits == {}
        await until(pilot, lambda: (f := app.main.flags.find("sched.max_running")) and f.value == 16)
        await press(pilot, "z")
        await pilot.click("#yes")
        await until(pilot, lambda: engine.engine.settings.get_int("sched.max_running") == 64)
        await until(pilot, lambda: app.screen is app.main)
        await press(pilot, "z")
        assert any("nothing that could be undone" in each for each in toasts(app))


async def test_a_danger_is_said_in_the_way_that_hurts_and_not_on_the_way_back(engine: Engine) -> None:
    app = live(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        await attached(engine, pilot, app)

        async def asked(value: str, *keys: str) -> tuple[bool, str | None]:
            """Whether the dialog warns, and which button has the focus; then it is applied."""
            await press(pilot, *keys)
            dialog = app.screen
            assert isinstance(dialog, Apply)
            text, focused = str(dialog.query_one("#difference", Static).render()), dialog.focused
            assert f"→ {value}" in text
            await until(pilot, lambda: dialog.query_one("#yes", Button).region.area)
            await pilot.click("#yes")
            await until(pilot, lambda: app.screen is app.main)
            await until(
                pilot, lambda: (f := app.main.flags.find("sched.prefill_chunk")) and str(f.value) == value
            )
            return "▲ a larger chunk brings" in text, focused and focused.id

        await edit(pilot, app, "sched.prefill_chunk", "512")
        assert await asked("512", "a") == (True, "no")
        assert await asked("256", "z") == (False, "yes")  # undone
        await edit(pilot, app, "sched.prefill_chunk", "64")
        assert await asked("64", "a") == (False, "yes")
        assert await asked("256", "z") == (True, "no")
        app.main.flags.edits.update({"sched.prefill_chunk": 64, "sched.paused": True})
        await press(pilot, "a")  # one of several is enough
        dialog = app.screen
        assert isinstance(dialog, Apply)
        text = str(dialog.query_one("#difference", Static).render())
        assert text.count("▲") == 1 and "requests wait until it is off again" in " ".join(text.split())
        assert dialog.focused is dialog.query_one("#no", Button)


async def test_a_read_only_console_is_refused_by_the_engine_too(engine: Engine) -> None:
    app = live(engine, viewer=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await attached(engine, pilot, app)
        done: list[Any] = []
        app.calls.patch(p.FlagsPatch(changes={"sched.max_waiting": 9}), done.append)
        await until(pilot, lambda: done)
        assert isinstance(done[0], Refused) and done[0].status == 403
        await until(pilot, lambda: "viewer" in lines(app, "head")[0])


async def test_a_refusal_names_each_flag_and_keeps_the_edits(engine: Engine) -> None:
    app = live(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        await attached(engine, pilot, app)
        await edit(pilot, app, "sched.max_running", "4000")  # past what was reserved at start
        await press(pilot, "a")
        dialog = app.screen
        await pilot.click("#yes")
        await until(pilot, lambda: "128" in str(dialog.query_one("#answer", Static).render()))
        assert "sched.max_running" in str(dialog.query_one("#answer", Static).render())
        await press(pilot, "escape")
        assert app.main.flags.edits == {"sched.max_running": 4000}
        assert engine.engine.settings.get_int("sched.max_running") == 64


async def test_a_value_that_cannot_be_is_refused_while_it_is_typed(engine: Engine) -> None:
    app = live(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        await attached(engine, pilot, app)
        await edit(pilot, app, "sched.max_running", "many")
        assert isinstance(app.screen, Prompt)  # still there
        assert "sched.max_running" in str(app.screen.query_one("#wrong", Static).render())
        await press(pilot, "escape")
        app.main.changes.choose_flag("cache.page_size")
        await pilot.pause()
        assert app.screen is app.main and any("restart only" in each for each in toasts(app))


async def test_the_settings_that_changed_meanwhile_refuse_a_plan_made_before(engine: Engine) -> None:
    app = live(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        await attached(engine, pilot, app)
        await edit(pilot, app, "sched.max_running", "16")
        await press(pilot, "a")
        dialog = app.screen
        done: list[Any] = []
        app.calls.patch(p.FlagsPatch(changes={"sched.max_waiting": 9}), done.append)
        await until(pilot, lambda: done)
        await pilot.click("#yes")
        await until(pilot, lambda: "version" in str(dialog.query_one("#answer", Static).render()))
        assert engine.engine.settings.get_int("sched.max_running") == 64


async def test_cancelling_asks_once_with_the_focus_on_keeping(engine: Engine) -> None:
    app = live(engine)
    engine.engine.submit(1_000_000, "one")
    engine.engine.submit(1_000_000, "two")
    async with app.run_test(size=(120, 40)) as pilot:
        await attached(engine, pilot, app)
        await press(pilot, "2")
        await until(pilot, lambda: any("two" in line for line in lines(app)))
        await press(pilot, "down", "c")
        assert isinstance(app.screen, Confirm)
        await press(pilot, "enter")  # the focus is on keeping it
        assert app.screen is app.main and engine.engine.counters.running == 2
        await press(pilot, "c")
        await pilot.click("#yes")
        await until(pilot, lambda: engine.engine.counters.running == 1)
        await until(pilot, lambda: any("cancelled at step" in each for each in toasts(app)))
        assert [work.id for work in engine.engine._work] == ["one"]


async def test_a_mark_is_an_event_and_one_by_another_is_a_toast(engine: Engine) -> None:
    app = live(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        await attached(engine, pilot, app)
        await press(pilot, "m", *"load doubled", "enter")
        await until(pilot, lambda: engine.engine.events.last == 1)
        engine.engine.events.add("flags", "sched.order fcfs→prefix", uid=1000, pid=1)
        await until(pilot, lambda: any("by uid 1000 pid 1" in each for each in toasts(app)))
        await press(pilot, "6")
        await until(pilot, lambda: any("load doubled" in line for line in lines(app)))


async def test_unset_returns_to_the_layer_below(engine: Engine) -> None:
    app = live(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        await attached(engine, pilot, app)
        await press(pilot, "5")
        app.main.flags.choose("sched.paused")
        await press(pilot, "u")
        assert any("no runtime value" in each for each in toasts(app))
        await press(pilot, "e", "a")
        await pilot.click("#yes")
        await until(pilot, lambda: engine.engine.settings.get_bool("sched.paused"))
        await until(pilot, lambda: app.screen is app.main)
        await until(pilot, lambda: (f := app.main.flags.find("sched.paused")) and f.origin.layer == "runtime")
        await press(pilot, "u")
        await pilot.click("#yes")
        await until(pilot, lambda: not engine.engine.settings.get_bool("sched.paused"))


async def test_a_profile_is_proposed_as_its_difference(engine: Engine) -> None:
    app = live(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        await attached(engine, pilot, app)
        await press(pilot, "p")
        dialog = app.screen
        assert isinstance(dialog, Choose)
        dialog.dismiss("latency")
        await until(pilot, lambda: isinstance(app.screen, Apply))
        await until(
            pilot, lambda: app.screen.query_one("#yes", Button).region.area
        )  # laid out: a click finds it
        text = str(app.screen.query_one("#difference", Static).render())
        assert "sched.max_running" in text and "→ 16" in text
        await pilot.click("#yes")
        await until(pilot, lambda: engine.engine.settings.get_int("sched.max_running") == 16)


# -- over another engine's page ---------------------------------------------------------------------------------------


async def test_another_engine_is_watched_and_nothing_of_it_is_changed() -> None:
    with serving(page(vllm(num_requests_running=3, generation_tokens_total=1.0))) as server:
        reader = MetricsReader(address(server.url), interval=0.02)
        reader.read()
        (engine,) = reader.engines
        app = Console(Options(), store=engine.store, reader=reader)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: app.store.picture.samples)
            for view in "123456":
                await press(pilot, view)
                assert whole(app, (120, 40)), view
            await press(pilot, "1")
            assert any("running        3" in line for line in lines(app))
            for key in ("m", "z", "p"):
                await press(pilot, key)
                assert app.screen is app.main
            assert any("can only be read" in each for each in toasts(app))
            server.answer = page("<html>\n")
            await until(pilot, lambda: app.store.picture.link.state == "lost")
            app.main.draw()
            assert any("engine gone" in line and "<html>" in line for line in lines(app, "alarms"))
            assert app.main.query_one("#body", Canvas)._faded
            assert any("running        3" in line for line in lines(app))


# -- dialogs ----------------------------------------------------------------------------------------------------------


def in_sight(app: Console) -> bool:
    """Every button and field of the dialog is whole on the screen and none lies on another."""
    shown = app.screen.query("Button, Input, Select, OptionList")
    regions = [each.region for each in shown if each.display]
    apart = all(not one.overlaps(other) for index, one in enumerate(regions) for other in regions[:index])
    return bool(regions) and apart and all(app.screen.region.contains_region(each) for each in regions)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_buttons_stay_in_sight_however_much_there_is_to_say(size: tuple[int, int]) -> None:
    app = console()
    async with app.run_test(size=size) as pilot:
        await press(pilot, "5")
        for row in app.main.flags._rows:
            if row.reach == "live":  # all of them, far more than fit
                app.main.flags.edits[row.name] = row.value
        await press(pilot, "a")
        dialog = app.screen
        assert isinstance(dialog, Apply) and in_sight(app)
        dialog._say("\n".join(f"refusal {number}: " + "words " * 20 for number in range(12)))
        await pilot.pause()
        assert in_sight(app)
        await press(pilot, "escape")
        for row in app.main.flags._rows:
            if row.reach == "live" and not isinstance(row.value, bool):
                app.main.changes.choose_flag(row.name)
                await pilot.pause()
                assert isinstance(app.screen, (Prompt, Choose)) and in_sight(app), row.name
                await press(pilot, "escape")
            app.main.flags.choose(row.name)
            if row.reach == "live":
                await press(pilot, "b")
                assert isinstance(app.screen, Ask) and in_sight(app), row.name
                await press(pilot, "escape")
