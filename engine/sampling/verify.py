"""From draws after each of a row's drafts to the tokens that the row gets (how and why: sampler.py)."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

from torch import Tensor

from ..sequence import Sequence, TokenLogprob
from .sampler import Sampler


@dataclass(frozen=True, slots=True)
class Verified:
    """One entry a row; what stands for a row in `faults` means nothing."""

    tokens: list[tuple[int, ...]]  # the drafts that were right, and the token after them
    logprobs: list[
        tuple[TokenLogprob, ...] | None
    ]  # one for each of the tokens; None where none were asked for
    faults: dict[int, str]  # row -> reason


def verify(sampler: Sampler, logits: Tensor, rows: Rows[Sequence], drafts: Rows[tuple[int, ...]]) -> Verified:
    """Row r has 1 + len(drafts[r]) of the logits [S, V]: after its last token, and after each of its drafts.

    A row is lost if any of its logits are not finite, kept or not: what it wrote to the cache is not finite either.
    """
    places = [(row, count) for row, drafted in enumerate(drafts) for count in range(len(drafted) + 1)]
    sampled = sampler.sample(
        logits, [rows[row] for row, _ in places], [drafts[row][:count] for row, count in places]
    )
    verified = Verified([], [], {})
    first = 0
    for row, drafted in enumerate(drafts):
        drawn = sampled.token_ids[first : first + len(drafted) + 1]
        right = 0
        while right < len(drafted) and drawn[right] == drafted[right]:
            right += 1
        verified.tokens.append(tuple(drawn[: right + 1]))
        given = sampled.logprobs[first : first + right + 1]
        verified.logprobs.append(tuple(each for each in given if each is not None) or None)
        for place in range(first, first + len(drawn)):
            if place in sampled.faults:
                verified.faults.setdefault(row, sampled.faults[place])
        first += len(drawn)
    return verified
