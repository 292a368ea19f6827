"""Medians, spreads and ratios of the engines' runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from .measure import Visit

OURS = "arc"


def table(visits: Sequence[Visit]) -> str:
    """One line a workload: each engine's median with its range, and our ratio to the best peer, run by run."""
    engines = list(dict.fromkeys(visit.engine for visit in visits))
    works = list(dict.fromkeys(name for visit in visits for name in (*visit.sent, *visit.failed)))
    lines = [["workload, tokens/s", *engines, "arc / best peer"]]
    for work in works:
        cells = [
            _cell([v.sent[work].rate for v in visits if v.engine == e and work in v.sent]) for e in engines
        ]
        lines.append([work, *cells, _ratio(visits, work)])
    for label, value in (
        ("start to first token, s", lambda visit: visit.first_token),
        ("peak memory, MiB", lambda visit: visit.peak_mib),
    ):
        lines.append([label, *(_cell([value(v) for v in visits if v.engine == e]) for e in engines), ""])
    return "\n".join(
        "| " + " | ".join(line) + " |" for line in (lines[0], ["---"] * len(lines[0]), *lines[1:])
    )


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "NA"
    return f"{_number(statistics.median(values))} ({_number(min(values))}-{_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(visits: Sequence[Visit], work: str) -> str:
    """The median over repetitions of ours / the best peer of the same repetition; repetitions are in the order run."""
    ours = [visit.sent[work].rate for visit in visits if visit.engine == OURS and work in visit.sent]
    peers = [
        [visit.sent[work].rate for visit in visits if visit.engine == name and work in visit.sent]
        for name in dict.fromkeys(visit.engine for visit in visits)
        if name != OURS
    ]
    ratios = [
        own / max(rates[turn] for rates in peers if turn < len(rates))
        for turn, own in enumerate(ours)
        if any(turn < len(rates) for rates in peers)
    ]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else "NA"


def failures(visits: Iterable[Visit]) -> list[str]:
    found = {(visit.engine, work, why) for visit in visits for work, why in visit.failed.items()}
    return [f"{engine}, {work}: {why}" for engine, work, why in sorted(found)]
