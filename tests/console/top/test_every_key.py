"""What each key does, seen from outside, and on every key of its: a key without a line in EFFECTS fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arc.console.top.app import Console
from arc.console.top.filter_field import FilterField
from arc.console.top.keys import BY_ID, KEYS
from arc.console.top.scene import SPANS

from .recorded import recorded
from .test_app import console, lines

Probe = Callable[[Console], Any]


def view(app: Console) -> str:
    return app.main.view.name


def screen(app: Console) -> str:
    return type(app.screen).__name__


def place(app: Console) -> int:
    assert app.main.view.table is not None
    return app.main.view.table.place


def sorted_by(app: Console) -> object:
    assert app.main.view.table is not None
    return app.main.view.table.sorted_by


def descending(app: Console) -> bool:
    assert app.main.view.table is not None
    return app.main.view.table.descending


def mode(app: Console) -> str:
    """live, frozen, or how long ago."""
    line = lines(app, "head")[1]
    return next((word for word in ("live", "frozen", "ago") if word in line), line)


def span(app: Console) -> float:
    return SPANS[app.main._span]


def panels(app: Console) -> int:
    return sum(line.count("── ") for line in lines(app))


def edits(app: Console) -> dict[str, Any]:
    return dict(app.main.flags.edits)


def told(app: Console) -> str:
    return " ".join(note.message for note in app._notifications)


def says(text: str) -> Callable[[Any], bool]:
    return lambda value: text in value


def flag(name: str) -> Callable[[Console], None]:
    return lambda app: app.main.flags.choose(name)


FLAGS_LAST = len(recorded().flags.flags) - 1
PAUSED = ("5", flag("sched.paused"))

# id: what comes first (keys, or calls), what is looked at, and what it is then: a value, or a test of it.
EFFECTS: dict[str, tuple[tuple[Any, ...], Probe, Any]] = {
    "view_1": (("6",), view, "Overview"),
    "view_2": ((), view, "Sequences"),
    "view_3": ((), view, "Spans"),
    "view_4": ((), view, "Allocator"),
    "view_5": ((), view, "Flags"),
    "view_6": ((), view, "Events"),
    "view_next": ((), view, "Sequences"),
    "view_previous": ((), view, "Events"),
    "enter": ((), view, "Sequences"),
    "back": (("space",), mode, "live"),
    "maximise": ((), panels, 1),
    "help": ((), screen, "Help"),
    "palette": ((), screen, "CommandPalette"),
    "up": (("2", "down", "down"), place, 1),
    "down": (("2",), place, 1),
    "page_up": (("5", "end"), place, lambda value: 0 <= value < FLAGS_LAST),
    "page_down": (("5",), place, lambda value: value > 5),
    "first": (("5", "down", "down"), place, 0),
    "last": (("5",), place, FLAGS_LAST),
    "filter": (("2",), lambda app: app.main.query_one(FilterField).display, True),
    "sort_previous": (("2",), sorted_by, lambda value: value is not None and value > 0),
    "sort_next": (("2",), sorted_by, 0),
    "sort_turn": (("2", "full_stop"), descending, True),
    "freeze": ((), mode, "frozen"),
    "history_back": ((), mode, "ago"),
    "history_forward": (("left",), mode, "live"),
    "window_shorter": ((), span, SPANS[0]),
    "window_longer": ((), span, SPANS[2]),
    "pin": ((), told, says("nothing to pin")),
    "mark": ((), screen, "Prompt"),
    "replay_back": ((), told, says("this is no replay")),
    "replay_on": ((), told, says("this is no replay")),
    "replay_slower": ((), told, says("this is no replay")),
    "replay_faster": ((), told, says("this is no replay")),
    "replay_seek": ((), told, says("this is no replay")),
    "cancel": (("2",), screen, "Confirm"),
    "edit": (PAUSED, edits, {"sched.paused": True}),
    "drop": ((*PAUSED, "e"), edits, {}),
    "apply": ((*PAUSED, "e"), screen, "Apply"),
    "unset": (("5", flag("sched.max_running")), screen, "Confirm"),
    "undo": ((), told, says("changed nothing")),
    "profile": ((), screen, "Choose"),
    "experiment": (PAUSED, screen, "Ask"),
    "trim": ((), told, says("no engine answers")),  # it asks the engine, which is not there
    "demo": ((), told, says("no demo load")),
    "export": (("2",), lambda app: len(list(Path.cwd().glob("arc-sequences-*.csv"))), lambda value: value > 0),
    "copy": (("2",), lambda app: app.clipboard, recorded().sequences.sequences[0].id),
    "theme": ((), lambda app: app.theme, "arc-light"),
    "quit": ((), lambda app: app.is_running, False),
}  # fmt: skip


def test_every_key_has_an_effect_that_is_tested() -> None:
    assert set(EFFECTS) == set(BY_ID), "each key of keys.py has a line in EFFECTS"


@pytest.mark.parametrize("group", dict.fromkeys(key.group for key in KEYS))
async def test_what_each_key_does(group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pressed = [(key.id, each) for key in KEYS if key.group == group for each in key.keys.split(",")]
    pressed.sort(key=lambda pair: pair[0] == "quit")  # nothing comes after it
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        for name, key in pressed:
            before, probe, wanted = EFFECTS[name]
            await _home(app, pilot)
            for each in before:
                if callable(each):
                    each(app)
                else:
                    await pilot.press(each)
            await pilot.pause()

            def so(probe: Probe = probe, wanted: Any = wanted) -> bool:
                found = probe(app)
                return bool(wanted(found)) if callable(wanted) else found == wanted

            assert not so() or name == "export", f"{name}: it is so before {key} is pressed"
            await pilot.press(key)
            await pilot.pause()
            for _ in range(600):  # what is asked of an engine comes from a thread
                if so():
                    break
                await pilot.pause(0.05)
            assert so(), f"{key} ({name}): {probe(app)!r}"


async def _home(app: Console, pilot: Any) -> None:
    """As at the start: no dialog, no filter, now, nothing edited, nothing told, view 1."""
    while app.screen is not app.main:
        await pilot.press("escape")
    if app.main.query_one(FilterField).display:
        await pilot.press("escape")
    for each in app.main._views:
        each.back()
        if each.table is not None:
            each.table.sorted_by, each.table.descending = None, False
            each.table.go(0)
    app.main._frozen = app.main._at = None
    app.main._span = 1
    app.main.flags.edits.clear()
    app.clear_notifications()
    app.theme = "arc-dark"
    app._clipboard = ""
    app.main.go(0)
    await pilot.pause()
