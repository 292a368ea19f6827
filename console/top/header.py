"""The lines that never scroll away: who is looked at and how it is, the views, and what needs the operator now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile

from ...engine.control import protocol as p
from .. import shown
from . import figures
from .lines import Line, Piece, Role, clip, fit, spread, width_of
from .samples import Sample
from .scene import STALL, Scene

NO_TOKENS = 10.0  # seconds without a token while something runs: a long prompt alone may take some

_STATE: dict[str, tuple[str, Role]] = {
    "serving": ("● serving", "good"),
    "paused": ("◐ paused", "need"),
    "draining": ("◐ draining", "need"),
    "stalled": ("▲ stalled", "bad"),
}


def header(scene: Scene, width: int) -> Line:
    """Least important first to go: the end stays whole, the model's details give way."""
    hello, snapshot = scene.picture.hello, scene.picture.snapshot
    if scene.picture.page is not None:
        from . import page_header

        return page_header.header(scene, scene.picture.page, width)
    if hello is None:
        why = scene.picture.link.why
        return fit([(" arc  ", "here"), ("attaching", "text"), (f"  {why}" if why else "", "dim")], width)
    end: Line = [_state(scene)]
    if snapshot is not None:
        end.extend([(f" {shown.seconds(snapshot.uptime)}", "text")])
        end.append(("   " + hello.profile, "text"))
        if hello.profile != figures.UNKNOWN:
            end.append(_changed(len(snapshot.changed)))
        end.extend([("   step ", "dim"), (f"{_step_age(scene):>6}", "text"), (" ago", "dim")])
    if width >= 150:
        end.append((f"   {hello.revision}", "dim"))
    end.extend(_proof(snapshot, width))
    if scene.session.recording:
        end.append(("   ● rec", "bad" if scene.session.trouble else "need"))
    if scene.session.demo is not None:
        end.append(("   demo load", "need"))
    role = "replay" if scene.session.replaying else hello.role
    if role != "operator":
        end.append((f"   {role} ", "need"))
    elif width >= 100 or not (scene.session.recording or scene.session.demo is not None):
        end.append((f"   {role} ", "dim"))
    else:
        end.append((" ", "text"))
    start: Line = [(" arc ", "here"), (f" {shown.plain(hello.name)}", "text")]
    start.extend([(f"  {shown.plain(hello.model)}", "text")])
    details = f" · {hello.model_type} · {hello.device} {hello.dtype}".replace(f" · {figures.UNKNOWN}", "")
    if width_of(start) + len(details) + width_of(end) + 2 <= width:
        start.append((details, "dim"))
    return spread(start, [("  ", "text"), *end], width)


def _state(scene: Scene) -> Piece:
    if scene.session.replaying:
        return ("◀ replaying", "need")
    if scene.stale:
        return ("○ gone", "bad")
    snapshot = scene.picture.snapshot
    if snapshot is None:
        return ("◌ attached", "dim")
    return _STATE[snapshot.state]


def _proof(snapshot: p.Snapshot | None, width: int) -> Line:
    """Of the instruments: where there is room, and at any width when they are not to be trusted."""
    instruments = snapshot.instruments if snapshot is not None else None
    if instruments is not None and instruments.verdict == "fail":
        return [("   ▲ proof FAIL", "bad")]
    if width < 150:
        return []
    if instruments is None:
        return [("   proof NA", "dim")]
    if not instruments.spans:
        return [("   spans off", "dim")]
    return [("   proof ok" if instruments.verdict == "pass" else "   proof --", "dim")]


def _changed(count: int) -> Piece:
    return (f" +{count}", "need") if count else (" +0", "dim")


def _step_age(scene: Scene) -> str:
    snapshot = scene.picture.snapshot
    if snapshot is None or snapshot.step_age is None:
        return figures.UNKNOWN
    return shown.seconds(snapshot.step_age + silence(scene))


def silence(scene: Scene) -> float:
    """Seconds beyond what is usual since the engine was last heard; 0 while it speaks."""
    heard = scene.picture.link.heard
    since = scene.now - heard if heard is not None else 0.0
    return since if since > 1.0 else 0.0


def tabs(names: list[tuple[str, str]], current: int, scene: Scene, hz: float, width: int) -> Line:
    """`names` are the full and the short name of each view."""
    line: Line = [(" ", "text")]
    short = width < 100
    for index, (full, brief) in enumerate(names):
        here = index == current
        text = f"{index + 1} {brief if short and not here else full}"
        line.append((f"[{text}]" if here else f" {text} ", "here" if here else "dim"))
    end: Line = [
        _mode(scene, hz),
        (f"  {_window(scene)}" + ("" if short else " window"), "dim"),
        ("  ? help ", "dim"),
    ]
    if width_of(line) + width_of(end) > width:
        del end[-1]
    return spread(line, end, width)


def _window(scene: Scene) -> str:
    """Its length, and how much of it there are numbers of: a page has no history from before the console came."""
    seconds = scene.totals.seconds
    seen = f"{seconds:.0f} of " if scene.picture.page and seconds < 0.95 * scene.span else ""
    return seen + figures.span(scene.span)


def tab_at(names: list[tuple[str, str]], current: int, width: int, x: int) -> int | None:
    """The view whose tab is at column `x`."""
    start = 1
    for index, (full, brief) in enumerate(names):
        length = len(f"{index + 1} {brief if width < 100 and index != current else full}") + 2
        if start <= x < start + length:
            return index
        start += length
    return None


def _mode(scene: Scene, hz: float) -> Piece:
    replaying = scene.session.replaying
    if replaying:
        how = f"▶ {replaying.speed:g}x" if replaying.playing else "‖ paused"
        return (f"{how}  {shown.clock(replaying.moment)}  {100 * replaying.share:.0f} %", "need")
    if scene.at is not None:
        return (f"◀ {shown.seconds(max(0.0, scene.now - scene.at))} ago", "need")
    if scene.frozen:
        return ("◌ frozen", "need")
    return (f"live {hz:g} Hz" if hz else "once", "dim")


def alarms(scene: Scene) -> list[Line]:
    """What is wrong, loud, worst first. Empty most of the time."""
    picture = scene.picture
    link, snapshot = picture.link, picture.snapshot
    found: list[Line] = []
    session = scene.session
    if session.replaying and session.replaying.cut:
        replaying = session.replaying
        found.append(
            [
                (" ▲ THE FILE IS NOT WHOLE ", "need"),
                (f"  up to {shown.clock(replaying.end)}; {shown.plain(replaying.cut)}", "text"),
            ]
        )
    if session.trouble:
        found.append(
            [
                (" ▲ RECORDING STOPPED ", "bad"),
                (f"  {shown.plain(session.trouble)}; what was written is whole", "text"),
            ]
        )
    if link.state == "lost":
        why, kept = shown.plain(link.why), "last picture kept, looking for it again"
        rest = f"  {why}   {kept}" if picture.page is not None else f"  {kept}   {why}"
        found.append([(f" ○ engine gone since {shown.clock(link.since)} ", "bad"), (rest, "text")])
        return found
    if picture.page is not None:
        if (trouble := _page_trouble(scene)) is not None:
            found.append(trouble)
        return [*found, *_restarted(scene)]
    if snapshot is None:
        return found
    quiet = silence(scene)
    if quiet >= STALL:
        text = f" ▲ NO WORD from the engine for {shown.seconds(quiet)} "
        found.append([(text, "bad"), ("  its control thread does not answer", "text")])
    elif (stalled := _no_step(scene, snapshot)) is not None:
        found.append(stalled)
    elif (wedged := _nothing_runs(snapshot)) is not None:
        found.append(wedged)
    if snapshot.instruments is not None and snapshot.instruments.verdict == "fail":
        text = shown.plain(snapshot.instruments.text)
        found.append([(" ▲ DO NOT TRUST THE SPANS ", "bad"), (f"  {text}", "text")])
    return [*found, *_restarted(scene)]


def _restarted(scene: Scene) -> list[Line]:
    restarted = scene.picture.link.restarted
    if restarted is None or scene.now - restarted >= 60:
        return []
    return [[(f" ▲ RESTARTED {shown.clock(restarted)} ", "need"), ("  counters began anew", "text")]]


def _page_trouble(scene: Scene) -> Line | None:
    """What a page can tell of trouble: that it does not come, that no token does, or that nothing runs."""
    quiet = silence(scene)
    if quiet >= STALL:
        text = f" ▲ NO WORD from the engine for {shown.seconds(quiet)} "
        return [(text, "bad"), ("  its metrics page does not answer", "text")]
    gauges, page = scene.gauges, scene.picture.page
    if gauges is None or page is None or not scene.window:
        return None
    if gauges.running:
        idle = _lasting(scene, lambda each: each.generation_tokens == 0 and each.prompt_tokens == 0)
        if page.reading.live_tokens and idle >= NO_TOKENS:
            text = f" ▲ NO TOKENS for {shown.seconds(idle)} "
            waits = figures.count(gauges.waiting)
            return [(text, "bad"), (f"  {figures.count(gauges.running)} running, {waits} waiting", "text")]
    elif gauges.running == 0 and gauges.waiting:
        idle = _lasting(scene, lambda each: each.running == 0 and bool(each.waiting))
        if idle >= STALL:
            reasons = f": {waiting(gauges.reasons)}" if gauges.reasons else ""
            text = f" ▲ NOTHING RUNS, {figures.count(gauges.waiting)} wait{shown.plain(reasons)} "
            return [(text, "bad"), (f"  for {shown.seconds(idle)}", "text")]
    return None


def _lasting(scene: Scene, holds: Callable[[Sample], bool]) -> float:
    """For how many seconds up to now, as far as the window goes."""
    return sum(sample.seconds for sample in takewhile(holds, reversed(scene.window)))


def _no_step(scene: Scene, snapshot: p.Snapshot) -> Line | None:
    """A step that lasts far longer than its like: five times the window's mean, and STALL at the least."""
    mean = scene.totals.per_step(scene.totals.step_seconds) or 0.0
    patience = max(STALL, 5 * mean)
    if snapshot.step_open is not None and snapshot.step_open > patience:
        lasting, what = snapshot.step_open, f"open span: {_open_span(snapshot)}"
    elif snapshot.running and snapshot.step_age is not None and snapshot.step_age > patience:
        lasting, what = snapshot.step_age, "no step is open"
    else:
        return None
    return [
        (f" ▲ NO STEP for {shown.seconds(lasting)} ", "bad"),
        (f"  {what}   {snapshot.running} running, {snapshot.waiting} waiting", "text"),
    ]


def _open_span(snapshot: p.Snapshot) -> str:
    instruments = snapshot.instruments
    if instruments is None:
        return "NA, this engine has no span instrument"
    span = instruments.open_span
    return f"NA, {span.na}" if isinstance(span, p.NA) else shown.plain(span)


def _nothing_runs(snapshot: p.Snapshot) -> Line | None:
    """A wedge: work waits, nothing is admitted, and nobody asked for that."""
    idle = snapshot.step_age if snapshot.step_age is not None else snapshot.uptime
    if snapshot.running or not snapshot.waiting or snapshot.state == "paused" or idle < STALL:
        return None
    pages = snapshot.pages
    reasons = waiting(snapshot.waiting_by_reason)
    return [
        (f" ▲ NOTHING RUNS, {snapshot.waiting} wait: {reasons} ", "bad"),
        (f"  pages held by prefix cache {pages.cached}, by running {pages.used}, free {pages.free}", "text"),
        ("  → report `arc dump`", "dim"),
    ]


def waiting(reasons: Mapping[str, int]) -> str:
    """5 running cap · 2 no pages"""
    return " · ".join(f"{count} {reason}" for reason, count in reasons.items() if count)


def footer(hints: list[tuple[str, str]], note: Line, width: int) -> Line:
    """What the keys do, whole hints only, and at the right what the view has to say of itself."""
    room = width - width_of(note) - 2
    line: Line = [(" ", "text")]
    used = 1
    for key, what in hints:
        length = len(key) + len(what) + 3
        if used + length > room:
            break
        line.extend([(key, "here"), (f" {clip(what, 30)}  ", "dim")])
        used += length
    return spread(line, [*note, (" ", "text")] if note else [], width)
