"""The fleet without a terminal: its table as text, or as the data behind it, from pages and pictures of one second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ..exits import Failure
from ..metrics.fetch import Address, NoPage
from .fleet import Member, Odd, Row, row_of, with_odd
from .lines import ascii_only, text_of
from .metrics_reader import INTERVAL
from .once import picture_of
from .scene import SPANS, Scene
from .sources import PageSource
from .store import Picture, Store
from .views import fleet as view

_MOST_AT_ONCE = 32


class EngineRow(msgspec.Struct, frozen=True):
    """One engine as `arc top --json` prints it. Rates and percentiles are over `window_seconds`; null is unknown."""

    name: str
    where: str
    kind: str
    model: str
    state: str
    why: str
    window_seconds: float
    running: float | None
    waiting: float | None
    kv_share: float | None
    output_tokens_per_second: float | None
    prompt_tokens_per_second: float | None
    first_token_p95: float | None
    between_tokens_p95: float | None
    odd: tuple[Odd, ...]


class FleetData(msgspec.Struct, frozen=True):
    engines: tuple[EngineRow, ...]
    odd_ones_out: tuple[str, ...]
    gone: tuple[str, ...]


def rows_of(sources: Sequence[Path | Address]) -> list[Row]:
    """Everything asked at once. One that does not answer is a row that says why."""
    with ThreadPoolExecutor(max_workers=_MOST_AT_ONCE) as pool:
        members = [member for found in pool.map(_members, sources) for member in found]
    now = time.time()
    return with_odd([row_of(each, Scene(each.store.picture, SPANS[1], None, now)) for each in members])


def _members(source: Path | Address) -> tuple[Member, ...]:
    if isinstance(source, Path):
        return (_engine(source),)
    page = PageSource(source)
    try:
        page.reader.read()
        time.sleep(INTERVAL)
        page.reader.read()
    except NoPage:
        pass  # every member says so
    return page.members


def _engine(path: Path) -> Member:
    store = Store()
    try:
        store.picture = picture_of(path)
    except Failure as error:
        store.lost(error.message, time.time())
    return Member(path.stem, str(path), store, path)


def screen(rows: list[Row], size: tuple[int, int], ascii_text: bool) -> str:
    """As many engines as there are: a fleet printed is not cut at the screen's height."""
    width = max(80, size[0])
    scene = Scene(Picture(), SPANS[1], None, time.time())
    lines = [view.header(rows, width), view.status(scene, rows, 0, width), *view.alarms(rows, width)]
    lines += view.make_table().lines(rows, width, len(rows) + 1)
    text = "\n".join(text_of(line).rstrip() for line in lines)
    return ascii_only(text) if ascii_text else text


def data(rows: Sequence[Row]) -> str:
    found = FleetData(
        engines=tuple(_data(row) for row in rows),
        odd_ones_out=tuple(row.member.name for row in rows if row.odd),
        gone=tuple(row.member.name for row in rows if row.gone),
    )
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def _data(row: Row) -> EngineRow:
    return EngineRow(
        name=row.member.name,
        where=row.member.where,
        kind=row.kind,
        model=row.model,
        state=row.state,
        why=row.why,
        window_seconds=row.seconds,
        running=row.running,
        waiting=row.waiting,
        kv_share=row.kv,
        output_tokens_per_second=row.output,
        prompt_tokens_per_second=row.prompt,
        first_token_p95=row.first_token,
        between_tokens_p95=row.between_tokens,
        odd=row.odd,
    )
