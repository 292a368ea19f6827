"""Flag changes against a model of what an operator may expect of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from arc.engine.config import Refused, Settings, load
from arc.engine.control.changes import FlagChanges
from arc.engine.control.commands import Actor, SetFlags, StaleVersion
from arc.engine.control.events import EventLog
from arc.engine.flags import FLAGS, FlagError, FlagReason, Reach, Value
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

ME = Actor(uid=1000, gid=1000, pid=42, reason="a test")
RESERVED = 128
START = {"ARC_SCHED_PREFILL_CHUNK": "128", "ARC_SCHED_MAX_STEP_TOKENS": "1024"}


def envelope(changes: Mapping[str, Value]) -> dict[str, FlagError]:
    running = changes.get("sched.max_running")
    if isinstance(running, int) and running > RESERVED:
        error = FlagError(
            "sched.max_running", FlagReason.BOUNDS, f"{running} is past the {RESERVED} reserved"
        )
        return {"sched.max_running": error}
    return {}


class Engine:
    """Counts what was put in force, and can fail to."""

    def __init__(self) -> None:
        self.events = EventLog()
        self.in_force: list[Settings] = []
        self.fails = False
        base = load(folder=Path("/nonexistent"), environ=START)
        self.changes = FlagChanges(
            base, self.events, envelope=envelope, drains=lambda old, new: (), on_change=self._on_change
        )

    def _on_change(self, old: Settings, new: Settings) -> None:
        if self.fails:
            raise OSError("the scheduler will not have it")
        self.in_force.append(new)

    def set(self, now: float = 0.0, **more: object) -> object:
        return self.changes.apply(SetFlags(actor=ME, **more), step=7, now=now)  # pyright: ignore[reportArgumentType]

    def __getitem__(self, name: str) -> Value:
        return self.changes.settings[name]


# small numbers that often conflict: prefill_chunk and max_running must not exceed max_step_tokens
VALUES: dict[str, st.SearchStrategy[Value]] = {
    "sched.max_running": st.sampled_from([1, 8, 64, 128, 129, 4096]),
    "sched.max_step_tokens": st.sampled_from([4, 64, 1024, 2048]),
    "sched.prefill_chunk": st.sampled_from([1, 64, 256, 2048]),
    "sched.paused": st.booleans(),
    "sched.order": st.sampled_from(["fcfs", "prefix", "priority"]),
}
BAD: dict[str, st.SearchStrategy[Value]] = {
    "sched.max_running": st.sampled_from([0, -1, 10**30, "many", 1.5, True]),
    "sched.orders": st.just("fcfs"),
    "model.path": st.just("elsewhere"),
    "sched.paused": st.sampled_from(["1", "yes", 1]),
}
SOME = st.dictionaries(st.sampled_from(sorted(VALUES)), st.none(), min_size=1, max_size=3)


class Changes(RuleBasedStateMachine):
    """The model: permanent runtime values, and over them time-limited ones. What is in effect is derived."""

    @initialize()
    def begin(self) -> None:
        self.engine = Engine()
        self.start = self.engine.changes.settings
        self.permanent: dict[str, Value] = {}
        self.limited: dict[str, tuple[Value, float]] = {}
        self.now = 0.0
        self.version = 0
        self.stuck: set[str] = set()  # whose end was refused since the last accepted change

    def effective(
        self, permanent: dict[str, Value], limited: dict[str, tuple[Value, float]]
    ) -> dict[str, Value]:
        values = self.start.values() | permanent
        return values | {name: value for name, (value, _) in limited.items()}

    def valid(self, values: dict[str, Value]) -> bool:
        tokens, chunk, running = (
            values[f"sched.{name}"] for name in ("max_step_tokens", "prefill_chunk", "max_running")
        )
        assert isinstance(tokens, int) and isinstance(chunk, int) and isinstance(running, int)
        return chunk <= tokens and running <= tokens

    @rule(data=st.data(), names=SOME, ttl=st.none() | st.sampled_from([1.0, 3.0, 10.0]), dry=st.booleans())
    def change(self, data: st.DataObject, names: dict[str, None], ttl: float | None, dry: bool) -> None:
        changes = {name: data.draw(VALUES[name], label=name) for name in names}
        permanent, limited = dict(self.permanent), dict(self.limited)
        for name, value in changes.items():
            limited.pop(name, None)
            if ttl is None:
                permanent[name] = value
            else:
                limited[name] = (value, self.now + ttl)
        running = changes.get("sched.max_running", 1)
        assert isinstance(running, int)
        allowed = self.valid(self.effective(permanent, limited)) and running <= RESERVED
        before = self.engine.changes.settings
        try:
            self.engine.set(self.now, changes=changes, ttl=ttl, dry_run=dry)
        except Refused as refused:
            assert not allowed
            assert {error.flag for error in refused.errors} <= set(changes)
            assert self.engine.changes.settings is before
            return
        assert allowed
        if dry:
            assert self.engine.changes.settings is before
            return
        self.permanent, self.limited = permanent, limited
        self.version += 1
        self.stuck.clear()

    @rule(data=st.data(), bad=st.sampled_from(sorted(BAD)), names=SOME)
    def bad_change(self, data: st.DataObject, bad: str, names: dict[str, None]) -> None:
        """One bad key among good ones: nothing of it is applied, and it is named."""
        changes = {name: data.draw(VALUES[name]) for name in names} | {bad: data.draw(BAD[bad])}
        before = self.engine.changes.settings
        with pytest.raises(Refused) as caught:
            self.engine.set(self.now, changes=changes)
        assert bad in {error.flag for error in caught.value.errors}
        assert self.engine.changes.settings is before

    @rule(names=SOME)
    def unset(self, names: dict[str, None]) -> None:
        permanent = {name: value for name, value in self.permanent.items() if name not in names}
        limited = {name: each for name, each in self.limited.items() if name not in names}
        before = self.engine.changes.settings
        try:
            self.engine.set(self.now, unset=tuple(names))
        except Refused:
            assert not self.valid(self.effective(permanent, limited))
            assert self.engine.changes.settings is before
            return
        assert self.valid(self.effective(permanent, limited))
        if (permanent, limited) != (self.permanent, self.limited):
            self.version += 1
            self.stuck.clear()
        self.permanent, self.limited = permanent, limited

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = {name for name, (_, end) in self.limited.items() if end <= self.now and name not in self.stuck}
        events = self.engine.events.last
        self.engine.changes.expire(step=9, now=self.now)
        _, said = self.engine.events.since(events)
        stayed = {event.data["flag"] for event in said if event.kind == "revert refused"}
        assert stayed <= due
        went = due - stayed
        assert self.engine.changes.settings.version == self.version + bool(went)
        self.version += bool(went)
        for name in went:
            del self.limited[name]
        self.stuck -= set() if not went else self.stuck
        self.stuck |= stayed if not went else set()
        if stayed and not went:
            # Nothing could go back: then indeed none of the due ones alone may.
            for name in stayed:
                limited = {other: each for other, each in self.limited.items() if other != name}
                values = self.effective(self.permanent, limited)
                assert not self.valid(values) or len(stayed) > 1

    @rule(off=st.integers(1, 5))
    def stale(self, off: int) -> None:
        with pytest.raises(StaleVersion):
            self.engine.set(self.now, changes={"sched.paused": True}, expect_version=self.version + off)

    @precondition(lambda self: not self.engine.fails)
    @rule()
    def engine_fails(self) -> None:
        """What cannot be put in force is not in force."""
        before = self.engine.changes.settings
        pending = self.engine.changes.pending
        self.engine.fails = True
        with pytest.raises(OSError):
            self.engine.set(self.now, changes={"sched.order": "prefix"})
        self.engine.fails = False
        assert self.engine.changes.settings is before
        assert self.engine.changes.pending == pending

    @invariant()
    def as_the_model_says(self) -> None:
        if not hasattr(self, "engine"):
            return
        changes = self.engine.changes
        assert changes.settings.values() == self.effective(self.permanent, self.limited)
        assert self.valid(changes.settings.values())
        assert changes.settings.version == self.version
        below = self.start.values() | self.permanent
        assert {each.flag: each.back_to for each in changes.pending} == {
            name: below[name] for name in self.limited
        }
        ends = [end for name, (_, end) in self.limited.items() if name not in self.stuck]
        assert changes.next_deadline == min(ends, default=None)
        if self.version:
            assert self.engine.in_force[-1] is changes.settings
        assert len(self.engine.in_force) == self.version


Changes.TestCase.settings = hypothesis_settings(max_examples=80, stateful_step_count=30, deadline=None)
TestChanges = Changes.TestCase


def test_a_permanent_change_supersedes_the_pending_end() -> None:
    engine = Engine()
    engine.set(0.0, changes={"sched.max_running": 32}, ttl=10.0)
    engine.set(5.0, changes={"sched.max_running": 16})
    engine.changes.expire(step=1, now=11.0)
    assert engine["sched.max_running"] == 16
    assert engine.changes.next_deadline is None


def test_time_limited_over_time_limited_comes_back_to_what_was_before_both() -> None:
    engine = Engine()
    engine.set(0.0, changes={"sched.max_running": 48})
    engine.set(1.0, changes={"sched.max_running": 32}, ttl=10.0)
    engine.set(2.0, changes={"sched.max_running": 16}, ttl=10.0)
    engine.changes.expire(step=1, now=11.5)
    assert engine["sched.max_running"] == 16
    engine.changes.expire(step=1, now=12.0)
    assert engine["sched.max_running"] == 48
    assert engine.changes.settings.origin("sched.max_running").reason == "a test"


def test_an_end_that_is_refused_is_announced_once_and_tried_again_after_the_next_change() -> None:
    engine = Engine()
    engine.set(0.0, changes={"sched.max_step_tokens": 2048}, ttl=1.0)
    engine.set(0.5, changes={"sched.prefill_chunk": 2048})  # now 1024 tokens a step are too few
    for now in (1.0, 1.1, 1.2):
        engine.changes.expire(step=1, now=now)
    assert engine["sched.max_step_tokens"] == 2048
    kinds = [event.kind for event in engine.events.since(0)[1]]
    assert kinds.count("revert refused") == 1
    engine.set(2.0, changes={"sched.prefill_chunk": 256})
    engine.changes.expire(step=1, now=2.0)
    assert engine["sched.max_step_tokens"] == 1024


def test_an_end_that_fails_to_be_put_in_force_leaves_the_engine_going() -> None:
    engine = Engine()
    engine.set(0.0, changes={"sched.order": "prefix"}, ttl=1.0)
    engine.fails = True
    engine.changes.expire(step=1, now=1.0)
    assert engine["sched.order"] == "prefix"
    assert engine.events.since(0)[1][-1].kind == "revert refused"
    engine.fails = False
    engine.set(2.0, changes={"sched.paused": True})
    engine.changes.expire(step=1, now=2.0)
    assert engine["sched.order"] == "fcfs"


def test_every_refused_key_is_named_whatever_its_fault() -> None:
    engine = Engine()
    asked = {
        "sched.max_running": 999,
        "sched.ordr": "x",
        "model.path": "y",
        "sched.paused": 3,
        "sched.order": "fcfs",
    }
    with pytest.raises(Refused) as caught:
        engine.set(changes=asked)
    reasons = {error.flag: error.reason for error in caught.value.errors}
    assert reasons == {
        "sched.max_running": FlagReason.BOUNDS,
        "sched.ordr": FlagReason.UNKNOWN,
        "model.path": FlagReason.RESTART,
        "sched.paused": FlagReason.TYPE,
    }


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if flag.reach is Reach.RESTART])
def test_restart_flags_are_refused_by_name(name: str) -> None:
    engine = Engine()
    with pytest.raises(Refused) as caught:
        engine.set(changes={name: engine[name]})
    assert [(error.flag, error.reason) for error in caught.value.errors] == [(name, FlagReason.RESTART)]


def test_text_is_read_as_the_command_line_would() -> None:
    engine = Engine()
    engine.set(changes={"sched.paused": "on", "sched.max_running": "12", "cache.page_cap": "none"})
    assert (engine["sched.paused"], engine["sched.max_running"], engine["cache.page_cap"]) == (
        True,
        12,
        "none",
    )


def test_unset_uncovers_the_environment() -> None:
    engine = Engine()
    engine.set(changes={"sched.prefill_chunk": 64})
    applied = engine.changes.apply(SetFlags(actor=ME, unset=("sched.prefill_chunk",)), step=3, now=0.0)
    assert (applied.changes["sched.prefill_chunk"].old, applied.changes["sched.prefill_chunk"].new) == (
        64,
        128,
    )
