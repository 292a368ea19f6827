"""The expected pictures of the views, as text: python -m tests.console.top.pictures writes them anew."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from arc.console import shown
from arc.console.top import header
from arc.console.top.fleet import AnyReader, Fleet, Member
from arc.console.top.lines import text_of
from arc.console.top.metrics_reader import EngineOnPage
from arc.console.top.scene import SPANS, Scene
from arc.console.top.store import Link, Picture, Store
from arc.console.top.views import fleet as view
from arc.console.top.views.catalogue import make_views
from arc.console.top.views.fleet import FleetView

from .paged import SECONDS, START, feed, page_at, paged_scene, sglang_picture, vllm_picture
from .recorded import DATA, SIZES, picture, scene

NAMES = ("overview", "sequences", "spans", "allocator", "flags", "events")
PAGES = {"vllm": vllm_picture, "sglang": sglang_picture}
PAGE_NAMES = tuple(f"{kind}-{name}" for kind in PAGES for name in ("overview", "flags", "events"))


def expected_path(name: str, size: tuple[int, int]) -> Path:
    return DATA / f"{name}-{size[0]}x{size[1]}.txt"


def picture_lines(name: str, size: tuple[int, int]) -> list[str]:
    """A whole screen: header, tabs, view; the footer is the app's."""
    width, height = size
    views = make_views()
    kind, _, view = name.rpartition("-")
    index = NAMES.index(view)
    seen = paged_scene(PAGES[kind]()) if kind else scene()
    names = [(view.name, view.short) for view in views]
    lines = [header.header(seen, width), header.tabs(names, index, seen, 4, width), *header.alarms(seen)]
    lines += views[index].lines(seen, width, height - len(lines) - 1)
    return [text_of(line).rstrip() for line in lines]


@dataclass
class Told:
    """A source that was told its members."""

    members: tuple[Member, ...]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def open(self, member: Member, hz: float) -> AnyReader:
        raise NotImplementedError

    def close(self, member: Member) -> None: ...


def fleet_of() -> Fleet:
    """Three replicas of one model of which the third lags, an SGLang server, the recorded arc engine, and one gone."""
    members = []
    for number in range(3):
        engine = EngineOnPage(f"gpu-{number}:8000")
        for second in range(SECONDS + 1):
            feed(engine, page_at(second // 4 if number == 2 else second), second)
        members.append(Member(engine.name, f"http://{engine.name}/metrics", engine.store, None))
    for name, found in (
        ("gpu-7:30000", sglang_picture()),
        ("main", _now(picture())),
        ("gpu-9:8000", _gone()),
    ):
        store = Store()
        store.picture = found
        members.append(Member(name, name, store, None))
    return Fleet([Told(tuple(members))])


def _now(found: Picture) -> Picture:
    return replace(found, link=replace(found.link, heard=START + SECONDS))


def _gone() -> Picture:
    found = vllm_picture()
    return replace(found, link=Link("lost", START + 50, "no whole answer within 5 s"))


def fleet_lines(size: tuple[int, int]) -> list[str]:
    width, height = size
    table = FleetView(fleet_of())
    seen = Scene(Picture(), SPANS[1], None, START + SECONDS + 0.5)
    table.update(seen)
    lines = [
        view.header(table.rows, width),
        view.status(seen, table.rows, 4, width),
        *view.alarms(table.rows, width),
    ]
    lines += table.lines(seen, width, height - len(lines) - 1)
    return [text_of(line).rstrip() for line in lines]


if __name__ == "__main__":
    shown.clock = lambda moment: time.strftime("%H:%M:%S", time.gmtime(moment))
    for each in (*NAMES, *PAGE_NAMES):
        for some in SIZES:
            expected_path(each, some).write_text(
                "\n".join(picture_lines(each, some)) + "\n", encoding="utf-8"
            )
    for some in SIZES:
        expected_path("fleet", some).write_text("\n".join(fleet_lines(some)) + "\n", encoding="utf-8")
