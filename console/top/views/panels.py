"""The Overview's panels: each draws one subject of a scene into a width and a height."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....engine.control import protocol as p
from ....engine.flags import FLAGS
from ... import shown
from .. import figures, plots
from ..header import waiting
from ..host import Card
from ..lines import Line, Piece, Role, clip, fit, left, spread, width_of
from ..samples import Sample, added, ratio
from ..scene import Scene
from ..scene import latency as latency_of
from .events import entry_line
from .sequences import make_table

Samples = Sequence[Sample]
Panel = Callable[[Scene, int, int], list[Line]]

_AXIS = 7  # cells for the numbers beside a plot


def batch(scene: Scene, width: int, height: int) -> list[Line]:
    gauges, totals = scene.gauges, scene.totals
    running, queued, effective = (
        (gauges.running, gauges.waiting, gauges.effective) if gauges else (None, None, None)
    )
    mean = totals.per_step(totals.rows)
    lines: list[Line] = [
        [*field("running", figures.count(running, 7)), *field("  waiting", figures.count(queued, 7))],
        [
            *field("effective", figures.decimal(effective) if scene.at else figures.count(effective, 7)),
            ("  mean ", "dim"), (figures.decimal(mean), "text"),
            (" of ", "dim"), (figures.decimal(totals.per_step(totals.admitted)), "text"),
        ],
        spread([(" " + _reasons(scene), _urgency(scene))], [(_policy(scene) + " ", "dim")], width),
    ]  # fmt: skip
    legend: Line = [("⠒", "line"), (" admitted ", "dim"), ("⣿", "fill"), (" effective", "dim")]
    if scene.ascii_dots:
        legend = [("=", "line"), (" admitted ", "dim"), ("#", "fill"), (" effective", "dim")]
    return [*lines, *plot_over_time(scene, width, height - len(lines), _effective, _admitted, legend=legend)]


def _reasons(scene: Scene) -> str:
    gauges = scene.gauges
    if gauges is None:
        return figures.UNKNOWN
    if gauges.reasons is None:
        return "why they waited was not kept" if gauges.waiting else "nothing waited"
    return waiting(gauges.reasons) if gauges.waiting else "nothing waits"


def _urgency(scene: Scene) -> Role:
    """To be queued until the next step is the way of things; any other reason to wait is worth a look."""
    reasons = scene.gauges.reasons if scene.gauges else None
    held = any(count for reason, count in (reasons or {}).items() if reason != "queued")
    return "need" if held else "dim"


def _policy(scene: Scene) -> str:
    flags = scene.picture.flags
    if flags is None or scene.at is not None:
        return ""
    return next((str(flag.value) for flag in flags.flags if flag.name == "admission.policy"), "")


def rate(scene: Scene, width: int, height: int) -> list[Line]:
    totals, model = scene.totals, scene.model
    wall = totals.step_seconds
    fit_text: Line = [(" step over rows ", "dim"), (figures.UNKNOWN, "text"), ("  no line fits", "dim")]
    if model is not None:
        base, slope = figures.milliseconds(model.base), figures.milliseconds(model.per_row)
        fit_text = [
            (" step = ", "dim"), (base, "text"), (" + ", "dim"), (slope, "text"), (" ms x rows", "dim"),
            ("  R² ", "dim"), (f"{model.fit:.2f}", "text"),
        ]  # fmt: skip
    lines: list[Line] = [
        [
            *field("output", figures.count(totals.rate(totals.generation_tokens), 7)),
            *field(" prompt", figures.count(totals.rate(totals.prompt_tokens), 7), " tok/s", wide=7),
        ],
        [
            *field("step", figures.milliseconds(totals.per_step(wall)), " ms"),
            ("  forward ", "dim"),
            (figures.whole_percent(totals.forward_seconds, wall).rjust(3), "text"),
            (" %", "dim"),
        ],
        fit_text,
    ]  # fmt: skip
    legend: Line = [("output, tok/s", "dim")]
    shown_rate = _unknown if "generation_tokens" in scene.picture.lacks else output_rate
    return [*lines, *plot_over_time(scene, width, height - len(lines), shown_rate, legend=legend)]


_LATENCIES = (
    ("first_token", "first token"),
    ("between_tokens", "between tokens"),
    ("queue", "queue"),
    ("end_to_end", "end to end"),
)


def latency(scene: Scene, width: int, height: int) -> list[Line]:
    lines: list[Line] = []
    column = max(7, min(12, (width - 16) // 3))
    page = scene.picture.page
    for name, label in _LATENCIES:
        why = page.reading.why.get(name) if page else None
        if why is not None:
            lines.append([(left(f" {label}", 16), "dim"), ("NA", "text"), (f"  {shown.plain(why)}", "dim")])
            continue
        found = scene.totals.latency.get(name)
        line: Line = [(left(f" {label}", width - 3 * column - 1), "dim")]
        for value in (found.p50, found.p95, found.p99) if found else (None, None, None):
            line.append((_long(value, column).rjust(column), "text"))
        lines.append(line)
    rest = height - len(lines)
    if rest < 4:
        return lines
    legend: Line = [("first token p95, ms", "dim")]
    return [*lines, *plot_over_time(scene, width, rest, _p95(scene, "first_token"), legend=legend)]


def latency_tail(width: int) -> Line:
    column = max(7, min(12, (width - 16) // 3))
    return [(" ms ", "dim"), *((f" {name} ".rjust(column, "─"), "dim") for name in ("p50", "p95", "p99"))]


def between_tokens(scene: Scene, width: int, height: int) -> list[Line]:
    legend: Line = [("p95, ms", "dim")]
    return plot_over_time(scene, width, height, _p95(scene, "between_tokens"), legend=legend)


def _long(value: float | p.NA | None, width: int) -> str:
    if isinstance(value, p.NA):
        return "NA"
    return figures.milliseconds(value, width - 1)


def cache(scene: Scene, width: int, height: int) -> list[Line]:
    gauges, totals = scene.gauges, scene.totals
    values = (gauges.used, gauges.cached, gauges.free) if gauges else (None, None, None)
    line: Line = []
    for label, value, glyph in zip(("used", "cached", "free"), values, "█▒░", strict=True):
        if width >= 46:  # else the bar's parts are told by their order alone
            line.append((f" {glyph}", "fill"))
        line.extend([(f" {label} ", "dim"), (figures.count(value, 6).rjust(6), "text")])
    lines = [line]
    if gauges and gauges.used is not None and gauges.cached is not None and gauges.free is not None:
        parts: list[tuple[float, str, Role]] = [
            (gauges.used, "█", "fill"), (gauges.cached, "▒", "fill"), (gauges.free, "░", "dim"),
        ]  # fmt: skip
        lines.append([(" ", "text"), *plots.bar(parts, width - 2)])
    else:
        lines.append([])
    lines.append(
        [
            *field("prefix hit", figures.percent(totals.prefix_hits, totals.prefix_queries), " % of ", wide=10),
            (figures.count(totals.count(totals.prefix_queries), 7), "text"), (" tokens", "dim"),
        ]
    )  # fmt: skip
    faults: Role = "bad" if totals.faults else "text"
    lines.append(
        [
            *field("preempted", figures.count(totals.count(totals.preemptions), 7)),
            ("  failed steps ", "dim"), (figures.count(totals.count(totals.faults), 5).rjust(5), faults),
        ]
    )  # fmt: skip
    rest = height - len(lines)
    if rest < 4:
        return lines
    legend: Line = [("⠒", "line"), (" all pages held ", "dim"), ("⣿", "fill"), (" by running", "dim")]
    return [*lines, *plot_over_time(scene, width, rest, _used, _held, legend=legend)]


def cache_tail(scene: Scene) -> Line:
    gauges = scene.gauges
    if gauges is None or gauges.used is None or gauges.cached is None or gauges.free is None:
        return []
    total = gauges.used + gauges.cached + gauges.free
    return [(f" {figures.whole_percent(gauges.used + gauges.cached, total)} % held ", "dim")]


def speculation(scene: Scene, width: int, height: int) -> list[Line]:
    snapshot, totals = scene.picture.snapshot, scene.totals
    if scene.picture.hello is None or snapshot is None:
        return [[(f" {figures.UNKNOWN}", "text")]]
    depth = snapshot.speculation.depth
    if isinstance(depth, p.NA):
        return [[(" NA", "text"), (f"  {depth.na}", "dim")]]
    drafted, accepted = sum(totals.drafted), sum(totals.accepted)
    if not drafted or not totals.draft_rows:
        why = "spec.depth is 0" if not depth else "no draft was verified in this window"
        return [[*field("depth", str(depth)), (f"  {why}", "dim")]]
    per_row = 1 + accepted / totals.draft_rows
    lines: list[Line] = [
        [
            *field("depth", str(depth)), ("  tokens a row ", "dim"), (figures.decimal(per_row), "text"),
            ("  accepted ", "dim"), (figures.percent(accepted, drafted), "text"),
            (f" % of {figures.count(drafted)}", "dim"),
        ],
        [(" by place", "dim")],
    ]  # fmt: skip
    for right, count in zip(totals.accepted, totals.drafted, strict=True):
        if count:
            lines[-1].append((figures.percent(right, count).rjust(8), "text"))
    lines[-1].append((" %", "dim"))
    return lines


def allocator(scene: Scene, width: int, height: int) -> list[Line]:
    known, counts = scene.picture.allocator, scene.totals.allocator
    if known is None:
        return [[(f" {figures.UNKNOWN}", "text")]]
    if known.now is None:
        return [[(" NA", "text"), ("  this engine has no allocator of its own", "dim")]]
    if scene.at is None and not known.now.enabled:
        return [[(" off", "text"), ("  buffers are the system's own", "dim")]]
    if counts is None:
        return [[(f" {figures.UNKNOWN}", "text"), ("  nothing is known of this window", "dim")]]
    of = f" of {figures.mebibytes(counts.cap)} MiB" if counts.cap is not None else " MiB"
    line: Line = [(" held ", "dim"), (figures.mebibytes(counts.held), "text"), (of, "dim")]
    if counts.hits + counts.misses:
        line.extend(hit_rate(counts))
    return [line]


def allocator_tail(scene: Scene) -> Line:
    """Whether the cap binds, at any width: in the head, where the numbers cannot push it out."""
    state, role = cap_state(scene)
    return [(f" {state} ", role)] if state else []


def hit_rate(counts: p.AllocatorCounts) -> Line:
    share = figures.percent(counts.hits, counts.hits + counts.misses)
    return [("  hit rate ", "dim"), (share, "text"), (" %", "dim")]


def cap_state(scene: Scene) -> tuple[str, Role]:
    """Whether the cap has bound since it was set; the past does not know it."""
    now = scene.picture.allocator.now if scene.picture.allocator else None
    if now is None or scene.at is not None or not now.enabled:
        return "", "dim"
    if now.cap is None:
        return "▲ unbounded", "need"
    return ("cap not reached", "dim") if now.bound == 0 else (f"cap bound {now.bound:,}×", "good")


def held(scene: Scene, width: int, height: int) -> list[Line]:
    """The allocator's held memory against its cap."""
    legend: Line = [("⠒", "line"), (" cap ", "dim"), ("⣿", "fill"), (" held, MiB", "dim")]
    if scene.ascii_dots:
        legend = [("=", "line"), (" cap ", "dim"), ("#", "fill"), (" held, MiB", "dim")]
    return plot_over_time(scene, width, height, _held_bytes, _cap_bytes, legend=legend)


def _held_bytes(samples: Samples) -> float | None:
    return _last(samples, lambda counts: counts.held)


def _cap_bytes(samples: Samples) -> float | None:
    return _last(samples, lambda counts: counts.cap)


def _last(samples: Samples, of: Callable[[p.AllocatorCounts], int | None]) -> float | None:
    known = [value for each in samples if each.allocator and (value := of(each.allocator)) is not None]
    return known[-1] / 2**20 if known else None


def host(scene: Scene, width: int, height: int) -> list[Line]:
    seen, memory = scene.picture.host, scene.picture.memory
    resident = memory.resident if memory else None
    lines: list[Line] = []
    if seen is None:
        lines.append([*field("cpu", figures.UNKNOWN), *field("rss", figures.mebibytes(resident), " MiB")])
        return lines
    cpu = figures.UNKNOWN if isinstance(seen.cpu, p.NA) else f"{100 * seen.cpu:.0f}"
    lines.append(
        [
            (" cpu ", "dim"), (cpu.rjust(5), "text"), (f" % of {100 * seen.cores}", "dim"),
            ("   rss ", "dim"), (figures.mebibytes(resident).rjust(6), "text"), (" MiB", "dim"),
        ]
    )  # fmt: skip
    card = seen.card
    if isinstance(card, p.NA):
        lines.append([(" GPU ", "dim"), ("NA", "text"), (f"  {card.na}", "dim")])
    else:
        lines += _card(card)
    used, total = figures.mebibytes(seen.memory_used), figures.mebibytes(seen.memory_total)
    lines.append([(" memory ", "dim"), (used, "text"), (" of ", "dim"), (total, "text"), (" MiB", "dim")])
    for part in memory.parts if memory else ():
        size = figures.UNKNOWN if isinstance(part.bytes, p.NA) else figures.decimal(part.bytes / 2**20)
        why = f"  {part.bytes.na}" if isinstance(part.bytes, p.NA) else " MiB"
        place = "" if part.place == "host" or width < 46 else f"  on {part.place}"
        lines.append(
            [("   " + left(part.component, 20), "dim"), (size.rjust(8), "text"), (why + place, "dim")]
        )
    return lines


def _card(card: Card) -> list[Line]:
    def show(value: float | p.NA) -> str:
        return figures.UNKNOWN if isinstance(value, p.NA) else f"{value:.0f}"

    slow: Piece = ("  throttling NA", "dim")
    if not isinstance(card.throttled, p.NA):
        slow = (f"  ▲ {card.throttled}" if card.throttled else "", "need")
    return [
        [
            (" GPU ", "dim"), (show(card.utilisation).rjust(5), "text"), (" %  ", "dim"),
            (figures.mebibytes(card.used), "text"), (" of ", "dim"), (figures.mebibytes(card.total), "text"),
            (" MiB", "dim"),
        ],
        [
            ("     ", "dim"), (show(card.watts).rjust(5), "text"), (" W  ", "dim"),
            (show(card.celsius), "text"), (" °C", "dim"), slow,
        ],
    ]  # fmt: skip


def events(scene: Scene, width: int, height: int) -> list[Line]:
    entries = scene.picture.events
    if scene.at is not None:
        entries = tuple(each for each in entries if isinstance(each, p.Event) and each.time <= scene.end)
    if not entries:
        return [[("  none yet" if scene.picture.hello else f" {figures.UNKNOWN}", "dim")]]
    return [entry_line(entry, width) for entry in reversed(entries[-height:])]


def oldest(scene: Scene, width: int, height: int) -> list[Line]:
    """The sequences that have been here longest: what is stuck stands on top."""
    answer = scene.picture.sequences
    if answer is None or scene.at is not None:
        return [[(f" {figures.UNKNOWN}", "text")]]
    table = make_table(has_cursor=False)
    by_age = sorted(answer.sequences, key=lambda row: row.age, reverse=True)[:height]
    return table.lines(by_age, width, height)


def field(label: str, value: str, unit: str = "", *, wide: int = 9) -> Line:
    """A number in a place of its own, so that it grows to the left and nothing beside it moves."""
    return [(" " + left(label, wide), "dim"), (value.rjust(7), "text"), (unit, "dim")]


# -- plots ------------------------------------------------------------------------------------------------------------


def plot_over_time(
    scene: Scene,
    width: int,
    height: int,
    fill: Callable[[Samples], float | None],
    line: Callable[[Samples], float | None] | None = None,
    *,
    legend: Line,
) -> list[Line]:
    """A row for the legend and the newest change's name, then the plot with the changes' marks on its axis. Drawn once
    for each window: `fill` and `line` compare equal where they show the same."""
    key = (width, height, fill, line, tuple(legend), scene.ascii_dots)
    drawn = scene.plots.get(key)
    if drawn is None:
        drawn = scene.plots[key] = _drawn(scene, width, height, fill, line, legend)
    return drawn


def _drawn(
    scene: Scene,
    width: int,
    height: int,
    fill: Callable[[Samples], float | None],
    line: Callable[[Samples], float | None] | None,
    legend: Line,
) -> list[Line]:
    cells = width - _AXIS - 1
    rows = height - 1
    if rows < 2 or cells < 8:
        return [fit([(" ", "text"), *legend], width)]
    dots = cells if scene.ascii_dots else 2 * cells
    filled = plots.columns(scene.window, scene.end, scene.span, dots, fill)
    lined = plots.columns(scene.window, scene.end, scene.span, dots, line) if line else None
    top = plots.top_of(filled, lined or ())
    drawn = plots.plot(filled, lined, rows, top, ascii_dots=scene.ascii_dots)
    marks = _marks(scene, cells)
    known = any(value is not None for value in (*filled, *(lined or ())))
    labels = {0: figures.decimal(top) if top < 10 and top % 1 else figures.count(top, 6), rows - 1: "0"}
    lines = [_legend(legend, marks, cells)]
    for row, pieces in enumerate(drawn):
        lines.append(
            [((labels.get(row, "") if known else "").rjust(_AXIS - 1) + " ", "dim"), *_through(pieces, marks)]
        )
    return lines


def _marks(scene: Scene, cells: int) -> dict[int, p.Event]:
    """Cell of the axis -> the newest change there."""
    found: dict[int, p.Event] = {}
    for event in scene.changes:
        cell = plots.place(event.time, scene.end, scene.span, cells)
        if cell is not None:
            found[cell] = event
    return found


def _legend(legend: Line, marks: dict[int, p.Event], cells: int) -> Line:
    """The legend, and over the newest change in the window its name; where there is no room for both, the name."""
    start: Line = [(" " * _AXIS, "text")]
    if not marks:
        return [*start, *legend]
    newest = max(marks)
    name = _change_name(marks[newest])
    room_left, room_right = newest, cells - newest - 1
    at, mark = newest, f"▼ {clip(name, room_right - 1)}"
    if room_right <= len(name) and (room_left > len(name) or room_left > room_right):
        text = clip(name, max(0, room_left - 1))
        at, mark = newest - len(text) - 1, f"{text} ▼"
    before = legend if width_of(legend) < at else []
    return [*start, *before, (" " * (at - width_of(before)), "text"), (mark, "mark")]


def _change_name(event: p.Event) -> str:
    changes = event.data.get("changes")
    if isinstance(changes, dict) and changes:
        parts = []
        for name, change in changes.items():
            old, new = (shown_value(change.get(side)) for side in ("old", "new"))
            parts.append(f"{_short_name(name)} {old}→{new}")
        return ", ".join(parts)
    return shown.plain(event.text)


def _short_name(flag: str) -> str:
    """Without its group, where no other flag is called so."""
    return flag if _TAILS[_tail(flag)] > 1 else _tail(flag)


def _tail(flag: str) -> str:
    return flag.rpartition(".")[2]


_TAILS = Counter(map(_tail, FLAGS))


def shown_value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _through(pieces: list[Piece], marks: dict[int, p.Event]) -> Line:
    """The plot's row with a dotted line down from each mark, where no dot of the plot is."""
    if not marks:
        return list(pieces)
    line: Line = []
    start = 0
    for text, role in pieces:
        done = 0
        for cell in sorted(cell - start for cell in marks if start <= cell < start + len(text)):
            if text[cell] == " ":
                if cell > done:
                    line.append((text[done:cell], role))
                line.append(("┊", "mark"))
                done = cell + 1
        if done < len(text):
            line.append((text[done:], role))
        start += len(text)
    return line


def _effective(samples: Samples) -> float | None:
    return ratio(added(samples, lambda each: each.rows), added(samples, lambda each: each.steps))


def _admitted(samples: Samples) -> float | None:
    steps = added(samples, lambda each: each.steps)
    if not steps:  # a stall: what is admitted is known all the same
        return mean_of(samples, lambda each: each.running) or None
    return ratio(added(samples, lambda each: each.admitted), steps)


def output_rate(samples: Samples) -> float | None:
    return ratio(
        added(samples, lambda each: each.generation_tokens), sum(sample.seconds for sample in samples)
    )


def _unknown(samples: Samples) -> None:
    return None


def _used(samples: Samples) -> float | None:
    return mean_of(samples, lambda each: each.pages_used)


def _held(samples: Samples) -> float | None:
    cached = mean_of(samples, lambda each: each.pages_cached)
    used = _used(samples)
    return None if used is None or cached is None else used + cached


def mean_of(samples: Samples, value: Callable[[Sample], float | None]) -> float | None:
    return ratio(added(samples, value), len(samples))


@dataclass(frozen=True, slots=True)
class _P95:
    """Of one latency, in milliseconds."""

    name: str
    bounds: tuple[float, ...]

    def __call__(self, samples: Samples) -> float | None:
        found = latency_of(samples, self.name, self.bounds)
        return 1000 * found.p95 if found and not isinstance(found.p95, p.NA) else None


def _p95(scene: Scene, name: str) -> _P95:
    return _P95(name, scene.picture.own_bounds.get(name, scene.picture.bounds))
