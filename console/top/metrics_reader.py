"""The thread that reads one metrics page, once a second, for every engine that is on it.

It never gives up: a page that is gone, or no longer one, is looked for until it is back.
"""

from __future__ import annotations

import contextlib
import threading
import time

from ...engine.control import protocol as p
from .. import shown
from ..metrics import dialects
from ..metrics.difference import Differ
from ..metrics.fetch import TIMEOUT, Address, Fetched, NoPage, fetch
from ..metrics.page import NotMetrics, parse
from ..metrics.reading import Reading, read
from .store import MetricsPage, Store

INTERVAL = 1.0  # seconds from one page to the next
_LEAST_PAUSE = 0.2  # seconds, after a page that took longer than that

Key = tuple[str, str]  # model and engine label


def read_page(where: Address, timeout: float = TIMEOUT) -> tuple[Fetched, tuple[Reading, ...]]:
    """Raises NoPage, also for what is no metrics page."""
    fetched = fetch(where, timeout)
    try:
        return fetched, read(parse(fetched.text, dialects.wanted))
    except NotMetrics as error:
        raise NoPage(where.url, str(error)) from None


class EngineOnPage:
    """One engine of a page and its picture. What the console itself saw of it becomes the events: a page has none."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.store = Store()
        self._differ = Differ()
        self._events = 0

    def take(self, url: str, reading: Reading, fetched: Fetched, now: float) -> None:
        before = self.store.picture
        interval = self._differ.take(reading, fetched.at, now)
        if interval.restarted:
            self._note("reset", "restarted: its counters began anew", now)
        elif before.page is None:
            self._note("attached", f"read through {shown.plain(url)}", now)
        elif before.link.state == "lost":
            self._note("back", f"it answers again after {shown.seconds(now - before.link.since)}", now)
        old = before.page.reading.gauges.get("revision") if before.page else None
        new = reading.gauges.get("revision")
        if old is not None and new is not None and old != new and not interval.restarted:
            self._note("flags", f"flags were changed: config revision {old:.0f} → {new:.0f}", now)
        page = MetricsPage(url, self.name, reading, now, fetched.seconds)
        self.store.read(page, interval.sample, now)

    def missed(self, why: str, now: float) -> None:
        self._differ.gap()
        if self.store.picture.link.state == "attached":
            self._note("gone", shown.plain(why), now)
        self.store.lost(why, now)

    def _note(self, kind: str, text: str, now: float) -> None:
        self._events += 1
        self.store.entry(p.Event(number=self._events, time=now, kind=kind, text=text))


class MetricsReader:
    """Fills the stores of the engines on one page. `engines` is replaced whole, in the order of the page."""

    def __init__(self, where: Address, *, timeout: float = TIMEOUT, interval: float = INTERVAL) -> None:
        self.wants_sequences = False  # a page has neither
        self.wants_spans: float | None = None
        self.where = where
        self.engines: tuple[EngineOnPage, ...] = ()
        self.why = ""  # why there is no engine yet
        self._timeout = timeout
        self._interval = interval
        self._known: dict[Key, EngineOnPage] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arc-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: the thread may be in a read, and ends with it."""
        self._stopped.set()

    def read(self) -> None:
        """One page, now. Raises NoPage, after every engine's picture says so."""
        try:
            fetched, readings = read_page(self.where, self._timeout)
        except NoPage as error:
            self.why = error.reason
            now = time.time()
            for engine in self.engines:
                engine.missed(error.reason, now)
            raise
        self._take(fetched, readings)

    def _run(self) -> None:
        while not self._stopped.is_set():
            started = time.monotonic()
            with contextlib.suppress(NoPage):  # every picture says so, and the next turn looks again
                self.read()
            self._stopped.wait(max(_LEAST_PAUSE, started + self._interval - time.monotonic()))

    def _take(self, fetched: Fetched, readings: tuple[Reading, ...]) -> None:
        now = time.time()
        found: set[Key] = set()
        for reading in readings:
            key = (reading.model, reading.engine)
            found.add(key)
            if key not in self._known:
                self._known[key] = EngineOnPage(self._name(reading, readings))
                self.engines = tuple(self._known.values())
            self._known[key].take(self.where.url, reading, fetched, now)
        for key, engine in self._known.items():
            if key not in found:
                engine.missed(f"engine {shown.plain(key[1] or key[0])} is no longer on the page", now)

    def _name(self, reading: Reading, readings: tuple[Reading, ...]) -> str:
        """The address; of several engines on the page also the label, and the model where that differs."""
        name = self.where.shown
        if len({each.engine for each in readings}) > 1 or self._known:
            name += f"#{shown.plain(reading.engine)}"
        if len({each.model for each in readings}) > 1:
            name += f" {shown.plain(reading.model)}"
        return name
