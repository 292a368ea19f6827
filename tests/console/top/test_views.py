"""The views over recorded data: their text at three sizes, nothing clipped that is a number, nothing wider than asked.

`python -m tests.console.top.pictures` writes the expected pictures anew; read the difference before it is committed.
"""

from __future__ import annotations

import re

import msgspec
import pytest
from arc.console.top import header
from arc.console.top.lines import ascii_only, text_of
from arc.console.top.scene import Scene
from arc.console.top.views import panels
from arc.console.top.views.catalogue import make_views
from arc.console.top.views.events import Events
from arc.console.top.views.flags import Flags, checked, declaration
from arc.console.top.views.overview import Overview
from arc.console.top.views.sequences import Sequences, speed
from arc.engine.control import protocol as p
from arc.engine.flags import FlagError

from .pictures import NAMES, PAGE_NAMES, expected_path, picture_lines
from .recorded import SIZES, picture, recorded, scene, snapshot, texts, widths


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", [*NAMES, *PAGE_NAMES])
def test_the_picture_is_the_expected_one(name: str, size: tuple[int, int]) -> None:
    assert picture_lines(name, size) == expected_path(name, size).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("size", [*SIZES, (80, 60), (200, 24), (97, 31), (159, 33), (160, 50)])
@pytest.mark.parametrize("index", range(6))
def test_lines_fill_the_width_and_clip_no_number(index: int, size: tuple[int, int]) -> None:
    view = make_views()[index]
    lines = view.lines(scene(), size[0], size[1] - 3)
    assert len(lines) <= size[1] - 3
    assert widths(lines) == {size[0]}
    for line in lines:
        for text, _ in line:
            assert not re.search(r"\d…$", text) or re.search(r"[a-zA-Z/]", text), (
                text
            )  # an id may, a number not


def test_numbers_grow_to_the_left_and_nothing_beside_them_moves() -> None:
    few, many = snapshot(running=3, waiting=1), snapshot(running=4096, waiting=104_857)
    for size in SIZES:
        before, after = (
            texts(Overview().lines(scene(snapshot=each), size[0], size[1] - 3))[1] for each in (few, many)
        )
        assert before.index("waiting") == after.index("waiting")
        assert "4,096" in after and "104,857" in after
        assert len(before.split("│")[0]) == len(after.split("│")[0])


def test_before_anything_is_known_nothing_is_zero() -> None:
    empty = Scene(type(picture())(), 60.0, None, recorded().time)
    for view in make_views():
        for size in SIZES:
            shown = "\n".join(texts(view.lines(empty, size[0], size[1] - 3)))
            axis = re.sub(r"^ +[01]( |$)|│ +[01]( |$)", "", shown, flags=re.MULTILINE)
            assert not re.search(r"(?<![\d:])0(?![\d:])", axis), shown


def test_ascii_pictures_are_ascii_and_say_the_same() -> None:
    plain = Scene(picture(), 60.0, None, recorded().time, ascii_dots=True)
    for view in make_views():
        for line in view.lines(plain, 80, 21):
            assert "⠀" not in text_of(line)
            assert ascii_only(text_of(line)).count("?") == text_of(line).count("?")


# -- overview -----------------------------------------------------------------------------------------------------


def test_the_newest_change_names_itself_over_the_plot() -> None:
    lines = texts(Overview().lines(scene(), 120, 37))
    legend = next(line for line in lines if "▼" in line)
    assert "load doubled" in legend
    earlier = scene(at=recorded().events.events[2].time + 2)
    assert any("max_running 8→4" in line for line in texts(Overview().lines(earlier, 120, 37)))


def test_a_change_is_named_without_its_group_unless_two_flags_are_called_so() -> None:
    event = next(each for each in recorded().events.events if each.kind == "flags")
    changes = {
        "alloc.enabled": {"old": True, "new": False},
        "admission.policy": {"old": "ragged", "new": "bucketed"},
    }
    seen = scene(
        events=(msgspec.structs.replace(event, data={"changes": changes}, time=recorded().time - 58),)
    )
    text = "\n".join(texts(Overview().lines(seen, 200, 57)))
    assert "alloc.enabled on→off, policy ragged→bucketed" in text


def test_the_oldest_sequences_stand_beside_the_events_where_there_is_room() -> None:
    lines = texts(Overview().lines(scene(), 200, 57))
    start = next(index for index, line in enumerate(lines) if "Oldest sequences" in line)
    by_age = sorted(recorded().sequences.sequences, key=lambda each: -each.age)
    shown = [line.split()[0].rstrip("…") for line in lines[start + 2 : start + 2 + len(by_age)]]
    assert all(each.id.startswith(name) for each, name in zip(by_age, shown, strict=True))
    assert Overview().wants_sequences(200) and not Overview().wants_sequences(120)


def test_a_panel_takes_the_whole_place_and_gives_it_back() -> None:
    view = Overview()
    whole = view.lines(scene(), 120, 37)
    view.step(1, 120)
    assert view.maximise()
    alone = texts(view.lines(scene(), 120, 37))
    assert (
        alone[0].startswith("── Rate ─") and len(alone) == 37 and not any("Batch" in line for line in alone)
    )
    assert view.back() and not view.back()
    assert texts(view.lines(scene(), 120, 37)) == texts(whole)


def test_a_click_chooses_the_panel_and_enter_drills() -> None:
    view = Overview()
    view.lines(scene(), 120, 37)
    assert (view.panel, view.enter()) == ("batch", "Sequences")
    view.click(100, 36, 120)
    assert (view.panel, view.enter()) == ("events", "Events")


def test_latency_past_the_last_bucket_is_not_a_number() -> None:
    bounds = picture().bounds
    sample = msgspec.structs.replace(recorded().history.samples[-1], buckets={"queue": {len(bounds): 3}})
    lines = texts(Overview().lines(scene(samples=(sample,)), 120, 37))
    queue = next(line for line in lines if line.startswith(" queue")).split("│")[0]
    assert queue.split() == ["queue", "NA", "NA", "NA"]


# -- sequences ----------------------------------------------------------------------------------------------------


def test_every_sequence_says_its_state_and_why_it_waits() -> None:
    lines = texts(Sequences().lines(scene(), 200, 57))
    rows = {line[2:].split()[0]: line for line in lines[1:] if line.strip()}
    assert len(rows) == len(recorded().sequences.sequences)
    for each in recorded().sequences.sequences:
        assert ("● running" if each.status == "running" else "○ waiting running cap") in rows[each.id]


def test_speed_is_over_the_time_since_the_first_token() -> None:
    row = recorded().sequences.sequences[0]
    ten = msgspec.structs.replace(row, output_tokens=11, age=3.0, first_token=0.5, since_token=0.5)
    assert speed(ten) == pytest.approx(10 / 2.0)
    assert speed(msgspec.structs.replace(ten, output_tokens=1)) is None
    assert speed(msgspec.structs.replace(ten, first_token=None)) is None


def test_one_that_is_followed_is_still_there_when_it_has_ended() -> None:
    view, answer = Sequences(), recorded().sequences
    view.lines(scene(), 120, 37)
    view.table.move(1)
    followed = view.table.chosen
    assert followed is not None
    view.enter()
    assert any(followed.id in line and "running" in line for line in texts(view.lines(scene(), 120, 37))[-9:])
    rest = tuple(each for each in answer.sequences if each.id != followed.id)
    gone = scene(sequences=msgspec.structs.replace(answer, sequences=rest))
    detail = texts(view.lines(gone, 120, 37))[-9:]
    assert any(followed.id in line and "✓ ended" in line for line in detail)
    assert view.back() and not view.back()


def test_text_of_others_cannot_act_on_the_terminal() -> None:
    evil = msgspec.structs.replace(recorded().sequences.sequences[0], id="\x1b[2Jrm\u202e\n漢字" + "x" * 300)
    view = Sequences()
    some = scene(sequences=msgspec.structs.replace(recorded().sequences, sequences=(evil,)))
    view.lines(some, 80, 21)
    view.enter()
    lines = view.lines(some, 80, 21)
    assert widths(lines) == {80}
    assert all(text_of(line).isprintable() for line in lines)


# -- flags --------------------------------------------------------------------------------------------------------


def test_edits_are_collected_shown_and_dropped() -> None:
    view = Flags()
    view.lines(scene(), 120, 37)
    view.choose("sched.order")
    row = view.chosen
    assert row is not None and row.name == "sched.order"
    view.edit(row, "prefix")
    view.edit(view.find("sched.paused"), True)  # pyright: ignore[reportArgumentType]
    lines = texts(view.lines(scene(), 120, 37))
    assert any("fcfs→prefix" in line for line in lines[:30])
    assert lines[-1].strip() == "2 to apply: sched.order fcfs→prefix, sched.paused off→on"
    view.edit(row, "fcfs")  # back to what is in force
    assert set(view.edits) == {"sched.paused"}
    view.drop()
    assert view.edits == {}


def test_an_edit_that_somebody_else_made_real_is_none_any_more() -> None:
    view = Flags()
    view.update(recorded().flags)
    row = view.find("sched.order")
    assert row is not None
    view.edit(row, "prefix")
    changed = tuple(
        msgspec.structs.replace(each, value="prefix") if each.name == "sched.order" else each
        for each in recorded().flags.flags
    )
    view.update(p.Flags(version=99, flags=changed))
    assert view.edits == {}


def test_values_are_checked_as_the_engine_declares_them() -> None:
    view = Flags()
    view.update(recorded().flags)
    row = view.find("sched.max_running")
    assert row is not None
    assert checked(row, "16") == 16
    narrower = msgspec.structs.replace(row, high=8.0)  # another version's bounds
    with pytest.raises(FlagError, match="1 to"):
        checked(narrower, "16")
    with pytest.raises(FlagError):
        checked(row, "many")


def test_bounds_are_told_in_the_engine_s_own_words() -> None:
    """Off the wire: whole numbers stay whole, also those that a float would round."""
    rows = recorded().flags.flags
    assert {row.name: declaration(row).allowed for row in rows} == {row.name: row.allowed for row in rows}
    row = next(row for row in rows if row.name == "sched.max_step_tokens")
    with pytest.raises(FlagError, match="1 to 1048576 tokens"):
        checked(row, "0")


def test_a_time_limited_change_says_when_it_ends() -> None:
    view = Flags()
    view.lines(scene(), 120, 37)
    view.choose("sched.max_running")
    lines = texts(view.lines(scene(), 120, 37))
    assert any("◐ goes back to 8 at 05:26:5" in line for line in lines[-4:])


# -- events -------------------------------------------------------------------------------------------------------


def test_events_say_who_and_why_and_a_gap_is_one() -> None:
    view = Events()
    gap = p.Gap(12, 1, 12)
    lines = texts(view.lines(scene(events=(gap, *recorded().events.events)), 120, 37))
    assert "12 events are no longer kept (numbers 1 to 12)" in lines[1]
    flags = next(line for line in lines if "8→4" in line)
    assert '"evening peak" for 40 s' in flags and "uid 0 pid" in flags
    view.table.go(3)
    view.enter()
    detail = texts(view.lines(scene(events=recorded().events.events), 120, 37))
    assert any(line.strip().startswith("who") for line in detail)


def test_the_past_has_the_events_of_then() -> None:
    first = recorded().events.events[0]
    lines = texts(Events().lines(scene(at=first.time + 0.1), 120, 37))
    assert len(lines) == 2 and "6→3" in lines[1]


def test_the_header_names_everything_at_every_size() -> None:
    for width, _ in SIZES:
        text = text_of(header.header(scene(), width))
        for part in ("arc", "main", "tiny", "● serving", "default +", "step", "ago", "operator"):
            assert part in text
        tabs = text_of(header.tabs([(v.name, v.short) for v in make_views()], 2, scene(), 4, width))
        assert "[3 Spans]" in tabs and "live 4 Hz" in tabs and "60 s" in tabs and "…" not in tabs


def test_the_speculation_panel_says_what_was_right_in_the_window_or_why_there_is_nothing():
    def said(
        depth: int | p.NA, drafted: tuple[int, ...] = (), accepted: tuple[int, ...] = (), rows: int = 0
    ) -> str:
        samples = picture().samples
        assert isinstance(samples[-1], p.Sample)
        last = msgspec.structs.replace(samples[-1], draft_rows=rows, drafted=drafted, accepted=accepted)
        now = scene(snapshot=snapshot(speculation=p.Speculation(depth=depth)), samples=(*samples[:-1], last))
        return "\n".join(text_of(line) for line in panels.speculation(now, 60, 2))

    assert "NA  no head" in said(p.NA("no head"))
    assert "spec.depth is 0" in said(0)
    assert "no draft was verified" in said(2)
    full = said(3, (100, 90, 80, 0), (75, 45, 20, 0), 100)
    assert "tokens a row 2.40" in full and "51.9 % of 270" in full
    assert full.splitlines()[1].split() == ["by", "place", "75.0", "50.0", "25.0", "%"]
