"""The reader of a metrics page, over a real HTTP server: it follows, says what went wrong, and comes back by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from arc.console.metrics.fetch import NoPage, address
from arc.console.top import header
from arc.console.top.lines import text_of
from arc.console.top.metrics_reader import EngineOnPage, MetricsReader
from arc.console.top.scene import SPANS, Scene
from arc.console.top.store import Picture
from arc.engine.control import protocol as p

from tests.console.metrics.pages import IDLE, LOADED, vllm
from tests.console.metrics.served import Server, page, pages, serving

from .paged import page_at
from .test_reader import until


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(page(IDLE)) as running:
        yield running


def reader(server: Server, **more: float) -> MetricsReader:
    return MetricsReader(address(server.url), **{"interval": 0.01, **more})


def kinds(engine: EngineOnPage) -> list[str]:
    return [each.kind for each in engine.store.picture.events if isinstance(each, p.Event)]


def alarms(picture: Picture, later: float = 0.0) -> list[str]:
    return [text_of(line) for line in header.alarms(Scene(picture, SPANS[1], None, time.time() + later))]


def test_pages_in_sequence_become_samples(server: Server) -> None:
    server.answer = pages(*(page_at(second) for second in range(4)))
    reading = reader(server)
    for _ in range(4):
        reading.read()
    (engine,) = reading.engines
    picture = engine.store.picture
    assert len(picture.samples) == 3 and picture.link.state == "attached"
    # from one page to the next a twentieth of what the recorded engine had done
    assert [round(sample.generation_tokens or 0) for sample in picture.samples] == [139] * 3
    assert picture.page is not None and picture.page.reading.gauges["total"] == 512
    assert kinds(engine) == ["attached"]


def test_the_thread_follows_a_server_that_goes_comes_back_and_restarts(server: Server) -> None:
    server.answer = page(vllm(started=1.0, generation_tokens_total=100.0, num_requests_running=3))
    reading = reader(server)
    reading.start()
    try:
        until(lambda: reading.engines and reading.engines[0].store.picture.samples)
        (engine,) = reading.engines
        server.answer = page("no", 503)
        until(lambda: engine.store.picture.link.state == "lost")
        lost = engine.store.picture
        assert "503" in lost.link.why and lost.page is not None  # the last picture stays
        assert lost.page.reading.gauges["running"] == 3
        assert any("engine gone since" in line and "503" in line for line in alarms(lost))
        server.answer = page(vllm(started=1.0, generation_tokens_total=900.0))
        until(lambda: engine.store.picture.link.state == "attached")
        until(lambda: len(engine.store.picture.samples) > len(lost.samples))
        back = engine.store.picture
        assert all(sample.generation_tokens == 0 for sample in back.samples[len(lost.samples) :])
        assert back.link.restarted is None
        server.answer = page(vllm(started=2.0, generation_tokens_total=950.0))
        until(lambda: engine.store.picture.link.restarted is not None)
        until(lambda: engine.store.picture.samples[-1].time > (engine.store.picture.link.restarted or 0))
        assert all((sample.generation_tokens or 0) == 0 for sample in engine.store.picture.samples)
        assert any("RESTARTED" in line for line in alarms(engine.store.picture))
        assert alarms(engine.store.picture, later=0.0)[0].startswith(" ▲ RESTARTED")
    finally:
        reading.stop()
    assert kinds(engine) == ["attached", "gone", "back", "reset"]


@pytest.mark.parametrize("answer", ["<html>\n", "go_goroutines 1\n", LOADED[:-20]])
def test_a_page_that_turns_into_something_else_greys_the_picture(server: Server, answer: str) -> None:
    reading = reader(server)
    reading.read()
    server.answer = page(answer)
    with pytest.raises(NoPage):
        reading.read()
    (engine,) = reading.engines
    assert Scene(engine.store.picture, SPANS[1], None, time.time()).stale
    server.answer = page(IDLE)
    reading.read()
    assert not Scene(engine.store.picture, SPANS[1], None, time.time()).stale


def test_data_parallel_engines_have_a_picture_each_and_one_that_goes_is_gone(server: Server) -> None:
    server.answer = page(vllm("0") + vllm("1", num_requests_running=5))
    reading = reader(server)
    reading.read()
    zero, one = reading.engines
    assert zero.name.endswith("#0") and one.name.endswith("#1")
    server.answer = page(vllm("0"))
    reading.read()
    assert zero.store.picture.link.state == "attached" and one.store.picture.link.state == "lost"
    assert "engine 1 is no longer on the page" in one.store.picture.link.why
    server.answer = page(vllm("0") + vllm("1") + vllm("2"))
    reading.read()
    assert [each.store.picture.link.state for each in reading.engines] == ["attached"] * 3


def test_a_change_of_flags_of_an_arc_engine_is_an_event(server: Server) -> None:
    def arc(revision: float) -> str:
        return vllm(started=1.0) + f'arc:config_revision{{engine="0",model_name="m"}} {revision}\n'

    server.answer = pages(arc(3), arc(3), arc(4))
    reading = reader(server)
    for _ in range(3):
        reading.read()
    (engine,) = reading.engines
    newest = engine.store.picture.events[-1]
    assert isinstance(newest, p.Event) and newest.kind == "flags" and "3 → 4" in newest.text


def test_what_a_page_can_tell_of_trouble(server: Server) -> None:
    def told(*texts: str) -> list[str]:
        engine = EngineOnPage("x")
        for second, text in enumerate(texts):
            from .paged import feed

            feed(engine, text, second)
        picture = engine.store.picture
        assert picture.page is not None
        seen = Scene(picture, SPANS[1], None, picture.page.time)
        return [text_of(line) for line in header.alarms(seen)]

    def at(tokens: float, **gauges: float) -> str:
        return vllm(started=1.0, generation_tokens_total=tokens, prompt_tokens_total=5.0, **gauges)

    stuck = [at(7.0, num_requests_running=2, num_requests_waiting=1)] * 12
    (line,) = told(*stuck)
    assert "NO TOKENS for 11.0 s" in line and "2 running, 1 waiting" in line
    assert told(*stuck[:9]) == []
    assert told(*stuck, at(8.0, num_requests_running=2)) == []
    wedged = [at(7.0, num_requests_waiting=4)] * 5
    (line,) = told(*wedged)
    assert "NOTHING RUNS, 4 wait" in line and "for 4.0 s" in line
    assert told(*wedged[:3]) == []


def test_a_page_that_does_not_come_is_said_before_it_is_given_up(server: Server) -> None:
    reading = reader(server)
    reading.read()
    picture = reading.engines[0].store.picture
    assert alarms(picture) == []
    assert any("NO WORD" in line and "metrics page" in line for line in alarms(picture, later=4.0))
