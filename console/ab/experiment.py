"""Runs one experiment on an engine's live traffic and leaves the flag as it was, whatever happens.

Every block's value is a change limited in time: a console that is killed or cut off leaves an engine that goes back by
itself, at the latest a block and GRACE seconds later. Orderly ends give the value back at once.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ...engine.control import protocol as p
from ...engine.control.protocol import NA, Value
from ...engine.flags import show
from ..client import Client, NoEngine, Refused
from ..exits import Failure
from ..held_flags import HeldFlags, TakenOver, flags_of
from .metrics import Metric, Window, inside
from .plan import Guard, Plan
from .report import Block, End, Hurt, Report
from .statistics import LEAST_PAIRS, Estimate, estimate, log_ratio, looks, spent

GRACE = 10.0  # seconds that the engine waits past a block's end before it takes the value back
GUARD_PAIRS = 2  # pairs in a row in which a guard is past its limit
_POLL = 0.5  # seconds between looks at the engine inside a block
_SAMPLE_WAIT = 0.15  # seconds: the history's sample of a moment is there a tick of 0.1 s after it
_FINE = 50.0  # seconds: the history keeps samples of 0.1 s for a minute


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an experiment stands, for those who watch."""

    plan: Plan
    pair: int  # under way, from 0
    arm: int  # in force; -1 before the first
    seconds_left: float
    blocks: tuple[Block, ...]
    estimate: Estimate | None  # as of the last look
    look: int | None  # the next look comes after so many pairs
    spoilt: int
    report: Report | None = None  # set once, at the end


class _Stopped(Exception):
    def __init__(self, end: End, why: str) -> None:
        super().__init__(why)
        self.end: End = end
        self.why = why


class Experiment:
    """`run` does it, in a thread of the caller's choice; `stop` may be called from any other."""

    def __init__(self, plan: Plan, path: Path, watch: Callable[[Progress], None] = lambda _: None) -> None:
        self._path = path
        self._plan = plan
        self._watch = watch
        self._halt = threading.Event()
        self._halted_by = ""
        self._reason = (
            f"arc ab {os.getpid()}-{time.monotonic_ns():x}"  # tells our changes from everybody else's
        )
        self._rng = random.Random(plan.seed)
        self._blocks: list[Block] = []
        self._logs: list[float] = []  # of the pairs that count
        self._guarded: dict[str, list[float]] = {guard.metric.name: [] for guard in plan.guards}
        self._spoilt: Counter[str] = Counter()
        self._spoils: list[str] = []  # what happened to the pair under way
        self._found: Estimate | None = None
        self._hurt: Hurt | None = None
        self._seen_event = 0
        self._began = 0.0
        self._progress = Progress(plan, 0, -1, plan.seconds, (), None, None, 0)

    def stop(self, why: str) -> None:
        self._halted_by = self._halted_by or why
        self._halt.set()

    def run(self) -> Report:
        """Raises Failure when the experiment cannot begin; nothing was changed then."""
        with Client(self._path) as client:
            hello = client.get("/v1/hello", p.Hello)
            before = self._checked(client)
            held = HeldFlags(self._path, self._reason, self._plan.block + GRACE)
            snapshot = client.get("/v1/snapshot", p.Snapshot, window=1.0)
            self._seen_event = snapshot.last_event
            end: End = "time"
            why = "all pairs were run"
            restored: bool | NA = NA("it was not tried")
            self._began = time.monotonic()
            try:
                end, why = self._all_pairs(client, held, before)
            except _Stopped as stopped:
                end, why = stopped.end, stopped.why
            except TakenOver as taken:
                end, why = "taken over", str(taken)
            except NoEngine as gone:
                end, why = "connection", str(gone)
            except Refused as refused:
                end, why = "engine", str(refused)
            finally:
                restored = self._restore(client, held, before)
        report = self._report(hello, snapshot.time, before, restored, end, why)
        self._tell(report=report)
        return report

    # -- before ---------------------------------------------------------------------------------------------------

    def _checked(self, client: Client) -> Value:
        """The flag's present value, once the engine has said that it would take both others."""
        flag = self._plan.flag
        before = flags_of(client).get(flag)
        typed: list[Value] = []
        for value in self._plan.values:
            patch = p.FlagsPatch(changes={flag: value}, dry_run=True)
            typed.append(client.patch("/v1/flags", patch, p.Applied).changes[flag].new)
        if typed[0] == typed[1]:
            raise Failure(f"both values of {flag} are {show(typed[0])}")
        assert before is not None, "the engine took the flag's values, so it has the flag"
        self._plan = replace(self._plan, values=(typed[0], typed[1]))
        return before.value

    # -- the experiment -------------------------------------------------------------------------------------------

    def _all_pairs(self, client: Client, held: HeldFlags, before: Value) -> tuple[End, str]:
        plan = self._plan
        spending = spent(plan.alpha, plan.pairs)
        for pair, order in enumerate(plan.orders()):
            self._spoils = []
            blocks = [self._block(client, held, pair, arm) for arm in order]
            self._blocks += blocks
            self._count(sorted(blocks, key=lambda block: block.arm))
            self._guard(blocks, int(before == plan.values[1]))
            alpha = spending.get(pair + 1)
            enough = 2 if pair + 1 == plan.pairs else LEAST_PAIRS  # spoilt pairs may have left fewer
            if alpha is not None and len(self._logs) >= enough:
                self._found = estimate(self._logs, alpha, self._rng)
                if self._found.decided:
                    return "decided", f"the interval excludes 1 after {pair + 1} of {plan.pairs} pairs"
                if plan.margin is not None and self._found.within(plan.margin):
                    return "equal", f"the interval lies within {100 * plan.margin:g} % of 1"
        return "time", f"all {plan.pairs} pairs were run"

    def _block(self, client: Client, held: HeldFlags, pair: int, arm: int) -> Block:
        plan = self._plan
        self._tell(pair=pair, arm=arm)
        applied = held.change({plan.flag: plan.values[arm]})
        switched = client.get("/v1/snapshot", p.Snapshot, window=1.0).time
        began = time.monotonic()
        start, end = switched + plan.washout, switched + plan.block
        while (left := began + plan.block - time.monotonic()) > 0:
            self._pause(min(_POLL, left))
            self._look(client)
            self._tell()
        self._pause(_SAMPLE_WAIT)
        self._look(client)
        history = client.get(
            "/v1/history", p.History, since=start, step="0.1" if plan.block <= _FINE else "1"
        )
        window = inside(history.samples, history.bounds, start, end)
        if faults := window.total("faults"):
            raise _Stopped("guard", f"{faults:.0f} steps failed while {plan.shown(arm)} was in force")
        return Block(
            pair=pair,
            arm=arm,
            step=applied.step,
            start=start,
            end=end,
            seconds=window.seconds,
            value=_measured(plan.metric, window),
            guards={guard.metric.name: _measured(guard.metric, window) for guard in plan.guards},
        )

    def _pause(self, seconds: float) -> None:
        if self._halt.wait(seconds):
            raise _Stopped("operator", self._halted_by)

    def _look(self, client: Client) -> None:
        """What happened to the engine since the last look: anything that ends the experiment or spoils the pair."""
        snapshot = client.get("/v1/snapshot", p.Snapshot, window=1.0)
        if snapshot.state in ("draining", "stalled"):
            raise _Stopped("engine", f"the engine is {snapshot.state}")
        if snapshot.last_event == self._seen_event:
            return
        answer = client.get("/v1/events", p.Events, since=self._seen_event, limit=4096)
        self._seen_event = answer.last
        if answer.gap is not None:
            self._spoils.append(f"{answer.gap.dropped} events were lost: flags may have changed unseen")
        for event in answer.events:
            self._judge(event)

    def _judge(self, event: p.Event) -> None:
        changes = event.data.get("changes")
        if not isinstance(changes, dict) or event.data.get("reason") == self._reason:
            return
        if self._plan.flag not in changes:
            self._spoils.append(f"{', '.join(changes)} changed in it")
        elif (
            event.kind == "reverted"
        ):  # no renewal came in time: this process stood still, or its connection did
            self._spoils.append("the engine took the value back in it: this console stood still for too long")
        else:
            now = changes[self._plan.flag].get("new")
            raise TakenOver(self._plan.flag, now, f"uid {event.uid} pid {event.pid}")

    def _count(self, pair: list[Block]) -> None:
        """`pair`: the block of the first arm, then that of the second."""
        first, second = (block.value for block in pair)
        for value in (first, second):
            if isinstance(value, NA):
                self._spoils.append(value.na)
        if self._spoils or isinstance(first, NA) or isinstance(second, NA):
            self._spoilt[self._spoils[0]] += 1
        else:
            self._logs.append(log_ratio(first, second))

    def _guard(self, blocks: list[Block], baseline: int) -> None:
        """Stop when a guard was past its limit in each of the last pairs, relative to the value from before."""
        by_arm = {block.arm: block for block in blocks}
        for guard in self._plan.guards:
            name = guard.metric.name
            usual, tried = by_arm[baseline].guards[name], by_arm[1 - baseline].guards[name]
            if self._spoils or isinstance(usual, NA) or isinstance(tried, NA):
                continue
            worse = self._guarded[name]
            worse.append(guard.metric.worsened(tried / usual))
            last = tuple(worse[-GUARD_PAIRS:])
            if len(last) == GUARD_PAIRS and min(last) > guard.limit:
                self._hurt = Hurt(metric=name, limit=guard.limit, worse=last)
                raise _Stopped("guard", f"{name} is hurt by {self._plan.shown(1 - baseline)}")

    # -- after ----------------------------------------------------------------------------------------------------

    def _restore(self, client: Client, held: HeldFlags, before: Value) -> bool | NA:
        """Whether the flag has its old value again. Somebody else's change is left alone, and is no failure."""
        by_itself = (
            f"the engine takes it back itself within {self._plan.block + GRACE:.0f} s of the last switch"
        )
        try:
            held.give_back()
            return flags_of(client)[self._plan.flag].value == before
        except NoEngine as gone:
            return NA(f"{gone}; if it runs, {by_itself}")
        except Failure as failure:
            return NA(f"{failure}; {by_itself}")

    def _report(
        self, hello: p.Hello, started: float, before: Value, restored: bool | NA, end: End, why: str
    ) -> Report:
        plan = self._plan
        found, none = None, ""
        if end in ("time", "decided", "equal") and self._found is not None:
            found = self._found
        elif len(self._logs) < 2:
            reasons = "; ".join(self._spoilt) or why
            none = f"{len(self._logs)} pairs count: {reasons}"
        else:  # stopped between two looks: judged at the level of the look that would have come
            ran = len(self._logs) + self._spoilt.total()
            next_look = next((look for look in looks(plan.pairs) if look > ran), plan.pairs)
            found = estimate(self._logs, spent(plan.alpha, plan.pairs)[next_look], self._rng)
        return Report(
            flag=plan.flag, values=plan.values, metric=plan.metric.name, engine=hello.name, model=hello.model,
            version=hello.version, revision=hello.revision, started=started, seconds=plan.seconds, block=plan.block,
            washout=plan.washout, pairs_planned=plan.pairs, alpha=plan.alpha, margin=plan.margin, seed=plan.seed,
            guards={guard.metric.name: guard.limit for guard in plan.guards}, before=before, restored=restored,
            end=end, why=why, estimate=found, no_estimate=none, spoilt=dict(self._spoilt), hurt=self._hurt,
            blocks=tuple(self._blocks),
        )  # fmt: skip

    def _tell(self, *, pair: int | None = None, arm: int | None = None, report: Report | None = None) -> None:
        plan, before = self._plan, self._progress
        ran = len(self._logs) + self._spoilt.total()
        self._progress = Progress(
            plan=plan,
            pair=before.pair if pair is None else pair,
            arm=before.arm if arm is None else arm,
            seconds_left=max(0.0, 2 * plan.pairs * plan.block - (time.monotonic() - self._began)),
            blocks=tuple(self._blocks),
            estimate=self._found,
            look=next((look for look in looks(plan.pairs) if look > ran), None),
            spoilt=self._spoilt.total(),
            report=report,
        )
        self._watch(self._progress)


def _measured(metric: Metric, window: Window) -> float | NA:
    """Zero is no measurement here: of a time or a rate it says that nothing happened."""
    if not window.samples:
        return NA("no sample of the history lies in the block")
    value = metric.value(window)
    return value if isinstance(value, NA) or value > 0 else NA("nothing happened in the block")


def default_guards(metric: Metric, guards: dict[str, Metric]) -> tuple[Guard, ...]:
    """What protects the traffic when nothing was said: first tokens and gaps, but for what is compared itself."""
    family = metric.name.partition("_")[0]
    return tuple(Guard(guards[name], 3.0) for name in ("ttft_p95", "itl_p95") if not name.startswith(family))
