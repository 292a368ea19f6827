"""Shortage of pages: how much room an admission leaves to those who run, and who gives pages up."""

from __future__ import annotations

from collections.abc import Iterable

from .entry import Entry
from .pages import PageManager

# An admission leaves the pages that everyone running, itself included, will claim within this many steps. So
# what it admits cannot cause a preemption before then. Each eviction of a sequence doubles its own horizon.
HORIZON = 128


def horizon(entry: Entry) -> int:
    return HORIZON << min(entry.evictions, 24)


def claim(pages: PageManager, entry: Entry, steps: int) -> int:
    """Pages that the sequence will still need for its next `steps` tokens, or up to its end."""
    tokens = len(entry.seq.tokens)
    held = len(entry.seq.pages) or pages.pages_for(tokens)  # one that waits asks for its tokens' pages apart
    return max(pages.pages_for(min(tokens + steps, entry.last)) - held, 0)


def victim(pages: PageManager, running: Iterable[Entry], strict_priority: bool) -> Entry:
    """The running sequence whose preemption costs least.

    The cost is the tokens to compute again: what is computed, less the leading pages that others use as well,
    which stay whatever happens (the rest of its registered pages may stay too, but it is pressure that
    evicts). Every earlier eviction doubles the cost, so that sequences take turns; one that ends within a
    page is spared, because its pages come back by themselves. Ties go to the latest arrival. Priorities,
    where they order, come before cost.
    """
    size = pages.page_size

    def key(entry: Entry) -> tuple[int, bool, int, int]:
        seq = entry.seq
        lost = max(seq.computed - (len(seq.pages) - pages.private(seq)) * size, 0)
        return (
            -seq.request.priority if strict_priority else 0,
            entry.last - len(seq.tokens) <= size,
            (lost + 1) << min(entry.evictions, 24),
            -seq.number,
        )

    return min(running, key=key)
