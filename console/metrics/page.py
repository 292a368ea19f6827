"""The text of a metrics page as series: Prometheus' text format 0.0.4, by prometheus-client's parser.

Only the lines that the console reads are parsed. The others are looked at just enough to know that the page is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..shown import plain

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:\{|[ \t]+[-+0-9.NnIi])")
_QUOTED = re.compile(
    r'\{[ \t]*"'
)  # a name that needs quotes, as newer servers may write it: none of ours does
_BEGUN = re.compile(r"[ \t]*[a-zA-Z_:{#]")  # how a line of the format begins, whatever it is
_SHOWN = 60  # characters of a line that is no metric


class NotMetrics(Exception):
    """The page is no Prometheus text; the message says where it is not."""


@dataclass(frozen=True, slots=True)
class Series:
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    """`series` by the name of the sample, such as vllm:prompt_tokens_total; `first` is the first name on the page."""

    series: Mapping[str, tuple[Series, ...]]
    first: str


def parse(text: str, wanted: Callable[[str], bool]) -> Page:
    """The wanted series, one for each set of labels: of two alike the later counts. Raises NotMetrics."""
    if not text.strip():
        raise NotMetrics("the page is empty")
    lines = text.split("\n")
    rest = lines.pop()
    kept: list[tuple[int, str]] = []
    first = ""
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        found = _SAMPLE.match(line)
        if found is None:
            if _QUOTED.match(line):
                continue
            raise NotMetrics(f"no Prometheus text, line {number}: {_short(line)}")
        first = first or found[1]
        if wanted(found[1]):
            kept.append((number, line))
    if rest and not _BEGUN.match(rest):
        raise NotMetrics(f"no Prometheus text, line {len(lines) + 1}: {_short(rest)}")
    if rest:
        raise NotMetrics("the page breaks off in the middle of a line")
    return Page(_parsed(kept), first)


def _parsed(lines: list[tuple[int, str]]) -> Mapping[str, tuple[Series, ...]]:
    try:
        return _series(line for _, line in lines)
    except ValueError:
        for number, line in lines:  # again, to name the line: the parser does not
            try:
                _series((line,))
            except ValueError as error:
                raise NotMetrics(f"no Prometheus text, line {number}: {_short(line)} ({error})") from None
        raise


def _series(lines: Iterable[str]) -> Mapping[str, tuple[Series, ...]]:
    from prometheus_client.parser import (
        text_fd_to_metric_families,
    )  # brings an HTTP server: 50 ms, so not at import

    found: dict[str, dict[frozenset[tuple[str, str]], Series]] = {}
    for family in text_fd_to_metric_families(iter(lines)):  # pyright: ignore[reportArgumentType]  (any lines will do)
        for sample in family.samples:
            same = found.setdefault(sample.name, {})
            same[frozenset(sample.labels.items())] = Series(sample.labels, float(sample.value))
    return {name: tuple(each.values()) for name, each in found.items()}


def _short(line: str) -> str:
    text = plain(line)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
