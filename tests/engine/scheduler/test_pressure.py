"""Room and victims, on hand-made situations."""

from __future__ import annotations

from arc.engine.scheduler import pressure
from arc.engine.scheduler.entry import Entry, entry_of
from arc.engine.scheduler.pages import PageManager
from arc.engine.sequence import Request, SamplingParams, sequence_of


def running(pages: PageManager, number: int, prompt: int, max_tokens: int = 1000) -> Entry:
    """A decode row: its prompt computed, one token sampled, the page for that token not yet taken."""
    params = SamplingParams(max_tokens=max_tokens)
    tokens = tuple(number * 1000 + i for i in range(prompt))
    seq = sequence_of(number, Request(id=str(number), prompt=tokens, params=params))
    pages.open(seq, [])
    assert pages.grow(seq, prompt)
    seq.computed = prompt
    seq.tokens.append(0)
    return entry_of(seq)


def test_a_claim_counts_the_page_for_the_token_at_hand() -> None:
    pages = PageManager(100, 4)
    on_the_border = running(pages, 0, 8)
    assert pressure.claim(pages, on_the_border, 0) == 1
    assert pressure.claim(pages, on_the_border, 3) == 1
    assert pressure.claim(pages, on_the_border, 4) == 2
    within = running(pages, 1, 9)
    assert [pressure.claim(pages, within, steps) for steps in (0, 2, 3)] == [0, 0, 1]


def test_a_claim_ends_with_max_tokens_whose_last_needs_no_page() -> None:
    pages = PageManager(100, 4)
    assert pressure.claim(pages, running(pages, 0, 4, max_tokens=1), 50) == 0
    assert pressure.claim(pages, running(pages, 1, 4, max_tokens=2), 50) == 1
    assert pressure.claim(pages, running(pages, 2, 4, max_tokens=5), 50) == 1
    assert pressure.claim(pages, running(pages, 3, 4, max_tokens=6), 50) == 2


def test_a_waiting_sequence_claims_what_comes_after_its_known_tokens() -> None:
    pages = PageManager(100, 4)
    entry = running(pages, 0, 8)
    pages.close(entry.seq)
    assert [pressure.claim(pages, entry, steps) for steps in (0, 3, 4)] == [0, 0, 1]


def test_each_eviction_doubles_the_horizon_and_the_cost() -> None:
    pages = PageManager(100, 4)
    rows = [running(pages, i, 16 + 8 * i) for i in range(3)]
    order = []
    for _ in range(5):
        loser = pressure.victim(pages, rows, strict_priority=False)
        loser.evictions += 1
        order.append(loser.seq.number)
    assert order == [0, 1, 2, 0, 1]  # 17, 25, 33, then 34, 50 and 66
    assert [pressure.horizon(entry) // pressure.HORIZON for entry in rows] == [4, 4, 2]


def test_of_equal_costs_the_latest_arrival_gives_way() -> None:
    pages = PageManager(100, 4)
    rows = [running(pages, i, 16) for i in range(3)]
    assert pressure.victim(pages, rows, strict_priority=False) is rows[2]
