"""A console's picture of another engine: the recorded pages of vLLM, and what may lie between them, over a minute."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from arc.console.metrics.fetch import Fetched
from arc.console.top.metrics_reader import EngineOnPage
from arc.console.top.scene import SPANS, Scene
from arc.console.top.store import Picture

from tests.console.metrics.pages import IDLE, LOADED, between, readings, sglang

START = 1_795_989_000.0
SECONDS = 60
URL = "http://127.0.0.1:8000/metrics"
_RISING = ("_total", "_count", "_sum", "_bucket")


def page_at(second: int) -> str:
    """Counters rise evenly to a multiple of the loaded page's; gauges swing up to them."""
    swing = 0.75 - 0.25 * math.cos(second / 6)

    def share(name: str) -> float:
        return second / 20 if name.endswith(_RISING) else swing if second < SECONDS else 1.0

    return between(IDLE, LOADED, share)


def feed(engine: EngineOnPage, text: str, second: float) -> None:
    (reading,) = readings(text)
    engine.take(URL, reading, Fetched(text, second, 0.004), START + second)


def vllm_engine(name: str = "127.0.0.1:8000") -> EngineOnPage:
    engine = EngineOnPage(name)
    for second in range(SECONDS + 1):
        feed(engine, page_at(second), second)
    return engine


@cache
def vllm_picture() -> Picture:
    return vllm_engine().store.picture


@cache
def sglang_picture() -> Picture:
    engine = EngineOnPage("127.0.0.1:30000")
    for second in range(31):
        text = sglang(
            num_running_reqs=6, num_queue_reqs=second % 3, token_usage=0.25, num_used_tokens=40_430,
            max_total_num_tokens=161_721, prompt_tokens_total=900 * second, generation_tokens_total=350 * second,
            cached_tokens_total=225 * second, num_requests_total=3 * second, num_retracted_requests_total=second // 10,
            first=(0.15, 0.3) * second, between=(0.005, 0.018) * (40 * second),
        )  # fmt: skip
        feed(engine, text, second)
    return engine.store.picture


def paged_scene(
    picture: Picture, *, at: float | None = None, span: float = SPANS[1], later: float = 0.2, **changes: Any
) -> Scene:
    assert picture.page is not None
    return Scene(picture, span, at, picture.page.time + later, **changes)
