"""The event log: nothing is missing without a gap that says so."""

from __future__ import annotations

import threading

from arc.engine.control.events import EventLog
from hypothesis import given
from hypothesis import strategies as st


@given(
    kept=st.integers(1, 20),
    total=st.integers(0, 50),
    since=st.integers(0, 60),
    limit=st.none() | st.integers(1, 10),
)
def test_gap_and_events_cover_all_that_came_after(
    kept: int, total: int, since: int, limit: int | None
) -> None:
    log = EventLog(kept)
    for number in range(total):
        log.add("mark", str(number))
    gap, events = log.since(since, limit)
    start = since if since <= total else 0  # another life of the engine: all there is
    expected = list(range(start + 1, total + 1))
    seen = list(range(gap.first, gap.last + 1)) if gap else []
    assert not gap or gap.dropped == len(seen) > 0
    seen += [event.number for event in events]
    assert seen == expected[: len(seen)]
    if limit is None:
        assert seen == expected
        assert len(events) <= kept
    assert log.last == total


@given(st.integers(1, 5), st.integers(1, 7))
def test_reading_in_pieces_loses_nothing(kept: int, piece: int) -> None:
    log = EventLog(50)
    for number in range(kept * 9):
        log.add("mark", str(number))
    cursor, texts = 0, []
    while True:
        gap, events = log.since(cursor, piece)
        assert gap is None
        if not events:
            break
        texts += [event.text for event in events]
        cursor = events[-1].number
    assert texts == [str(number) for number in range(kept * 9)]


def test_many_threads_number_without_holes_and_the_sink_sees_the_order() -> None:
    seen: list[int] = []
    log = EventLog(10_000, sink=lambda event: seen.append(event.number))
    threads = [threading.Thread(target=lambda: [log.add("mark", "x") for _ in range(500)]) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == list(range(1, 3001))
    assert [event.number for event in log.since(0)[1]] == seen
