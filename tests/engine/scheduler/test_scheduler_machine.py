"""Everything at once, at random: nothing may be lost or corrupted, and everything comes to an end."""

from __future__ import annotations

from arc.engine.scheduler import pressure
from arc.engine.scheduler.types import Step
from arc.engine.sequence import Status
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .toy_engine import ToyEngine

STEMS = [[stem * 10 + i % 7 for i in range(40)] for stem in range(3)]


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals with shared prefixes, cancels in every state, faults, and every flag turned while work is
    under way.
    """

    @initialize(
        size=st.tuples(st.integers(6, 30), st.integers(1, 4)),
        prefix=st.booleans(),
        horizon=st.sampled_from([1, 4, 16]),
        depth=st.integers(0, 4),
        right=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        first=st.lists(
            st.tuples(st.integers(0, 2), st.integers(1, 12), st.integers(20, 60)), min_size=3, max_size=8
        ),
    )
    def start(self, size, prefix, horizon, depth, right, first) -> None:
        self.horizon = pressure.HORIZON
        pressure.HORIZON = horizon
        self.engine = ToyEngine(
            *size, max_running=5, max_step_tokens=9, prefill_chunk=4, prefix_cache=prefix, spec_depth=depth
        )
        self.engine.model.right = right
        self.open: Step | None = None
        for stem, cut, max_tokens in first:
            self.engine.add(STEMS[stem][:cut], max_tokens)

    @rule(
        stem=st.integers(0, 2),
        cut=st.integers(1, 40),
        tail=st.lists(st.integers(0, 3), max_size=3),
        terms=st.tuples(st.integers(1, 60), st.integers(-1, 1), st.booleans()),
    )
    def arrive(self, stem, cut, tail, terms) -> None:
        max_tokens, priority, ignore_eos = terms
        self.engine.add(STEMS[stem][:cut] + tail, max_tokens, priority, ignore_eos)

    @rule(stem=st.integers(0, 2), cut=st.integers(1, 12), copies=st.integers(2, 5))
    def arrive_together(self, stem, cut, copies) -> None:
        for _ in range(copies):
            self.engine.add(STEMS[stem][:cut], 6)

    @precondition(lambda self: self.open is None)
    @rule()
    def form(self) -> None:
        self.open = self.engine.form()

    @precondition(lambda self: self.open is not None)
    @rule()
    def commit(self) -> None:
        assert self.open is not None
        self.engine.commit(self.open)
        self.open = None

    @precondition(lambda self: self.open is not None and self.open.rows)
    @rule(data=st.data())
    def commit_without_faulty_rows(self, data) -> None:
        assert self.open is not None
        self.engine.commit(self.open, data.draw(st.integers(1, len(self.open.rows))))
        self.open = None

    @precondition(lambda self: self.open is not None)
    @rule()
    def fault(self) -> None:
        assert self.open is not None
        self.engine.fault(self.open)
        self.open = None

    @precondition(lambda self: self.open is not None)
    @rule()
    def abort_and_go_on(self) -> None:
        assert self.open is not None
        self.engine.model.fail(self.open)
        self.engine.scheduler.abort(self.open)
        self.open = None

    @precondition(lambda self: self.open is None)
    @rule(steps=st.integers(5, 40))
    def run_on(self, steps) -> None:
        for _ in range(steps):
            if self.engine.step() is None:
                break

    @precondition(lambda self: self.open is None and self.engine.live)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        """Between steps; during one, the core holds cancels back to the border."""
        number = data.draw(st.sampled_from(sorted(self.engine.live)))
        self.engine.cancel(self.engine.live[number])

    @precondition(lambda self: self.open is None)
    @rule()
    def cancel_all(self) -> None:
        for seq in list(self.engine.live.values()):
            self.engine.cancel(seq)
        assert self.engine.scheduler.waiting_by_reason() == {}
        assert self.engine.pages.used == 0

    @precondition(lambda self: self.open is None)
    @rule(
        flags=st.fixed_dictionaries(
            {},
            optional={
                "max_running": st.integers(1, 8),
                "max_step_tokens": st.integers(2, 20),
                "prefill_chunk": st.integers(1, 9),
                "order": st.sampled_from(["fcfs", "prefix", "priority"]),
                "paused": st.booleans(),
                "admission": st.sampled_from(["ragged", "bucketed"]),
                "bucket_losers": st.sampled_from(["wait", "preempt"]),
                "prefix_cache": st.booleans(),
                "spec_depth": st.integers(0, 4),
                "page_cap": st.none() | st.integers(1, 40),
            },
        )
    )
    def turn_flags(self, flags) -> None:
        self.engine.configure(**flags)

    @rule()
    def flush(self) -> None:
        self.engine.pages.flush()
        assert self.engine.pages.cached == 0

    @invariant()
    def accounted(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            try:
                self.finish()
            finally:
                pressure.HORIZON = self.horizon

    def finish(self) -> None:
        engine = self.engine
        if self.open is not None:
            engine.commit(self.open)
        engine.configure(paused=False)
        engine.run(self.bound())
        assert not engine.live
        assert all(seq.status is Status.FINISHED or seq.finish for seq in engine.sequences)
        assert engine.pages.used == 0

    def bound(self) -> int:
        """Far above what any schedule needs and far below for ever: each token alone in a step, and again
        after each preemption, of which no sequence has more than one for each token that others generate.
        """
        tokens = sum(len(seq.tokens) + seq.request.params.max_tokens for seq in self.engine.live.values())
        return 20 + tokens * (2 + len(self.engine.live))


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
