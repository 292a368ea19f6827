"""View 4: what the bounded allocator holds, against which cap, and what it did in the window."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.control import allocator_messages as a
from ... import shown
from .. import figures
from ..lines import Line, Role, fit, left, rule, spread
from ..samples import Sample
from ..scene import Scene
from . import panels
from .view import Exported, View, not_on_a_page

_MIB = 1 << 20
TENTHS = 10


class Allocator(View):
    name = "Allocator"
    short = "Alloc"
    hints = (
        ("view_next", "view"), ("window_longer", "window"), ("trim", "trim"), ("freeze", "freeze"),
        ("history_back", "history"), ("export", "export"), ("quit", "quit"),
    )  # fmt: skip

    def lines(self, scene: Scene, width: int, height: int) -> list[Line]:
        if scene.picture.page is not None:
            return not_on_a_page("the allocator is not read off a metrics page", width)
        known = scene.picture.allocator
        if known is None and scene.session.replaying:
            return [fit([("  this file keeps nothing of the allocator", "dim")], width)]
        if known is None:
            return [fit([("  asking the engine", "dim")], width)]
        if known.now is None:
            return [fit([("  NA", "here"), ("  this engine has no allocator of its own", "text")], width)]
        now = known.now
        head = [*_held(scene, now, width), *_window(scene, width), *_life(scene, now, width)]
        classes = _classes(now, scene, width)
        rest = height - len(head)
        most = max(2, rest - min(8, rest // 2)) if classes else 0  # the plot keeps up to eight lines
        listed = _first(classes, most, width)
        plot = panels.held(scene, width, rest - len(listed) - 1) if rest - len(listed) > 4 else []
        title = [rule("Held in the window", width)] if plot else []
        lines = [*head, *listed, *title, *plot]
        return [fit(line, width) for line in lines[:height]]

    def export(self, scene: Scene) -> Exported | None:
        known = scene.picture.allocator
        if known is None or known.now is None:
            return None
        return Exported(
            "allocator", value={"now": known.now, "window": scene.totals.allocator, "end": scene.end}
        )


def deciles(samples: Sequence[Sample]) -> list[int | None]:
    """What was held at the beginning of the window and after each tenth of it, bytes."""
    if not samples:
        return [None] * (TENTHS + 1)
    places = [round(tenth * (len(samples) - 1) / TENTHS) for tenth in range(TENTHS + 1)]
    return [None if (counts := samples[place].allocator) is None else counts.held for place in places]


# -- parts --------------------------------------------------------------------------------------------------------


def _held(scene: Scene, now: a.AllocatorState, width: int) -> list[Line]:
    counts = scene.totals.allocator
    held = now.held if scene.at is None else counts.held if counts else None
    cap = now.cap if scene.at is None else counts.cap if counts else None
    state, role = panels.cap_state(scene)
    of = f" of {figures.mebibytes(cap)} MiB" if cap is not None else " MiB"
    start: Line = [("  held", "dim"), (figures.mebibytes(held).rjust(9), "here"), (of, "text")]
    if cap:
        start += [("  ", "text"), *_share(held or 0, cap, max(10, min(40, width - 54)))]
    lines = [spread(start, [(f" {state}  ", role)], width)]
    if scene.at is not None:
        return lines
    lines.append([("  cap from ", "dim"), (shown.plain(now.cap_from), "text" if now.enabled else "need")])
    lines.append(
        [
            ("  in use ", "dim"), (figures.mebibytes(now.live), "text"), (" MiB  kept past a step ", "dim"),
            (figures.mebibytes(now.kept), "text"), (" MiB  most ever held ", "dim"),
            (figures.mebibytes(now.peak), "text"), (" MiB", "dim"),
        ]
    )  # fmt: skip
    return lines


def _share(held: int, cap: int, width: int) -> Line:
    filled = min(width, max(1 if held else 0, round(width * held / cap)))
    return [("█" * filled, "fill"), ("░" * (width - filled), "dim")]


def _window(scene: Scene, width: int) -> list[Line]:
    totals, counts = scene.totals, scene.totals.allocator
    head = rule(f"In the last {figures.span(scene.span)}", width)
    if counts is None:
        return [
            head,
            [("  ", "text"), (figures.UNKNOWN, "text"), ("  nothing is known of this window", "dim")],
        ]
    taken = counts.hits + counts.misses
    took: Line = [("  taken", "dim"), (figures.count(taken, 9).rjust(10), "text")]
    if taken:  # of nothing there is no rate
        took.extend(panels.hit_rate(counts))
    took.extend([("   bypassed ", "dim"), (figures.count(counts.bypassed, 9), "text")])
    rates: Line = [
        ("  alloc/step", "dim"), (_rate(totals.per_step(counts.allocated)).rjust(8), "text"),
        ("   free/step", "dim"), (_rate(totals.per_step(counts.freed)).rjust(8), "text"),
        ("   evictions", "dim"), (figures.count(counts.evictions, 7).rjust(8), "text"),
    ]  # fmt: skip
    room = max(5, min(9, (width - 14) // (TENTHS + 1)))
    growth: Line = [("  held, MiB ", "dim")]
    growth.extend((_mebibytes(value).rjust(room), "text") for value in deciles(scene.window))
    where: Line = [("  by tenth  ", "dim")]
    where.extend((f"{10 * tenth} %".rjust(room), "dim") for tenth in range(TENTHS + 1))
    return [head, took, rates, where, growth]


def _rate(value: float | None) -> str:
    """Seldom is not never."""
    return "<0.01" if value and value < 0.005 else figures.decimal(value)


def _mebibytes(value: int | None) -> str:
    """Without separators: eleven of them stand in 80 cells."""
    return figures.UNKNOWN if value is None else f"{value / _MIB:.0f}"


def _life(scene: Scene, now: a.AllocatorState, width: int) -> list[Line]:
    """What only the engine's life knows: not of the past, and on lines of its own."""
    if scene.at is not None:
        return []
    lines: list[Line] = [rule("Since the start", width)]
    why = [f"{figures.count(count)} {reason}" for reason, count in now.bypassed.items() if count]
    for index, text in enumerate(why or ["nothing"]):
        lines.append([(left("  bypassed" if index == 0 else "", 12), "dim"), (shown.plain(text), "text")])
    overdue, missed = now.overdue, now.capture_misses
    faults: Line = [
        ("  outlived their step unannounced ", "dim"), (f"{overdue:,}", _fault(overdue)),
        ("   misses in captures ", "dim"), (f"{missed:,}", _fault(missed)),
    ]  # fmt: skip
    return [*lines, faults]


def _fault(count: int) -> Role:
    return "bad" if count else "text"


def _classes(now: a.AllocatorState, scene: Scene, width: int) -> list[Line]:
    """A bar for each size: what is in use, then what is free, by bytes."""
    if scene.at is not None or not now.classes:
        return []
    widest = max(each.size * (each.free + each.live) for each in now.classes)
    room = max(8, min(60, width - 44))
    lines: list[Line] = []
    for each in now.classes:
        total = each.size * (each.free + each.live)
        cells = max(1, round(room * total / widest))
        used = round(cells * each.live / (each.free + each.live))
        lines.append(
            [
                (figures.decimal(each.size / _MIB, 8).rjust(10), "text"), (" MiB  ", "dim"),
                ("█" * used, "fill"), ("▒" * (cells - used), "line"), (" " * (room - cells + 2), "text"),
                (f"{each.live:,}", "text"), (" in use  ", "dim"), (f"{each.free:,}", "text"), (" free", "dim"),
            ]
        )  # fmt: skip
    return [rule("Size classes", width), *lines]


def _first(lines: list[Line], most: int, width: int) -> list[Line]:
    """The lines that there is room for, the last of which counts what is left out."""
    if len(lines) <= most:
        return lines
    left_out = len(lines) - most + 1
    return [*lines[: most - 1], [(f"  {left_out} more sizes have no room here: x exports them", "dim")]]
