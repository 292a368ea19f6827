"""One screen of another engine without a terminal, from two of its pages a second apart: one alone has no rates."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from ..metrics.fetch import Address
from ..metrics.reading import Reading
from .metrics_reader import INTERVAL, EngineOnPage, MetricsReader
from .once import draw
from .scene import SPANS, Scene, Totals


class EngineData(msgspec.Struct, frozen=True):
    """One engine. `window` counts over `window.seconds`, the time between the two pages."""

    name: str
    url: str
    kind: str
    model: str
    engine: str
    started: float | None
    gauges: Mapping[str, float]
    waiting_by_reason: Mapping[str, int] | None
    window: Totals
    counters: Mapping[str, float]  # since the engine's start
    info: Mapping[str, str]
    na: Mapping[str, str]  # what is not known, and why


def read_twice(where: Address) -> tuple[EngineOnPage, ...]:
    """Raises NoPage."""
    reader = MetricsReader(where)
    reader.read()
    time.sleep(INTERVAL)
    reader.read()
    return reader.engines


def screen(engine: EngineOnPage, view: int, size: tuple[int, int], ascii_text: bool) -> str:
    return draw(engine.store.picture, view, size, ascii_text)


def data(engine: EngineOnPage) -> str:
    picture = engine.store.picture
    assert picture.page is not None
    reading: Reading = picture.page.reading
    found = EngineData(
        name=engine.name,
        url=picture.page.url,
        kind=reading.kind,
        model=reading.model,
        engine=reading.engine,
        started=reading.started,
        gauges=reading.gauges,
        waiting_by_reason=reading.reasons,
        window=Scene(picture, SPANS[1], None, time.time()).totals,
        counters=reading.counters,
        info=reading.info,
        na=reading.why,
    )
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
