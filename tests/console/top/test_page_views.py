"""The views over another engine's page: whole lines at every size, nothing unknown as zero, everything NA with why."""

from __future__ import annotations

import re
from typing import Any

import pytest
from arc.console.top import header
from arc.console.top.lines import ascii_only, text_of
from arc.console.top.metrics_reader import EngineOnPage
from arc.console.top.store import Link, Picture
from arc.console.top.views.catalogue import make_views
from arc.console.top.views.overview import Overview

from tests.console.metrics.pages import vllm

from .paged import feed, paged_scene, sglang_picture, vllm_picture
from .recorded import SIZES, texts, widths

PICTURES = {"vllm": vllm_picture, "sglang": sglang_picture}


def bare_picture() -> Picture:
    """A page with the least that is one."""
    engine = EngineOnPage("x")
    for second in range(3):
        feed(engine, "vllm:num_requests_running NaN\n", second)
    return engine.store.picture


@pytest.mark.parametrize("picture", [*PICTURES.values(), bare_picture], ids=[*PICTURES, "bare"])
@pytest.mark.parametrize("size", [*SIZES, (97, 31), (159, 33), (160, 50)])
def test_lines_fill_the_width_and_clip_no_number(size: tuple[int, int], picture: Any) -> None:
    width, height = size
    for at in (None, picture().page.time - 5):
        seen = paged_scene(picture(), at=at)
        for index, view in enumerate(make_views()):
            lines = view.lines(seen, width, height - 3)
            assert len(lines) <= height - 3 and widths(lines) == {width}
            for line in lines:
                for text, _ in line:
                    assert not re.search(r"\d…$", text) or re.search(r"[a-zA-Z/:]", text), text
            tabs = header.tabs([(each.name, each.short) for each in make_views()], index, seen, 4, width)
            assert widths([header.header(seen, width), tabs]) == {width}


def test_of_a_page_that_says_nothing_nothing_is_zero() -> None:
    seen = paged_scene(bare_picture())
    for view in make_views():
        for size in SIZES:
            shown = "\n".join(texts(view.lines(seen, size[0], size[1] - 3)))
            axis = re.sub(r"^ +[01]( |$)|│ +[01]( |$)", "", shown, flags=re.MULTILINE)
            assert not re.search(r"(?<![\d:.#])0(?![\d:.])", axis), shown
    joined = "\n".join(texts(Overview().lines(seen, 200, 57)))
    assert joined.count("NA") >= 10


def test_what_cannot_be_had_says_why() -> None:
    seen = paged_scene(vllm_picture())
    lines = {view.name: "\n".join(texts(view.lines(seen, 200, 57))) for view in make_views()}
    assert "NA  a metrics page has totals, no single requests" in lines["Sequences"]
    assert "NA  a metrics page has no spans" in lines["Spans"]
    assert "NA  the allocator is not read off a metrics page" in lines["Allocator"]
    assert "NA  a metrics page has no flags" in lines["Flags"] and "num_gpu_blocks" in lines["Flags"]
    assert "effective NA  vLLM does not report it" in lines["Overview"]


def test_the_numbers_shown_are_those_of_the_pages() -> None:
    """2781 tokens a twenty seconds, 6914 of prompts: what the recorded engine did, spread over a minute."""
    lines = "\n".join(texts(Overview().lines(paged_scene(vllm_picture()), 120, 37)))
    assert re.search(r"running +32 +waiting +8 ", lines)
    assert re.search(r"output +139 +prompt +346 tok/s", lines)
    assert "8 capacity" in lines and "17.6 % of 512 pages used" in lines


def test_how_much_of_the_window_is_known_is_said() -> None:
    names = [(view.name, view.short) for view in make_views()]
    for span, says in ((30.0, " 30 s "), (60.0, "30 of 60 s"), (300.0, "30 of 5 min")):
        seen = paged_scene(sglang_picture(), span=span)
        assert says in text_of(header.tabs(names, 0, seen, 4, 80))


def test_the_past_has_its_own_numbers() -> None:
    picture = vllm_picture()
    assert picture.page is not None
    seen = paged_scene(picture, at=picture.page.time - 41)
    lines = "\n".join(texts(Overview().lines(seen, 120, 37)))
    assert re.search(r"running +32 ", lines) and "why they waited was not kept" in lines
    assert seen.gauges is not None and seen.gauges.running == seen.window[-1].running


def test_a_lost_server_is_gone_in_the_header_and_its_alarm() -> None:
    picture = vllm_picture()
    lost = type(picture)(
        link=Link("lost", 0.0, "http://x/metrics: nothing listens there"),
        page=picture.page,
        samples=picture.samples,
    )
    seen = paged_scene(lost)
    assert seen.stale and "○ gone" in text_of(header.header(seen, 120))
    (alarm,) = header.alarms(seen)
    assert "nothing listens there" in text_of(alarm)


def test_a_sleeping_vllm_is_asleep() -> None:
    engine = EngineOnPage("x")
    state = 'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 1\n'
    feed(engine, vllm() + state, 0)
    assert "◐ asleep" in text_of(header.header(paged_scene(engine.store.picture), 120))


def test_text_of_others_cannot_act_on_the_terminal() -> None:
    evil = "\x1b[2J\u202e漢字"
    engine = EngineOnPage("x")
    info = f'vllm:cache_config_info{{engine="0",model_name="{evil}",{"block_size"}="{evil}"}} 1\n'
    reason = f'vllm:num_requests_waiting_by_reason{{engine="0",model_name="{evil}",reason="{evil}"}} 3\n'
    for second in range(3):
        feed(engine, vllm("0", evil, num_requests_waiting=3) + info + reason, second)
    seen = paged_scene(engine.store.picture)
    for view in make_views():
        for line in [header.header(seen, 120), *header.alarms(seen), *view.lines(seen, 120, 37)]:
            assert text_of(line).isprintable()


def test_ascii_pictures_are_ascii() -> None:
    seen = paged_scene(vllm_picture(), ascii_dots=True)
    for line in Overview().lines(seen, 80, 21):
        assert ascii_only(text_of(line)).count("?") == text_of(line).count("?")
