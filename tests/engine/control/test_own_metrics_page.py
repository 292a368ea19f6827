"""A real engine, read twice: over its control socket, and as any other engine over its own metrics page. They agree."""

from __future__ import annotations

import asyncio
from pathlib import Path

from arc.console.client import Client
from arc.console.metrics.fetch import address
from arc.console.top.lines import text_of
from arc.console.top.metrics_reader import MetricsReader
from arc.console.top.scene import Scene
from arc.console.top.views.overview import Overview
from arc.engine.control import protocol as p
from arc.engine.control.listening import Listening
from arc.engine.control.protocol import NA
from arc.engine.control.server import ControlServer
from pytest import approx

from tests.engine.api.test_real_engine import serving


async def test_the_page_and_the_socket_of_one_engine_agree(tiny: Path, tmp_path: Path, folders: Path) -> None:
    listening = Listening("read")
    async with serving(tiny, tmp_path, control__name="read") as real:
        server = ControlServer(real.assembly.port, listening, NA("off in this test"))
        server.start()
        reader = MetricsReader(address(f"{real.url}/metrics"))
        try:
            await asyncio.to_thread(reader.read)
            await asyncio.gather(
                *(
                    real.stream(prompt=[5 + n] * (20 + 9 * n), max_tokens=5 + 3 * n, ignore_eos=True)
                    for n in range(9)
                )
            )
            await real.stream(prompt=[5] * 20, max_tokens=4, ignore_eos=True)  # a prefix that is known
            snapshot = await asyncio.to_thread(_idle_snapshot, listening.path)
            await asyncio.to_thread(reader.read)
            _compare(reader, snapshot)
            await asyncio.to_thread(_pause, listening.path, True)
            held = asyncio.gather(*(real.stream(prompt=[9, 9, n], max_tokens=2) for n in range(3)))
            snapshot = await asyncio.to_thread(_snapshot_when, listening.path, 3)
            await asyncio.to_thread(reader.read)
            _compare_waiting(reader, snapshot)
            await asyncio.to_thread(_pause, listening.path, False)
            await held
        finally:
            await asyncio.to_thread(server.stop)


def _idle_snapshot(path: Path) -> p.Snapshot:
    with Client(path) as client:
        while True:
            snapshot = client.get_fresh("/v1/snapshot", p.Snapshot)
            # The counters are of now, and a client has its last token before the step that brought it is counted:
            # what the border after that step published is of the same step as they are.
            settled = snapshot.running == 0 and snapshot.step + 1 == snapshot.life.steps
            if settled and sum(snapshot.life.finished.values()) == 10:
                return snapshot


def _pause(path: Path, paused: bool) -> None:
    with Client(path) as client:
        client.patch("/v1/flags", p.FlagsPatch(changes={"sched.paused": paused}), p.Applied)


def _snapshot_when(path: Path, paused: int) -> p.Snapshot:
    with Client(path) as client:
        while True:
            snapshot = client.get_fresh("/v1/snapshot", p.Snapshot)
            if snapshot.waiting_by_reason.get("paused") == paused:
                return snapshot


def _compare(reader: MetricsReader, snapshot: p.Snapshot) -> None:
    (engine,) = reader.engines
    picture = engine.store.picture
    assert picture.page is not None and picture.page.reading.kind == "arc"
    seen = Scene(picture, 60.0, None, picture.page.time)
    life, totals, gauges = snapshot.life, seen.totals, seen.gauges
    assert life.generation_tokens > 100 and life.prefix_hits > 0
    for name in (
        "steps",
        "prompt_tokens",
        "generation_tokens",
        "prefix_queries",
        "prefix_hits",
        "preemptions",
        "faults",
    ):
        assert getattr(totals, name) == getattr(life, name), name
    assert totals.finished == sum(life.finished.values())
    assert totals.step_seconds == approx(life.step_seconds, rel=1e-6)
    assert totals.forward_seconds == approx(life.forward_seconds, rel=1e-6)
    assert totals.latency == life.latency  # of the same buckets, to the last digit
    assert gauges is not None
    assert (gauges.running, gauges.waiting) == (snapshot.running, snapshot.waiting) == (0, 0)
    pages = snapshot.pages
    assert (gauges.used, gauges.cached, gauges.free) == (pages.used, pages.cached, pages.free)
    assert picture.page.reading.gauges["total"] == pages.total
    lines = "\n".join(text_of(line) for line in Overview().lines(seen, 120, 37))
    assert "failed steps     0" in lines and f"{pages.free:,}" in lines


def _compare_waiting(reader: MetricsReader, snapshot: p.Snapshot) -> None:
    picture = reader.engines[0].store.picture
    assert picture.page is not None
    gauges = Scene(picture, 60.0, None, picture.page.time).gauges
    assert gauges is not None and (gauges.running, gauges.waiting) == (0, 3)
    known = {reason: count for reason, count in (gauges.reasons or {}).items() if count}
    assert known == {reason: count for reason, count in snapshot.waiting_by_reason.items() if count}
    newest = picture.events[-1]
    assert isinstance(newest, p.Event) and newest.kind == "flags"  # the pause, by the revision on the page
