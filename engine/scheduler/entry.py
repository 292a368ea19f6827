"""The scheduler's own notes on one sequence, from `add` to `remove`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..sequence import Sequence
from .pages import Block


@dataclass(slots=True, eq=False)
class Entry:
    seq: Sequence
    last: int  # tokens whose KV is needed when max_tokens have come out; the very last one's never is
    chain: list[Block] = field(
        default_factory=list
    )  # cached prefix found while waiting, kept for the next look
    served: int = -1  # index of the last step with a row of it
    looked_up: bool = False  # its prefix lookup has been counted
    high: int = 0  # most tokens computed before a preemption; computing below it is work done again
    evictions: int = 0  # times it was preempted for pages (not as a bucket's loser)
    reach: int = 0  # pages that may be in use when it grows: a cap lowered since does not bind it


def entry_of(seq: Sequence) -> Entry:
    return Entry(seq, seq.prompt_len + max(seq.request.params.max_tokens, 1) - 1)
