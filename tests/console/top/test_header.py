"""The alarms: what is wrong is said loudly, with the reason, and only when it is so."""

from __future__ import annotations

import msgspec
import pytest
from arc.console.top import header
from arc.console.top.lines import text_of
from arc.console.top.store import Link
from arc.engine.control import protocol as p

from .recorded import recorded, scene, snapshot, texts

NOW = recorded().time


def alarms(**changes: object) -> list[str]:
    return texts(header.alarms(scene(**changes)))  # pyright: ignore[reportArgumentType]


def test_when_all_is_well_nothing_is_said() -> None:
    assert alarms() == []
    assert alarms(later=1.5) == []


def test_a_long_step_is_loud_and_names_the_open_span_or_why_not() -> None:
    (line,) = alarms(snapshot=snapshot(step_open=3.2, running=31))
    assert line.startswith(" ▲ NO STEP for 3.2 s ") and "open span: NA" in line and "31 running" in line
    assert alarms(snapshot=snapshot(step_open=2.9)) == []


def instruments(**changes: object) -> p.Instruments:
    sound = p.Instruments(
        spans=True, detail="layer", verdict="pass", text="pass", open_span=p.NA("no step is open")
    )
    return msgspec.structs.replace(sound, **changes)


def test_a_stall_names_the_span_that_is_open() -> None:
    path = "step/decode/pipeline.step/model_forward/moe"
    (line,) = alarms(snapshot=snapshot(step_open=9.0, instruments=instruments(open_span=path)))
    assert f"open span: {path}" in line
    off = instruments(spans=False, verdict="none", open_span=p.NA("profile.enabled is off"))
    (line,) = alarms(snapshot=snapshot(step_open=9.0, instruments=off))
    assert "open span: NA, profile.enabled is off" in line


def test_instruments_that_are_not_to_be_trusted_are_loud_at_every_width() -> None:
    bad = instruments(verdict="fail", text="FAIL: 3 misnested spans")
    (line,) = alarms(snapshot=snapshot(instruments=bad))
    assert "DO NOT TRUST THE SPANS" in line and "3 misnested spans" in line
    for width in (80, 120, 200):
        assert "proof FAIL" in text_of(header.header(scene(snapshot=snapshot(instruments=bad)), width))


@pytest.mark.parametrize(
    ("changes", "said"),
    [({}, "proof ok"), ({"verdict": "none"}, "proof --"), ({"spans": False, "verdict": "none"}, "spans off")],
)
def test_the_header_says_whether_the_instruments_prove_themselves(
    changes: dict[str, object], said: str
) -> None:
    shown = snapshot(instruments=instruments(**changes))
    assert said in text_of(header.header(scene(snapshot=shown), 200))


def test_a_step_that_is_as_long_as_its_like_is_no_stall() -> None:
    slow = tuple(
        msgspec.structs.replace(each, steps=1, step_seconds=2.0) for each in recorded().history.samples[-60:]
    )
    assert alarms(samples=slow, snapshot=snapshot(step_open=9.0)) == []
    assert len(alarms(samples=slow, snapshot=snapshot(step_open=10.5))) == 1


def test_running_without_steps_is_a_stall_too() -> None:
    (line,) = alarms(snapshot=snapshot(step_open=None, step_age=4.0, running=2))
    assert "NO STEP for 4.0 s" in line and "no step is open" in line
    assert alarms(snapshot=snapshot(step_open=None, step_age=4000.0, running=0, waiting=0)) == []


def test_a_wedge_says_why_nothing_is_admitted_and_who_holds_the_pages() -> None:
    pages = p.Pages(96, 0, 7, 89)
    wedged = snapshot(
        running=0, waiting=6, waiting_by_reason={"no pages": 5, "queued": 1, "paused": 0}, step_age=5.0, step_open=None,
        pages=pages,
    )  # fmt: skip
    (line,) = alarms(snapshot=wedged)
    assert "NOTHING RUNS, 6 wait: 5 no pages · 1 queued" in line
    assert "prefix cache 7, by running 0, free 89" in line and "`arc dump`" in line
    paused = msgspec.structs.replace(wedged, state="paused")
    assert alarms(snapshot=paused) == []


def test_silence_of_the_control_thread_is_not_a_stall_of_the_engine() -> None:
    (line,) = alarms(later=3.5)
    assert "NO WORD from the engine for 3.5 s" in line


@pytest.mark.parametrize("later", [0.0, 3600.0])
def test_an_engine_that_is_gone_is_said_and_nothing_else(later: float) -> None:
    link = Link("lost", NOW, "it ended the stream", heard=NOW)
    lost = scene(link=link, snapshot=snapshot(step_open=99.0), later=later)
    (line,) = texts(header.alarms(lost))
    assert (
        line.startswith(" ○ engine gone since ")
        and "last picture kept" in line
        and "it ended the stream" in line
    )
    assert lost.stale and "○ gone" in text_of(header.header(lost, 120))


def test_a_restart_is_said_for_a_minute() -> None:
    link = Link("attached", NOW, heard=NOW, restarted=NOW - 10)
    (line,) = alarms(link=link)
    assert "▲ RESTARTED" in line and "counters began anew" in line
    assert alarms(link=Link("attached", NOW, heard=NOW, restarted=NOW - 61)) == []


@pytest.mark.parametrize(
    ("state", "shown"),
    [("serving", "● serving"), ("paused", "◐ paused"), ("draining", "◐ draining"), ("stalled", "▲ stalled")],
)
def test_every_state_has_its_glyph_and_word(state: str, shown: str) -> None:
    assert shown in text_of(header.header(scene(snapshot=snapshot(state=state)), 80))


def test_before_the_engine_answers_the_header_says_what_is_tried() -> None:
    empty = scene(hello=None, snapshot=None, link=Link("attaching", NOW, "no engine answers"))
    assert "attaching  no engine answers" in text_of(header.header(empty, 80))


def test_tabs_are_where_a_click_finds_them() -> None:
    names = [("Overview", "Over"), ("Sequences", "Seq"), ("Spans", "Spans")]
    for width in (80, 120):
        line = text_of(header.tabs(names, 1, scene(), 4, width))
        for index, (full, short) in enumerate(names):
            word = full if width > 100 or index == 1 else short
            assert header.tab_at(names, 1, width, line.index(f"{index + 1} {word}")) == index
        assert header.tab_at(names, 1, width, width - 3) is None


def test_the_footer_shows_whole_hints_only() -> None:
    hints = [("/", "filter"), (".", "sort"), ("Space", "freeze")]
    assert (
        text_of(header.footer(hints, [("1–9 of 9", "dim")], 40)).rstrip()
        == " / filter  . sort" + " " * 14 + "1–9 of 9"
    )
    assert len(text_of(header.footer(hints, [], 20))) == 20
