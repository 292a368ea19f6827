"""What an experiment leaves behind, as JSON and as text."""

from __future__ import annotations

from typing import Literal

import msgspec

from ...engine.control.protocol import NA, Value
from ...engine.flags import show
from .. import shown
from .metrics import METRICS
from .statistics import Estimate

FORMAT = 1

# What ended it. Only `decided`, `equal` and `time` are ends of the experiment itself.
End = Literal["decided", "equal", "time", "guard", "operator", "taken over", "engine", "connection"]


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block: an arm in force, and what was measured after its wash-out. Times are the engine's time.time()."""

    pair: int
    arm: int
    step: int  # the first step that ran with the value
    start: float
    end: float
    seconds: float  # measured, of the samples inside
    value: float | NA
    guards: dict[str, float | NA]


class Hurt(msgspec.Struct, frozen=True, kw_only=True):
    """A guard that was hurt: its ratios in the last pairs, as factors by which it was worse."""

    metric: str
    limit: float
    worse: tuple[float, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    flag: str
    values: tuple[Value, Value]  # the first arm is what ratios are relative to
    metric: str
    engine: str
    model: str
    version: str
    revision: str
    started: float  # the engine's time.time()
    seconds: float  # planned
    block: float
    washout: float
    pairs_planned: int
    alpha: float
    margin: float | None
    seed: int
    guards: dict[str, float]
    before: Value  # the flag's value before the experiment
    restored: bool | NA  # whether the engine was seen to have it again
    end: End
    why: str
    estimate: Estimate | None
    no_estimate: str = ""  # why there is none
    spoilt: dict[str, int]  # pairs that do not count: reason -> how many
    hurt: Hurt | None
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()


def verdict(report: Report) -> str:
    """One sentence."""
    found = report.estimate
    first, second = (f"{report.flag}={show(value)}" for value in report.values)
    if found is None:
        return f"no finding: {report.no_estimate}"
    metric = METRICS[report.metric]
    span = f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}, {100 * found.confidence:.1f} %)"
    said = f"{report.metric} with {second} is {span} of that with {first}"
    if report.end in ("guard", "operator", "taken over", "engine", "connection"):
        return f"stopped before its end, so nothing is decided: {said}"
    if found.decided:
        better = (found.ratio < 1) == (metric.better == "lower")
        return f"{second if better else first} is better: {said}"
    if report.end == "equal":
        return f"as good as equal, within {100 * (report.margin or 0):g} %: {said}"
    return f"undecided: {said}"


def lines(report: Report) -> list[str]:
    first, second = (show(value) for value in report.values)
    whole = report.pairs_planned
    counted = 0 if report.estimate is None else report.estimate.pairs
    text = [
        f"{report.flag}: {first} against {second} on {report.engine} ({shown.plain(report.model)}, "
        f"arc {report.version} {report.revision})",
        verdict(report),
        f"ended: {report.end}: {report.why}",
        f"{counted} of {whole} pairs counted; blocks of {report.block:g} s, {report.washout:g} s of each washed out",
    ]
    text += [f"{count} pairs left out: {why}" for why, count in report.spoilt.items()]
    if report.hurt is not None:
        worse = ", ".join(f"{each:.2f}x" for each in report.hurt.worse)
        text.append(
            f"guard {report.hurt.metric}: {worse} worse in the last pairs, {report.hurt.limit:g}x is the limit"
        )
    for arm, value in enumerate((first, second)):
        known = sorted(b.value for b in report.blocks if b.arm == arm and not isinstance(b.value, NA))
        if known:
            unit = METRICS[report.metric].unit
            middle = known[len(known) // 2]
            span = f"{known[0]:,.4g} .. {known[-1]:,.4g}"
            text.append(f"  {value:>12}: median block {middle:,.4g} {unit} ({span}) of {len(known)}")
    if report.restored is True:
        text.append(f"{report.flag} is {show(report.before)} again")
    elif isinstance(report.restored, NA):
        text.append(f"{report.flag} was {show(report.before)}: {report.restored.na}")
    else:
        text.append(
            f"{report.flag} was {show(report.before)} and is not again: `arc flags {report.flag}` shows it"
        )
    return [*text, *report.notes]
