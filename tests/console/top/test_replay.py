"""Replays: the player's clock, the flight recorder's file as a tape, and the keys in the application."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from arc.console.commands.replay import replay
from arc.console.exits import Failure
from arc.console.top.app import Console, Options
from arc.console.top.canvas import Canvas
from arc.console.top.dialogs import Prompt
from arc.console.top.player import SPEEDS, Player
from arc.console.top.recording import RecordingStore
from arc.console.top.scene import Scene
from arc.console.top.seek import NotAMoment, moment_of
from arc.console.top.store import Picture, Store
from arc.console.top.tape import Tape, open_tape
from arc.engine.control import protocol as p
from arc.engine.control import recorder as recorder_module
from arc.engine.control.recorder import Recorder
from arc.engine.flags import DEFAULTS
from arc.engine.telemetry.records import StepRecord
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot
from textual.widgets import Input, Static

from tests.engine.control.simulated import SimulatedEngine
from tests.engine.control.test_history import step

from .recorded import picture, recorded, snapshot
from .test_recording import TOLD

START = recorded().time


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def recording(path: Path, pictures: int = 40) -> Path:
    """Ten seconds: a snapshot every quarter of one, with its number as what runs."""
    clock = Clock(START)
    store = RecordingStore(path, clock)
    TOLD["attached"](store)
    store.put(flags=picture().flags)
    for number in range(pictures):
        clock.now = START + 0.25 * (number + 1)
        store.snapshot(snapshot(running=number, time=clock.now), clock.now)
    store.close()
    return path


def running(picture: Picture) -> int | None:
    return picture.snapshot and picture.snapshot.running


# -- the player -------------------------------------------------------------------------------------------------------


@pytest.fixture
def player(tmp_path: Path) -> tuple[Player, Store, Clock]:
    clock, store = Clock(), Store()
    return Player(open_tape(recording(tmp_path / "a.top")), store, "a.top", clock), store, clock


def test_it_plays_by_its_clock_at_its_speed_and_stands_at_the_end(
    player: tuple[Player, Store, Clock],
) -> None:
    playing, store, clock = player
    assert playing.playing and playing.now() == START
    clock.now += 1.0
    playing.show()
    assert running(store.picture) == 3 and playing.now() == START + 1.0
    playing.faster(1)
    clock.now += 1.0
    assert playing.now() == START + 3.0  # the speed holds from where it was changed
    playing.toggle()
    clock.now += 100.0
    assert playing.now() == START + 3.0 and not playing.playing
    playing.toggle()
    clock.now += 100.0
    playing.show()
    assert playing.now() == playing.end and not playing.playing and running(store.picture) == 39
    playing.toggle()  # from the end it begins again
    assert playing.now() == START and playing.playing


def test_steps_go_through_every_picture_and_back(player: tuple[Player, Store, Clock]) -> None:
    playing, store, _ = player
    onward = [running(store.picture)]
    for _ in range(60):
        playing.step(1)
        onward.append(running(store.picture))
    assert onward[:41] == [None, *range(40)] and not playing.playing
    back = [running(store.picture)]
    for _ in range(60):
        playing.step(-1)
        back.append(running(store.picture))
    assert back[:41] == [*range(39, -1, -1), None] and playing.now() == playing.start


@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["seek", "step", "faster", "toggle", "wait"]), st.integers(-20, 20))
    )
)
def test_it_never_leaves_the_recording(
    tmp_path_factory: pytest.TempPathFactory, moves: Sequence[tuple[str, int]]
) -> None:
    clock, store = Clock(), Store()
    tape = open_tape(recording(tmp_path_factory.mktemp("p") / "a.top", 8))
    playing = Player(tape, store, "a.top", clock)
    for what, by in moves:
        before = playing.now()
        match what:
            case "seek":
                playing.seek(playing.now() + by)
            case "step":
                playing.step(by)
            case "faster":
                playing.faster(by)
                assert playing.now() == before and playing.speed in SPEEDS
            case "toggle":
                playing.toggle()
            case _:
                clock.now += abs(by)
        playing.show()
        assert playing.start <= playing.now() <= playing.end
        assert store.picture.snapshot == tape.picture_at(playing.now()).snapshot


def test_every_picture_that_is_shown_has_a_number_of_its_own(player: tuple[Player, Store, Clock]) -> None:
    """Else the screen would take it for the one that it has drawn."""
    playing, store, _ = player
    numbers = [store.picture.number]
    for move in (5.0, -3.0, 2.0, -9.0):
        playing.seek(playing.now() + move)
        numbers.append(store.picture.number)
    assert len(set(numbers)) == len(numbers)


# -- where to go ------------------------------------------------------------------------------------------------------


def test_where_to_go_is_written_as_people_do(player: tuple[Player, Store, Clock]) -> None:
    playing, _, _ = player
    playing.seek(START + 5)
    state = playing.state()
    clock = time.strftime("%H:%M:%S", time.localtime(START + 7))
    for text, wanted in (
        ("0%", START), ("50 %", START + 5.0), ("100%", START + 10.0), ("+2", START + 7), ("-3s", START + 2),
        ("1m", START + 65), (clock, START + 7),
    ):  # fmt: skip
        assert moment_of(text, state) == pytest.approx(wanted, abs=1.0), text
    for text in (
        "",
        "later",
        "25:00",
        "12:61",
        "101%",
        "5 parsecs",
        "00:00" if "00:0" not in clock else "12:00",
    ):
        with pytest.raises(NotAMoment):
            moment_of(text, state)


# -- a flight recorder's file -----------------------------------------------------------------------------------------


@pytest.fixture
def flown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three seconds of ten steps each, a changed flag in the second one, and a step that never ended."""
    path = tmp_path / "main.rec"
    clock = Clock(5000.0)
    wall = START - 5000.0
    monkeypatch.setattr(
        recorder_module, "time", SimpleNamespace(monotonic=clock, time=lambda: wall + clock.now)
    )
    recorder = Recorder(path, SimulatedEngine("flown").info, DEFAULTS)
    changes = {"sched.max_running": {"old": 64, "new": 3}}
    for index in range(30):
        if index == 15:
            recorder.event(
                p.Event(
                    number=1, time=wall + clock.now, kind="flags", text="sched.max_running 64→3", uid=7, pid=8,
                    data={"changes": changes},
                )
            )  # fmt: skip
        recorder.opened(index, 4)
        recorder.closed(flown_step(index, clock.now))
        clock.now += 0.1
    recorder.opened(30, 17)
    monkeypatch.undo()
    return path


def flown_step(index: int, started: float) -> StepRecord:
    return msgspec.structs.replace(
        step(index, 4, wall=0.05), started=started, admitted=5, finished=index % 2, waiting=index, pages_used=20,
        pages_cached=3, pages_free=77, prompt_tokens=6,
    )  # fmt: skip


def test_a_flight_recorders_file_shows_its_steps(flown: Path) -> None:
    tape = open_tape(flown)
    assert tape.opens_at == tape.moments[-1]
    last = tape.picture_at(tape.moments[-1])
    assert last.hello is not None and (last.hello.name, last.hello.profile) == ("flown", "--")
    shown = last.snapshot
    assert shown is not None and (shown.step, shown.running, shown.waiting) == (29, 4, 29)
    assert (shown.pages.used, shown.pages.cached, shown.pages.free, shown.pages.total) == (20, 3, 77, 100)
    assert shown.step_open is not None  # the step that the engine ended in
    totals = Scene(last, 60.0, None, tape.moments[-1]).totals
    assert (totals.steps, totals.rows, totals.prompt_tokens) == (30, 120, 180)


def test_what_the_recorder_does_not_keep_stays_unknown(flown: Path) -> None:
    tape = open_tape(flown)
    scene = Scene(tape.picture_at(tape.moments[-1]), 60.0, None, tape.moments[-1])
    assert scene.totals.rate(scene.totals.generation_tokens) is None
    assert scene.totals.count(scene.totals.prefix_queries) is None and scene.totals.latency == {}
    assert scene.gauges is not None and scene.gauges.reasons is None
    assert scene.picture.sequences is None and scene.picture.host is None and scene.picture.memory is None


def test_the_flags_are_those_of_the_moment(flown: Path) -> None:
    tape = open_tape(flown)

    def at(moment: float) -> tuple[object, bool]:
        flags = tape.picture_at(moment).flags
        assert flags is not None
        (row,) = [row for row in flags.flags if row.name == "sched.max_running"]
        return row.value, row.changed

    assert at(tape.moments[0]) == (64, False)
    assert at(tape.moments[-1]) == (3, True)
    before, after = (
        [isinstance(event, p.Event) and event.kind for event in tape.picture_at(moment).events]
        for moment in (tape.moments[0], tape.moments[-1])
    )
    assert before == [] and after == ["flags"]


def test_a_file_without_steps_or_cut_short_is_refused(tmp_path: Path, flown: Path) -> None:
    Recorder(tmp_path / "idle.rec", SimulatedEngine("idle").info, DEFAULTS)
    with pytest.raises(Failure, match="keeps no step"):
        open_tape(tmp_path / "idle.rec")
    (tmp_path / "short.rec").write_bytes(flown.read_bytes()[:100_000])
    with pytest.raises(Failure, match="100000 bytes, not"):
        open_tape(tmp_path / "short.rec")


@pytest.mark.parametrize("kind", ["recording", "flight recorder"])
def test_every_moment_of_a_tape_can_be_shown(kind: str, tmp_path: Path, flown: Path) -> None:
    tape: Tape = open_tape(flown if kind == "flight recorder" else recording(tmp_path / "a.top"))
    assert tape.kind == kind and list(tape.moments) == sorted(set(tape.moments))
    for moment in tape.moments:
        scene = Scene(tape.picture_at(moment), 60.0, None, moment)
        assert scene.picture.hello is not None
        assert all(sample.time <= moment + 1 for sample in scene.window)


# -- in the application -----------------------------------------------------------------------------------------------


def replaying(path: Path) -> tuple[Console, Clock]:
    clock, store = Clock(), Store()
    player = Player(open_tape(path), store, path.name, clock)
    return Console(Options(path), store=store, player=player, clock=player.now), clock


def lines(app: Console, name: str = "body") -> list[str]:
    return [line.rstrip() for line in app.main.query_one(f"#{name}", Canvas).text]


async def press(pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()


async def test_the_header_says_that_it_is_a_replay_and_where_it_stands(tmp_path: Path) -> None:
    app, clock = replaying(recording(tmp_path / "a.top"))
    async with app.run_test(size=(120, 40)) as pilot:
        assert "◀ replaying" in lines(app, "head")[0] and "operator" not in lines(app, "head")[0]
        clock.now += 5.0
        await press(pilot, "space")
        assert "‖ paused" in lines(app, "head")[1] and "50 %" in lines(app, "head")[1]
        assert any("running       19" in line for line in lines(app))
        await press(pilot, "greater_than_sign", "greater_than_sign", "less_than_sign")
        assert any("running       20" in line for line in lines(app))
        await press(pilot, "left")
        assert "◀ replaying" in lines(app, "head")[0] and "0 %" in lines(app, "head")[1]
        await press(pilot, "plus", "plus", "space")
        assert "▶ 4x" in lines(app, "head")[1]
        await press(pilot, "minus")
        assert "▶ 2x" in lines(app, "head")[1]
        await press(pilot, "end")
        assert "‖ paused" in lines(app, "head")[1] and "100 %" in lines(app, "head")[1]


async def test_go_to_checks_what_is_written(tmp_path: Path) -> None:
    app, _ = replaying(recording(tmp_path / "a.top"))
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "space", "g", *"never", "enter")
        assert isinstance(app.screen, Prompt)
        assert "a time of day" in str(app.screen.query_one("#wrong", Static).render())
        app.screen.query_one(Input).value = "50%"
        await press(pilot, "enter")
        assert app.screen is app.main and any("running       19" in line for line in lines(app))


async def test_nothing_can_be_changed_in_a_replay(tmp_path: Path) -> None:
    app, _ = replaying(recording(tmp_path / "a.top"))
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "5")
        assert "apply" not in lines(app, "foot")[0] and "play" in lines(app, "foot")[0]
        for key in ("e", "m", "p"):
            await press(pilot, key)
            assert app.screen is app.main and not app.main.flags.edits
        assert {note.message for note in app._notifications} == {"this is a replay: nothing can be changed"}


async def test_a_file_that_is_not_whole_says_so_all_the_time(tmp_path: Path) -> None:
    path = recording(tmp_path / "a.top")
    path.write_bytes(path.read_bytes()[:-200])
    app, _ = replaying(path)
    async with app.run_test(size=(80, 24)) as pilot:
        assert "THE FILE IS NOT WHOLE" in lines(app, "alarms")[0]
        await press(pilot, "2", "end")
        assert "THE FILE IS NOT WHOLE" in lines(app, "alarms")[0]


async def test_what_was_passed_over_is_not_told_as_news(flown: Path) -> None:
    app, clock = replaying(flown)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "g", *"0%", "enter")
        await press(pilot, "g", *"100%", "enter")
        assert not list(app._notifications)
        await press(pilot, "space")  # played through, it is
        clock.now += 2.0
        app.main.draw()
        await pilot.pause()
        assert any("max_running" in note.message for note in app._notifications)


async def test_the_keys_of_a_replay_say_elsewhere_how_to_get_one() -> None:
    store = Store()
    store.picture = picture()
    app = Console(Options(Path("/nowhere")), store=store, clock=lambda: START)
    async with app.run_test(size=(120, 40)) as pilot:
        for key in ("less_than_sign", "plus", "g"):
            await press(pilot, key)
            assert app.screen is app.main
        assert all("arc top --record" in note.message for note in app._notifications)


def test_the_command_says_what_is_wrong_before_it_looks_for_a_terminal(tmp_path: Path) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("nothing")
    for path, code, says in (
        (foreign, 1, "no recording of"),
        (tmp_path / "none", 1, "No such file"),
        (tmp_path, 2, "is a directory"),
        (recording(tmp_path / "a.top"), 2, "this is no terminal"),
    ):
        result = CliRunner().invoke(replay, [str(path)])
        assert result.exit_code == code and says in result.output, result.output
