"""What the scheduler takes and gives. Scheduling is a pure function of these and of the sequences' state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from ..sequence import Sequence

Order = Literal["fcfs", "prefix", "priority"]
AdmissionPolicy = Literal["ragged", "bucketed"]
BucketLosers = Literal["wait", "preempt"]


class CannotFit(Exception):
    """The prompt needs more pages than any state of the engine could give it."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The scheduler's flags at one step border. Lowering a cap drains down: running work finishes."""

    max_running: int = 64  # sched.max_running
    max_step_tokens: int = 1024  # sched.max_step_tokens: query tokens a step, decode and prompt together
    prefill_chunk: int = 256  # sched.prefill_chunk: most prompt tokens of one sequence in a step
    order: Order = "fcfs"  # sched.order
    paused: bool = False  # sched.paused: nothing is admitted; running work goes on
    admission: AdmissionPolicy = "ragged"  # admission.policy
    bucket_losers: BucketLosers = "wait"  # admission.bucket_losers
    prefix_cache: bool = True  # cache.prefix
    page_cap: int | None = None  # cache.page_cap: pages that may be held; None: all
    spec_depth: int = 0  # spec.depth: most drafts of one row in a step; 0: no speculation


class Row(msgspec.Struct, frozen=True):
    """One sequence's part of a step: query tokens tokens[start : start + count], and of a decode row its drafts.

    `samples` is true when the sequence's last token is among them, so the step yields its next token, and one more for
    each draft that proves right.
    """

    seq: Sequence
    start: int
    count: int
    samples: bool
    decode: bool  # the sequence lacked the KV of its last token alone; count = 1 + len(drafts)
    drafts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step's rows, decode rows first, then prompt rows; pages for all of them are already held."""

    rows: tuple[Row, ...]
    decode_rows: int
    prompt_tokens: int  # query tokens of the prompt rows
    admitted: tuple[Sequence, ...] = ()  # sequences that became RUNNING in this step
    preempted: tuple[Sequence, ...] = ()
    failed: tuple[Sequence, ...] = ()  # can never fit: finished with CAPACITY and a detail; not in rows
    # for the engine's counters, this step's share of each
    prefix_queries: int = 0  # prompt tokens looked up: first admissions only, with the prefix cache on
    prefix_hits: int = 0  # of these, tokens found
    recomputed_tokens: int = 0  # query tokens whose KV had been computed before a preemption
    draft_tokens: int = 0  # query tokens of the decode rows beyond one each

    @property
    def tokens(self) -> int:
        return self.decode_rows + self.draft_tokens + self.prompt_tokens
