"""What was recorded, as messages."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from ..control.protocol import NA, Detail, Verdict
from ..control.span_messages import (
    Build,
    KindSpans,
    Law,
    Marginal,
    Proof,
    SelfTest,
    SpanReport,
    SpanRow,
    Trace,
    TraceStep,
)
from . import fold
from .device import SelfTested
from .fold import Part
from .law import Rows
from .recording import Kept, Recording
from .sites import KINDS, Role
from .tree import ROOT
from .window import Window

DETAILS: tuple[Detail, ...] = ("step", "layer", "op")  # by sites.Detail
_NO_HOST_SYNC = "the host does not wait for itself"
_HOST_SPAN = "a span of the host alone: it launches nothing"
_NOT_READ = "of none of these steps all device events could be read"
_DECODE = KINDS.index("decode")


def spans(
    recording: Recording,
    window: Window,
    build: Build,
    *,
    on: bool,
    channel: NA | None,
    not_timed: Mapping[str, str],
    failure: str | None,
) -> SpanReport:
    part = window.part
    law = _law(recording, part)
    return SpanReport(
        build=build,
        on=on,
        detail=DETAILS[recording.detail],
        seconds=window.seconds,
        kinds=tuple(
            _kind(recording, part, kind, channel) for kind in range(len(KINDS)) if part.kinds[0, kind]
        ),
        law=None if isinstance(law, NA) else law,
        no_law=law if isinstance(law, NA) else None,
        proof=proof(part, recording.tested, channel, failure),
        own=part.own,
        not_timed=dict(not_timed),
    )


def _kind(recording: Recording, part: Part, kind: int, channel: NA | None) -> KindSpans:
    sums, tree = part.kinds[:, kind], recording.tree
    timed = _device_names(recording)
    rows: list[SpanRow] = []
    for node in tree.in_order():
        if node >= part.spans.shape[2] or not part.spans[fold.CALLS, kind, node]:
            continue
        row = part.spans[:, kind, node]
        device: float | NA
        if channel is not None:
            device = channel
        elif tree.names[node] not in timed:
            device = NA(_HOST_SPAN)
        else:
            device = float(row[fold.DEVICE]) if sums[fold.DEVICE_STEPS] else NA(_NOT_READ)
        rows.append(
            SpanRow(
                path=tree.path(node),
                name=tree.names[node],
                depth=tree.depth(node),
                calls=int(row[fold.CALLS]),
                wall=float(row[fold.WALL]),
                host_self=float(row[fold.SELF]),
                sync=float(row[fold.SYNC]) if channel is None else NA(f"{channel.na}: {_NO_HOST_SYNC}"),
                device=device,
            )
        )
    return KindSpans(
        kind=KINDS[kind],
        steps=int(sums[fold.STEPS]),
        rows=int(sums[fold.ROWS]),
        tokens=int(sums[fold.TOKENS]),
        device_steps=int(sums[fold.DEVICE_STEPS]),
        spans=tuple(rows),
    )


def _device_names(recording: Recording) -> set[str]:
    names = {site.name for site in recording.sites if site.device}
    if any(site.device and site.role is Role.KIND for site in recording.sites):
        names |= set(KINDS)
    return names


def _law(recording: Recording, part: Part) -> Law | NA:
    sums = part.kinds[:, _DECODE]
    shared = Rows(float(sums[fold.STEPS]), float(sums[fold.ROWS]), float(sums[fold.ROWS_ROWS]))
    why = shared.why_not
    if why is not None:
        return NA(why)
    tree = recording.tree
    marginals: list[Marginal] = []
    for node in tree.in_order():
        if node < part.spans.shape[2] and part.spans[fold.CALLS, _DECODE, node]:
            line = shared.line(*_walls(part, node))
            marginals.append(
                Marginal(path=tree.path(node), per_row=line.per_row, per_row_error=line.per_row_error)
            )
    step = shared.line(*_walls(part, ROOT))
    if (absurd := step.absurd) is not None:
        return NA(absurd)
    return Law(
        steps=int(shared.steps),
        rows=shared.mean,
        base=step.base,
        base_error=step.base_error,
        per_row=step.per_row,
        per_row_error=step.per_row_error,
        r2=step.r2,
        spans=tuple(marginals),
    )


def _walls(part: Part, node: int) -> tuple[float, float, float]:
    row = part.spans[:, _DECODE, node]
    return float(row[fold.WALL]), float(row[fold.ROWS_WALL]), float(row[fold.WALL_WALL])


def proof(part: Part, tested: SelfTested | None, channel: NA | None, failure: str | None) -> Proof:
    failures: list[str] = [] if failure is None else [failure]
    if tested is not None and not tested.passed:
        failures.append(
            f"self-test: a kernel of {tested.known * 1e3:.1f} ms read {tested.execution * 1e3:.3f} ms, "
            f"{tested.ratio:.1f} times an empty launch"
        )
    for count, what in (
        (part.misnested, "misnested spans"),
        (part.lost, "calls lost for want of room"),
        (part.unresolved, "device spans without a time"),
    ):
        if count:
            failures.append(f"{count:,} {what}")
    failures += [f"{count:,} x {name}" for name, count in part.violations.items()]
    verdict: Verdict = "fail" if failures else "pass" if part.kinds[fold.STEPS].any() else "none"
    return Proof(
        verdict=verdict,
        failures=tuple(failures),
        self_test=None if tested is None else _self_test(tested),
        no_self_test=channel if tested is None else None,
        unresolved_device_spans=part.unresolved if channel is None else channel,
        misnested_spans=part.misnested,
        lost_spans=part.lost,
        violations=dict(part.violations),
    )


def _self_test(tested: SelfTested) -> SelfTest:
    return SelfTest(
        known=tested.known,
        execution=tested.execution,
        launch=tested.launch,
        ratio=tested.ratio,
        passed=tested.passed,
    )


def in_words(given: Proof) -> str:
    if given.verdict == "none":
        return "no step yet"
    return "pass" if given.verdict == "pass" else "FAIL: " + "; ".join(given.failures)


def seconds(recording: Recording, channel: NA | None) -> dict[tuple[str, str], float]:
    """Path and channel -> seconds of all steps of the recording. A channel that is NA is left out, not 0."""
    found: dict[tuple[str, str], float] = {}
    part, tree, timed = recording.total, recording.tree, _device_names(recording)
    for node in range(part.spans.shape[2]):
        sums, path = part.spans[:, :, node].sum(axis=1), tree.path(node)
        found[path, "wall"] = float(sums[fold.WALL])
        found[path, "host_self"] = float(sums[fold.SELF])
        if channel is None:
            found[path, "sync"] = float(sums[fold.SYNC])
            if tree.names[node] in timed:
                found[path, "device"] = float(sums[fold.DEVICE])
    return found


def trace(
    recording: Recording,
    build: Build,
    seconds: float,
    *,
    now: int,
    on: bool,
    channel: NA | None,
    failure: str | None,
) -> Trace:
    kept = list(recording.kept.copy())
    since = now - round(seconds * 1e9)
    chosen = [
        (each, mark) for each in kept for mark in each.block.steps if each.block.began[mark.start] >= since
    ]
    cut = bool(chosen) and chosen[0][0] is kept[0] and chosen[0][1] is kept[0].block.steps[0]
    zero = int(chosen[0][0].block.began[chosen[0][1].start]) if chosen else now
    steps: list[TraceStep] = []
    path: list[int] = []
    start: list[int] = []
    wall: list[int] = []
    device_start: list[int | None] = []
    device_wall: list[int | None] = []
    for each, mark in chosen:
        block = each.block
        order = np.argsort(block.began[mark.start : mark.end], kind="stable") + mark.start
        facts = mark.facts
        steps.append(TraceStep(facts.number, facts.kind, facts.rows, facts.tokens, len(path), len(order)))
        path += block.node[order].tolist()
        start += (block.began[order] - zero).tolist()
        wall += (block.ended - block.began)[order].tolist()
        if channel is None:
            device_start += _known(each, order, zero, began=True)
            device_wall += _known(each, order, zero, began=False)
    ended = max((b + w for b, w in zip(start, wall, strict=True)), default=0)
    return Trace(
        build=build,
        on=on,
        detail=DETAILS[recording.detail],
        began=time.time() - (now - zero) * 1e-9,
        seconds=ended * 1e-9,
        cut=cut and recording.dropped,
        paths=tuple(recording.tree.path(node) for node in range(len(recording.tree))),
        steps=tuple(steps),
        path=path,
        start=start,
        wall=wall,
        device_start=device_start if channel is None else channel,
        device_wall=device_wall if channel is None else channel,
        proof=proof(recording.total, recording.tested, channel, failure),
    )


def _known(each: Kept, order: np.ndarray, zero: int, *, began: bool) -> list[int | None]:
    if each.times is None:
        return [None] * len(order)
    values = each.times.began[order] - zero if began else each.times.wall[order]
    return [None if np.isnan(value) else round(value) for value in values.tolist()]
