"""The law of bucket shattering, by simulation over the real scheduler with simulated lengths: no model, no weights.

    python -m arc.engine.scheduler.shattering [--json] [--pairs 32x8,128x32]

B sequences whose KV lengths take D values, neighbours one bucket's width apart, decode without end. Bucketed admission
runs B / D of them a step, ragged admission all B.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import msgspec

from ..sequence import Request, SamplingParams, sequence_of
from .buckets import COALESCE
from .pages import PageManager
from .scheduler import Scheduler
from .types import AdmissionPolicy, BucketLosers, SchedulerConfig, Step

PAIRS = ((1, 1), (8, 8), (32, 8), (32, 32), (128, 32), (128, 128))  # (B, D)
_PAGE = 64  # tokens


class Shattered(msgspec.Struct, frozen=True, kw_only=True):
    """B sequences at D lengths: rows a step under each rule, mean over whole rounds of the steady state."""

    sequences: int
    lengths: int
    bucketed: float
    ragged: float

    @property
    def holds(self) -> bool:
        return self.bucketed == self.sequences / self.lengths and self.ragged == self.sequences


def step_of(scheduler: Scheduler) -> Step:
    """One step of a model that says 1 whatever it reads."""
    step = scheduler.schedule(0.0)
    assert step is not None, "sequences without end always have something to run"
    scheduler.commit(step, [(1,) for row in step.rows if row.samples])
    return step


def decoding(policy: AdmissionPolicy, lengths: list[int], losers: BucketLosers = "wait") -> Scheduler:
    """Sequences of exactly these KV lengths, prefilled side by side, about to decode under `policy`."""
    config = SchedulerConfig(
        max_running=len(lengths), max_step_tokens=10**7, prefill_chunk=10**7, prefix_cache=False
    )
    pages = PageManager(sum(length // _PAGE + 9 for length in lengths), _PAGE)
    scheduler = Scheduler(pages, config)
    for number, length in enumerate(lengths):
        params = SamplingParams(max_tokens=10**6)
        request = Request(id=str(number), prompt=(0,) * length, params=params)
        scheduler.add(sequence_of(number, request))
    assert len(step_of(scheduler).rows) == len(lengths)
    scheduler.configure(replace(config, admission=policy, bucket_losers=losers))
    return scheduler


def effective_batch(policy: AdmissionPolicy, sequences: int, lengths: int) -> float:
    """Rows a step, mean over four rounds: in a round every bucket has had its turn."""
    scheduler = decoding(policy, [COALESCE * (1 + number % lengths) for number in range(sequences)])
    steps = 4 * lengths
    return sum(step_of(scheduler).decode_rows for _ in range(steps)) / steps


def simulate(sequences: int, lengths: int) -> Shattered:
    return Shattered(
        sequences=sequences,
        lengths=lengths,
        bucketed=effective_batch("bucketed", sequences, lengths),
        ragged=effective_batch("ragged", sequences, lengths),
    )


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    wrong = argparse.ArgumentTypeError(f"{text!r}: each is BxD, with D a divisor of B and B at most 1024")
    try:
        pairs = tuple((int(b), int(d)) for b, _, d in (each.partition("x") for each in text.split(",")))
    except ValueError:
        raise wrong from None
    if not all(
        1 <= lengths <= sequences <= 1024 and sequences % lengths == 0 for sequences, lengths in pairs
    ):
        raise wrong
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="arc bench shattering",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pairs", type=_pairs, default=PAIRS)
    options = parser.parse_args()
    found = [simulate(*pair) for pair in options.pairs]
    if options.json:
        print(msgspec.json.encode(found).decode())
        return
    print("   B    D  bucketed  ragged  B / D")
    for each in found:
        word = "" if each.holds else "  the law does not hold here"
        print(
            f"{each.sequences:4} {each.lengths:4} {each.bucketed:9g} {each.ragged:7g} "
            f"{each.sequences / each.lengths:6g}{word}"
        )


if __name__ == "__main__":
    main()
