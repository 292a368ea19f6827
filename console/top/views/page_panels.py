"""The Overview's panels for an engine that is read through its metrics page: what it feeds, and why not the rest."""

from __future__ import annotations

from collections.abc import Mapping

from ... import shown
from ...metrics.difference import PageSample
from ...metrics.reading import Reading
from .. import figures, plots
from ..header import waiting
from ..lines import Line, Role, spread
from ..samples import Sample, added
from ..scene import Scene
from ..store import MetricsPage
from .panels import Panel, Samples, field, mean_of, output_rate, plot_over_time
from .view import NO_REQUESTS


def batch(scene: Scene, width: int, height: int) -> list[Line]:
    gauges, page = scene.gauges, _page(scene)
    running, queued = (gauges.running, gauges.waiting) if gauges else (None, None)
    lines: list[Line] = [
        [
            *field("running", _or_na(page.reading, "running", figures.count(running, 7))),
            *field("  waiting", _or_na(page.reading, "waiting", figures.count(queued, 7))),
        ],
    ]
    effective = gauges.effective if gauges else None
    if "effective" in page.reading.gauges:
        lines.append(
            [
                *field("effective", figures.count(effective, 7)),
                ("  mean NA" + ("" if narrow(width) else ", not on the page"), "dim"),
            ]
        )
    else:
        lines.append(
            na("effective", page.reading.why.get("effective", f"{page.reading.kind} does not report it"))
        )
    lines.append(spread([(" " + _reasons(scene), _urgency(scene))], [], width))
    legend: Line = [("⠒", "line"), (" with waiting ", "dim"), ("⣿", "fill"), (" running", "dim")]
    if scene.ascii_dots:
        legend = [("=", "line"), (" with waiting ", "dim"), ("#", "fill"), (" running", "dim")]
    return [*lines, *plot_over_time(scene, width, height - len(lines), _running, _asked, legend=legend)]


def _running(samples: Samples) -> float | None:
    return mean_of(samples, lambda each: each.running)


def _asked(samples: Samples) -> float | None:
    running, queued = _running(samples), mean_of(samples, lambda each: each.waiting)
    return None if running is None or queued is None else running + queued


def _reasons(scene: Scene) -> str:
    gauges = scene.gauges
    if gauges is None or gauges.waiting is None:
        return figures.UNKNOWN
    if not gauges.waiting:
        return "nothing waits"
    if scene.at is not None:
        return "why they waited was not kept"
    if gauges.reasons is None:
        return "why they wait is not on the page"
    return shown.plain(waiting(gauges.reasons))


def _urgency(scene: Scene) -> Role:
    gauges = scene.gauges
    return "need" if gauges and gauges.waiting else "dim"


def rate(scene: Scene, width: int, height: int) -> list[Line]:
    totals, reading = scene.totals, _page(scene).reading
    lines: list[Line] = [
        [
            *field(
                "output",
                _or_na(reading, "generation_tokens", figures.decimal(totals.rate(totals.generation_tokens))),
            ),
            *field(
                " prompt",
                _or_na(reading, "prompt_tokens", figures.decimal(totals.rate(totals.prompt_tokens))),
                " tok/s",
                wide=7,
            ),
        ],
    ]
    if "step_seconds" in reading.counters:
        wall = totals.step_seconds
        lines.append(
            [
                *field("step", figures.milliseconds(totals.per_step(wall)), " ms"),
                ("  forward ", "dim"), (figures.whole_percent(totals.forward_seconds, wall).rjust(3), "text"),
                (" %", "dim"),
            ]
        )  # fmt: skip
    elif "steps" in reading.counters:
        steps = figures.decimal(totals.rate(totals.steps))
        lines.append(
            [
                *field("steps", steps, " /s"),
                ("  times NA" + ("" if narrow(width) else ", not on the page"), "dim"),
            ]
        )
    else:
        lines.append(na("step", reading.why.get("steps", f"{reading.kind} does not report steps")))
    finished = _or_na(reading, "finished", figures.count(totals.count(totals.finished), 7))
    lines.append([*field("finished", finished, " requests")])
    live = "" if reading.live_tokens else ", counted as a request ends"
    legend: Line = [(f"output, tok/s{live}", "dim")]
    return [*lines, *plot_over_time(scene, width, height - len(lines), output_rate, legend=legend)]


def cache(scene: Scene, width: int, height: int) -> list[Line]:
    gauges, totals, reading = scene.gauges, scene.totals, _page(scene).reading
    values = (gauges.used, gauges.cached, gauges.free) if gauges else (None, None, None)
    names = ("used", "cached", "free")
    line: Line = []
    for name, value in zip(names, values, strict=True):
        shown_value = "NA" if value is None else figures.count(value, 6)
        line.extend([(f" {name} ", "dim"), (shown_value.rjust(6), "text")])
    unknown = next((name for name, value in zip(names, values, strict=True) if value is None), None)
    if unknown is not None and not narrow(width):
        line.append((f"  {reading.why.get(unknown, 'not on the page')}", "dim"))
    lines: list[Line] = [line]
    share = _share(scene)
    parts: list[tuple[float, str, Role]] = []
    if unknown is None:
        for value, glyph in zip(values, "█▒░", strict=True):
            parts.append((value or 0.0, glyph, "dim" if glyph == "░" else "fill"))
    elif share is not None:
        parts = [(share, "█", "fill"), (1 - share, "░", "dim")]
    lines.append([(" ", "text"), *plots.bar(parts, width - 2)] if parts else [])
    if "prefix_hits" in reading.counters and "prefix_queries" in reading.counters:
        hit = figures.percent(totals.prefix_hits, totals.prefix_queries)
        asked = figures.count(totals.count(totals.prefix_queries), 7)
        lines.append([*field("prefix hit", hit, " % of ", wide=10), (asked, "text"), (" tokens", "dim")])
    else:
        lines.append(na("prefix hit", _why(reading.why, "prefix_hits", "prefix_queries")))
    preempted = _or_na(reading, "preemptions", figures.count(totals.count(totals.preemptions), 7))
    faults: Line = [("  failed steps NA", "dim")]
    if "faults" in reading.counters:
        count = figures.count(totals.count(totals.faults), 5).rjust(5)
        faults = [("  failed steps ", "dim"), (count, "bad" if totals.faults else "text")]
    lines.append([*field("preempted", preempted), *faults])
    rest_height = height - len(lines)
    if rest_height < 4:
        return lines
    legend: Line = [("KV in use, %", "dim")]
    return [*lines, *plot_over_time(scene, width, rest_height, _share_over, legend=legend)]


def cache_tail(scene: Scene, width: int) -> Line:
    share, reading = _share(scene), _page(scene).reading
    total = reading.gauges.get("total")
    if share is None:
        return [(" NA " if narrow(width) else f" NA {reading.why.get('share', '')} ", "dim")]
    whole = "" if total is None or narrow(width) else f" of {figures.count(total, 9)} {reading.unit}"
    return [(f" {figures.percent(share)} %{whole} used ", "dim")]


def _share(scene: Scene) -> float | None:
    if scene.at is None:
        return _page(scene).reading.gauges.get("share")
    return _share_of(scene.window[-1]) if scene.window else None


def _share_of(sample: Sample) -> float | None:
    return sample.share if isinstance(sample, PageSample) else None


def _share_over(samples: Samples) -> float | None:
    share = mean_of(samples, _share_of)
    return None if share is None else 100 * share


def speculation(scene: Scene, width: int, height: int) -> list[Line]:
    reading = _page(scene).reading
    if "drafted" not in reading.counters or "accepted" not in reading.counters:
        return [
            na(
                "",
                "no spec_decode on the page" if narrow(width) else _why(reading.why, "drafted", "accepted"),
            )
        ]
    drafted, accepted = (
        added(scene.window, lambda each, name=name: getattr(each, name)) for name in ("drafted", "accepted")
    )
    share = figures.percent(accepted, drafted)
    return [
        [*field("accepted", share, " % of "), (figures.count(drafted, 7), "text"), (" drafted tokens", "dim")]
    ]


def allocator(scene: Scene, width: int, height: int) -> list[Line]:
    return [na("", "not read off a metrics page")]


def host(scene: Scene, width: int, height: int) -> list[Line]:
    resident = _page(scene).reading.resident
    if resident is None:
        return [na("cpu, memory, GPU", "not on the page")]
    return [
        [*field("rss", figures.mebibytes(round(resident)), " MiB"), ("  page's server", "dim")],
        na("cpu, GPU", "not on the page"),
    ]


def oldest(scene: Scene, width: int, height: int) -> list[Line]:
    return [na("", NO_REQUESTS)]


def narrow(width: int) -> bool:
    """Half of 80 columns: whole numbers and short reasons."""
    return width < 46


def na(label: str, why: str) -> Line:
    """What cannot be had, and why."""
    head: Line = [(f" {label}", "dim")] if label else []
    return [*head, (" NA", "text"), (f"  {shown.plain(why)}", "dim")]


def _or_na(reading: Reading, name: str, text: str) -> str:
    """The number, or that the page has none; why is in Reading.why."""
    return text if name in reading.gauges or name in reading.counters else "NA"


def _why(why: Mapping[str, str], *names: str) -> str:
    return next((why[name] for name in names if name in why), "not on the page")


def _page(scene: Scene) -> MetricsPage:
    page = scene.picture.page
    assert page is not None, "these panels are drawn for pages alone"
    return page


PANELS: Mapping[str, Panel] = {
    "batch": batch,
    "rate": rate,
    "cache": cache,
    "speculation": speculation,
    "allocator": allocator,
    "host": host,
    "oldest": oldest,
}
