"""The expected pictures of the views, as text: python -m tests.console.top.pictures writes them anew."""

from __future__ import annotations

import time
from pathlib import Path

from arc.console import shown
from arc.console.top import header
from arc.console.top.lines import text_of
from arc.console.top.views.catalogue import make_views

from .paged import paged_scene, sglang_picture, vllm_picture
from .recorded import DATA, SIZES, scene

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


if __name__ == "__main__":
    shown.clock = lambda moment: time.strftime("%H:%M:%S", time.gmtime(moment))
    for each in (*NAMES, *PAGE_NAMES):
        for some in SIZES:
            expected_path(each, some).write_text(
                "\n".join(picture_lines(each, some)) + "\n", encoding="utf-8"
            )
