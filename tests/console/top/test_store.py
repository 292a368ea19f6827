"""The store and the toasts: nothing is lost, nothing is told twice, and another life of the engine is another."""

from __future__ import annotations

from typing import Any

import msgspec
from arc.console.top.store import KEPT_EVENTS, Store, last_number
from arc.console.top.toasts import Toasts
from arc.engine.control import protocol as p

from .recorded import recorded

READ = recorded()


def attached() -> Store:
    store = Store()
    store.attached(READ.hello, READ.history, READ.events, 1.0)
    return store


def event(number: int, kind: str = "flags", **changes: Any) -> p.Event:
    return p.Event(number=number, time=READ.time + number, kind=kind, text=f"event {number}", **changes)


def test_samples_and_events_are_taken_once() -> None:
    store = attached()
    samples, events = store.picture.samples, store.picture.events
    store.history(READ.history)
    store.attached(READ.hello, READ.history, READ.events, 2.0)
    assert store.picture.samples == samples and store.picture.events == events
    more = msgspec.structs.replace(READ.history.samples[-1], time=READ.history.samples[-1].time + 1)
    store.history(msgspec.structs.replace(READ.history, samples=(*READ.history.samples, more)))
    assert store.picture.samples == (*samples, more)


def test_a_picture_never_changes() -> None:
    store = attached()
    kept = store.picture
    before = msgspec.json.encode(kept.events)
    store.entry(event(99))
    store.snapshot(READ.snapshot, 5.0)
    store.lost("gone", 6.0)
    assert (
        kept.snapshot is None and msgspec.json.encode(kept.events) == before and kept.link.state == "attached"
    )
    assert store.picture.number == kept.number + 3


def test_a_lost_engine_keeps_its_last_picture() -> None:
    store = attached()
    store.snapshot(READ.snapshot, 5.0)
    store.lost("it went away", 6.0)
    store.lost("no engine answers", 7.0)
    picture = store.picture
    assert (picture.link.state, picture.link.since, picture.link.why) == ("lost", 6.0, "it went away")
    assert picture.snapshot is READ.snapshot and picture.hello is READ.hello
    store.attached(READ.hello, READ.history, READ.events, 8.0)
    assert store.picture.link.state == "attached" and store.picture.link.restarted is None
    assert store.picture.snapshot is READ.snapshot


def test_another_life_of_the_engine_begins_anew() -> None:
    store = attached()
    store.snapshot(READ.snapshot, 5.0)
    store.lost("killed", 6.0)
    other = msgspec.structs.replace(READ.hello, started=READ.hello.started + 100, pid=READ.hello.pid + 1)
    history = msgspec.structs.replace(READ.history, samples=READ.history.samples[:2])
    store.attached(other, history, p.Events(last=1, gap=None, events=(event(1),)), 9.0)
    picture = store.picture
    assert picture.link.restarted == 9.0
    assert picture.snapshot is None and picture.samples == history.samples and picture.events == (event(1),)


def test_a_reset_of_the_counters_is_a_restart_of_the_numbers() -> None:
    store = attached()
    store.entry(event(50, "reset"))
    assert store.picture.link.restarted == READ.time + 50


def test_a_store_never_attached_is_still_attaching() -> None:
    store = Store()
    store.lost("no engine answers", 3.0)
    assert store.picture.link.state == "attaching" and store.picture.link.why == "no engine answers"


def test_gaps_count_as_read_and_old_events_go() -> None:
    store = attached()
    store.entry(p.Gap(5, 10, 14))
    assert last_number(store.picture.events) == 14
    for number in range(15, 15 + KEPT_EVENTS):
        store.entry(event(number))
    assert len(store.picture.events) == KEPT_EVENTS
    assert last_number(store.picture.events) == 14 + KEPT_EVENTS


# -- toasts -------------------------------------------------------------------------------------------------------


def test_what_others_change_is_told_once_and_ones_own_is_not() -> None:
    store, toasts = attached(), Toasts(pid=42)
    assert toasts.fresh(store.picture) == []  # what stood there is no news
    store.entry(event(10, uid=1000, pid=7))
    store.entry(event(11, uid=1000, pid=42))
    store.entry(event(12, "refused", uid=1000, pid=7))
    (toast,) = toasts.fresh(store.picture)
    assert toast.text == "event 10  by uid 1000 pid 7" and toast.title == "flags"
    assert toasts.fresh(store.picture) == []
    store.entry(event(13, "fault"))
    assert [each.severity for each in toasts.fresh(store.picture)] == ["error"]


def test_a_flood_is_counted() -> None:
    store, toasts = attached(), Toasts(pid=42)
    toasts.fresh(store.picture)
    for number in range(10, 30):
        store.entry(event(number))
    told = toasts.fresh(store.picture)
    assert len(told) == 4 and told[-1].text == "and 17 more: see Events"


def test_another_life_tells_nothing_of_the_old_one() -> None:
    store, toasts = attached(), Toasts(pid=42)
    store.entry(event(100))
    toasts.fresh(store.picture)
    other = msgspec.structs.replace(READ.hello, started=0.0)
    store.attached(other, READ.history, p.Events(last=2, gap=None, events=(event(1), event(2))), 9.0)
    assert toasts.fresh(store.picture) == []
    store.entry(event(3))
    assert [each.text for each in toasts.fresh(store.picture)] == ["event 3"]
