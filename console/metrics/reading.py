"""What one page says at one moment, engine by engine: gauges, cumulative counters and histograms, or why not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from . import dialects
from .dialects import Dialect, Pick
from .page import NotMetrics, Page, Series

MOST = 2.0**53  # from here on a counter kept as a float no longer counts by one
_RANKS = ("pp_rank", "tp_rank", "moe_ep_rank")  # SGLang: parts of one engine, each with the same numbers
_MODEL = "model_name"


@dataclass(frozen=True, slots=True)
class Cumulative:
    """A histogram since its engine's start: counts by bucket, one more than `bounds`."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """One engine on one page. What is not here is in `why`, by the quantity's name."""

    kind: str
    model: str
    engine: str  # its label among data-parallel engines; "" where there is none
    unit: str  # of the KV cache: pages or tokens
    live_tokens: bool
    gauges: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Cumulative] = field(default_factory=dict)
    reasons: Mapping[str, int] | None = None
    info: Mapping[str, str] = field(default_factory=dict)
    started: float | None = None  # time.time(), of the process that serves the page
    resident: float | None = None  # bytes, of that process
    why: Mapping[str, str] = field(default_factory=dict)


class _Unknown(Exception):
    """Why a quantity cannot be had."""


def read(page: Page) -> tuple[Reading, ...]:
    """The engines of a page in the order of their labels. Raises NotMetrics for a page that has none."""
    kinds = {id(each): each for name in page.series if (each := dialects.spoken(name)) is not None}
    dialect = next((each for each in dialects.DIALECTS if id(each) in kinds), None)
    if dialect is None:
        raise NotMetrics(
            f"a Prometheus page, but with no metric of vLLM, SGLang or arc: it begins with {page.first}"
        )
    keys = _engines(page, dialect)
    if not keys:
        raise NotMetrics(f"a page of {dialect.kind}, but without {dialect.gauges['running'][0].name}")
    return tuple(_Reader(page, dialect, key, alone=len(keys) == 1).reading() for key in keys)


def _engines(page: Page, dialect: Dialect) -> list[tuple[str, str]]:
    """Model and engine label of each, from the gauge that every engine has."""
    series = [each for pick in dialect.gauges["running"] for each in page.series.get(pick.name, ())]
    return sorted({_key(each, dialect) for each in series}, key=lambda key: (key[0], _number(key[1])))


def _key(series: Series, dialect: Dialect) -> tuple[str, str]:
    return series.labels.get(_MODEL, ""), series.labels.get(dialect.engine_label, "")


def _number(label: str) -> tuple[float, str]:
    """10 after 9, and words after numbers."""
    return (float(label) if label.isascii() and label.isdigit() else math.inf, label)


class _Reader:
    """Takes one engine's quantities off a page."""

    def __init__(self, page: Page, dialect: Dialect, key: tuple[str, str], *, alone: bool) -> None:
        self._page = page
        self._dialect = dialect
        self._key = key
        self._alone = alone
        self._why: dict[str, str] = {}

    def reading(self) -> Reading:
        dialect = self._dialect
        gauges = self._numbers(dialect.gauges)
        counters = self._numbers(dialect.counters)
        histograms: dict[str, Cumulative] = {}
        for name, bases in dialect.latencies.items():
            try:
                histograms[name] = self._histogram(bases)
            except _Unknown as unknown:
                self._why[name] = str(unknown)
        info = self._info()
        _finish(gauges, info, self._why)
        return Reading(
            kind=dialect.kind,
            model=self._key[0],
            engine=self._key[1],
            unit=dialect.unit,
            live_tokens=dialect.live_tokens or self._is_live(),
            gauges=gauges,
            counters=counters,
            histograms=histograms,
            reasons=self._reasons(gauges),
            info=info,
            started=self._of_process(dialects.STARTED),
            resident=self._of_process(dialects.RESIDENT),
            why=self._why,
        )

    def _numbers(self, table: Mapping[str, Sequence[Pick]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, picks in table.items():
            try:
                found[name] = self._sum(picks)
            except _Unknown as unknown:
                self._why[name] = str(unknown)
        return found

    def _sum(self, picks: Sequence[Pick]) -> float:
        for pick in picks:
            series = self._own(pick.name)
            if pick.label:
                series = [each for each in series if each.labels.get(pick.label) in pick.values]
            if series:
                return sum(_number_of(pick.name, each.value) for each in series)
        raise _Unknown(self._missing([pick.name for pick in picks]))

    def _missing(self, names: Sequence[str]) -> str:
        if not self._alone and any(name in self._page.series for name in names):
            return f"{names[0]} is counted for all engines of the page together"
        return f"{names[0]} is not on the page"

    def _own(self, name: str) -> list[Series]:
        """This engine's series, of one rank where several tell the same; none that stands for several engines."""
        model, engine = self._key
        own = [
            each
            for each in self._page.series.get(name, ())
            if each.labels.get(_MODEL, model) == model
            and each.labels.get(self._dialect.engine_label, engine if self._alone else None) == engine
        ]
        first = min((_rank(each) for each in own), default=None)
        return [each for each in own if _rank(each) == first]

    def _histogram(self, bases: Sequence[str]) -> Cumulative:
        for base in bases:
            series = self._own(f"{base}_bucket")
            if series:
                return _cumulative(base, series)
        raise _Unknown(self._missing([f"{base}_bucket" for base in bases]))

    def _reasons(self, gauges: Mapping[str, float]) -> Mapping[str, int] | None:
        """What waits by why; of an old server only that part was swapped out."""
        found: dict[str, int] = {}
        try:
            for each in self._own(self._dialect.reasons):
                reason = each.labels.get("reason", "")
                found[reason] = found.get(reason, 0) + round(_number_of(self._dialect.reasons, each.value))
        except _Unknown:
            return None
        if "swapped" in gauges:
            found["swapped"] = round(gauges["swapped"])
        return found or None

    def _info(self) -> Mapping[str, str]:
        series = self._own(self._dialect.info)
        shared = (_MODEL, self._dialect.engine_label)
        return {name: text for name, text in series[0].labels.items() if name not in shared} if series else {}

    def _is_live(self) -> bool:
        return any(
            self._own(pick.name)
            for pick in self._dialect.counters.get("generation_tokens", ())
            if pick.label and pick.name in self._page.series
        )

    def _of_process(self, name: str) -> float | None:
        """Of the process that answered: with several engines on the page it is none of theirs."""
        series = self._page.series.get(name, ())
        value = series[0].value if len(series) == 1 and self._alone else math.nan
        return value if math.isfinite(value) and value > 0 else None


def _finish(gauges: dict[str, float], info: Mapping[str, str], why: dict[str, str]) -> None:
    """What follows from two numbers: the pages in use from their share and how many there are, or the other way."""
    total = gauges.get("total") or _blocks(info)
    gauges.pop("total", None)
    if total is not None:
        gauges["total"] = total
    if not 0 <= gauges.get("share", 0.0) <= 1:
        why["share"] = f"{gauges.pop('share'):g} is no share between 0 and 1"
    if total is not None and "used" not in gauges and "share" in gauges:
        gauges["used"] = float(round(gauges["share"] * total))
    elif total is not None and "share" not in gauges and gauges.get("used", total + 1) <= total:
        gauges["share"] = gauges["used"] / total
    if "swapped" in gauges and "waiting" in gauges:
        gauges["waiting"] += gauges["swapped"]
    why.setdefault("used", "the page does not say how large the cache is")
    for name in ("cached", "free"):
        why.setdefault(name, "the page does not tell cached from free")
    for name in why.keys() & gauges.keys():
        del why[name]


def _blocks(info: Mapping[str, str]) -> float | None:
    text = info.get("num_gpu_blocks", "")
    return float(int(text)) if text.isascii() and text.isdigit() and len(text) <= 15 and int(text) else None


def _rank(series: Series) -> tuple[tuple[float, str], ...]:
    return tuple(_number(series.labels.get(name, "0")) for name in _RANKS)


def _number_of(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise _Unknown(f"{name} is {value} on the page")
    if not 0 <= value < MOST:
        raise _Unknown(f"{name} is {value:g} on the page, which is no count")
    return value


def _cumulative(base: str, series: Iterable[Series]) -> Cumulative:
    """The buckets of one histogram, of several with the same bounds added up."""
    parts: dict[frozenset[tuple[str, str]], dict[float, float]] = {}
    for each in series:
        rest = frozenset(item for item in each.labels.items() if item[0] != "le")
        try:
            bound = float(each.labels.get("le", ""))
        except ValueError:
            raise _Unknown(f"{base} has a bucket without a bound") from None
        parts.setdefault(rest, {})[bound] = _number_of(f"{base}_bucket", each.value)
    bounds = sorted(next(iter(parts.values())))
    if any(part.keys() != set(bounds) for part in parts.values()):
        raise _Unknown(f"{base} has series with different buckets")
    if len(bounds) < 2 or bounds[-1] != math.inf or not all(map(math.isfinite, bounds[:-1])):
        raise _Unknown(f"{base} has no whole set of buckets")
    below, counts = 0.0, []
    for bound in bounds:
        total = sum(part[bound] for part in parts.values())
        if total < below:
            raise _Unknown(f"{base} has buckets that fall")
        counts.append(round(total - below))
        below = total
    return Cumulative(tuple(bounds[:-1]), tuple(counts))
