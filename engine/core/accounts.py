"""Keeps the engine's counters: what each step, each token and each end adds to them. The engine thread's alone."""

from __future__ import annotations

from collections.abc import Mapping

from ..scheduler.scheduler import Scheduler
from ..scheduler.types import Row, Step
from ..sequence import FinishReason, Sequence, WaitReason
from ..telemetry.records import Counters, StepRecord

_NOBODY_WAITS: dict[WaitReason, int] = dict.fromkeys(WaitReason, 0)


class Accounts:
    def __init__(self, counters: Counters, scheduler: Scheduler) -> None:
        self._counters = counters
        self._scheduler = scheduler

    def formed(self, step: Step, began: float) -> None:
        """Count a prompt once, at its first admission: a comeback after preemption is not new work."""
        counters = self._counters
        counters.prefix_queries += step.prefix_queries
        counters.prefix_hits += step.prefix_hits
        counters.recomputed_tokens += step.recomputed_tokens
        for seq in step.admitted:
            if seq.admitted_at == began:
                counters.prompt_tokens += seq.prompt_len
                counters.queue.observe(began - seq.request.arrival)
                counters.prompt_length.observe(seq.prompt_len)

    def tokens(self, brought: list[tuple[Sequence, int]], now: float) -> None:
        """What a step brought to each sequence, in tokens. Those that came out together are said to have taken equal
        parts of the time since the last one, which was that of the same step for most: so they are counted together.
        """
        counters = self._counters
        gaps: dict[tuple[float, int], int] = {}
        for seq, count in brought:
            counters.generation_tokens += count
            if seq.last_token_at is None:
                seq.first_token_at = now
                counters.time_to_first_token.observe(now - seq.request.arrival)
            else:
                gap = (seq.last_token_at, count)
                gaps[gap] = gaps.get(gap, 0) + count
            seq.last_token_at = now
        for (last, count), times in gaps.items():
            counters.inter_token.observe((now - last) / count, times)

    def verified(self, row: Row, right: int) -> None:
        """A row's drafts, the first `right` of which were what the model itself chose."""
        counters, drafts = self._counters, len(row.drafts)
        row.seq.drafted += drafts
        row.seq.accepted += right
        counters.draft_rows += 1
        for place in range(drafts):
            counters.drafted[place] += 1
            counters.accepted[place] += place < right

    def left_out(self, rows: Mapping[str, int]) -> None:
        """Rows that went on without drafts while others speculate, by why."""
        for why, count in rows.items():
            self._counters.undrafted[why] = self._counters.undrafted.get(why, 0) + count

    def ended(self, seq: Sequence, reason: FinishReason, now: float) -> None:
        """Every end, in any state, reaches the counters; a time that has no beginning is left out, not 0."""
        seq.finished_at = now
        counters = self._counters
        counters.finished[reason] += 1
        counters.end_to_end.observe(now - seq.request.arrival)
        counters.generation_length.observe(seq.output_len)
        if seq.admitted_at is not None:
            counters.inference.observe(now - seq.admitted_at)
            if seq.first_token_at is not None:
                counters.prefill.observe(seq.first_token_at - seq.admitted_at)
                counters.decode.observe(now - seq.first_token_at)
        if seq.first_token_at is not None and seq.last_token_at is not None and seq.output_len > 1:
            span = seq.last_token_at - seq.first_token_at
            counters.time_per_output_token.observe(span / (seq.output_len - 1))

    def stepped(self, record: StepRecord, tokens: int) -> None:
        counters = self._counters
        counters.steps += 1
        counters.effective_batch = record.rows
        counters.preemptions += record.preempted
        counters.step_tokens.observe(tokens)
        counters.last_step_at = record.started + record.wall
        seconds = counters.step_seconds
        seconds["schedule"] += record.schedule
        seconds["forward"] += record.forward
        seconds["sample"] += record.sample
        seconds["draft"] += record.draft
        seconds["publish"] += record.publish

    def refresh(self) -> None:
        """The gauges of now; called when idle too, so that they never stay up after the work is gone."""
        counters, scheduler, pages = self._counters, self._scheduler, self._scheduler.pages
        counters.running = scheduler.running_count
        counters.waiting = scheduler.waiting_count
        counters.waiting_by_reason = (
            _NOBODY_WAITS | scheduler.waiting_by_reason() if counters.waiting else _NOBODY_WAITS
        )
        counters.pages_used = pages.used
        counters.pages_cached = pages.cached
        counters.pages_free = pages.free
