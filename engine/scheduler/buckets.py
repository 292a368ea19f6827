"""The old admission rule, kept for comparison: decode rows of one KV length a step, near ones coalesced."""

from __future__ import annotations

from .entry import Entry

COALESCE = 64  # tokens: rows closer than this to the longest of the bucket run with it


def choose(decode: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """The bucket that runs, and the losers.

    The row that has waited longest picks it, the longest one among equals; its bucket is every row less than
    COALESCE tokens shorter, itself included. So each row runs at least once in as many steps as there are
    rows, and lengths that were COALESCE apart stay so: the longest of a round always steps first, and its
    follower only comes up behind it.
    """
    first = min(decode, key=lambda entry: (entry.served, -entry.seq.computed, entry.seq.number))
    top = first.seq.computed
    winners, losers = [], []
    for entry in decode:
        (winners if top - COALESCE < entry.seq.computed <= top else losers).append(entry)
    return winners, losers


def joins(entry: Entry, rows: list[Entry]) -> bool:
    """Whether a row admitted into the step is near enough to all its decode rows."""
    lengths = [other.seq.computed for other in (entry, *rows)]
    return max(lengths) - min(lengths) < COALESCE
