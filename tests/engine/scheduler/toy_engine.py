"""A toy model and a toy engine around the real scheduler.

The model writes a digest of the whole prefix into each token's slot and, before it answers, reads back every
slot that attention would read. A page shared wrongly, evicted under a reader or written twice shows up as
corrupted data. Its next token depends on the prefix alone, so what a sequence outputs must not depend on
anything that else ran.

Its drafter writes slots of its own, in the same pages, and reads them back in the same way. It guesses right or wrong
at random, which must not show in what comes out either.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from arc.engine.scheduler import pressure
from arc.engine.scheduler.pages import PageManager
from arc.engine.scheduler.scheduler import Scheduler
from arc.engine.scheduler.types import CannotFit, Row, SchedulerConfig, Step
from arc.engine.sequence import Finish, FinishReason, Request, SamplingParams, Sequence, Status, sequence_of

VOCAB = 50
EOS = 7
MASK = (1 << 61) - 1


def digest_next(digest: int, token: int) -> int:
    return (digest * 1_000_003 + token + 1) & MASK


def digests_of(tokens: list[int], known: list[int]) -> list[int]:
    """Digest of tokens[: i + 1] for every i, extending `known`."""
    for token in tokens[len(known) :]:
        known.append(digest_next(known[-1] if known else 17, token))
    return known


def next_token(digest: int) -> int:
    return (digest >> 7) % VOCAB


class ToyModel:
    def __init__(self, pages: PageManager) -> None:
        self.page_size = pages.page_size
        self.slots = [-1] * (pages.total * pages.page_size)
        self.ahead = list(self.slots)  # the drafter's
        self.luck = random.Random(0)
        self.right = 0.7  # how often a guess is
        self.known: dict[int, list[int]] = {}
        self.reads = 0

    def slot(self, seq: Sequence, position: int) -> int:
        return seq.pages[position // self.page_size] * self.page_size + position % self.page_size

    def forward(self, step: Step) -> list[tuple[int, ...]]:
        for row in step.rows:  # all writes of a layer come before its reads
            digests = self.digests(row)
            for position in range(row.start, row.start + row.count):
                self.slots[self.slot(row.seq, position)] = digests[position]
        sampled = []
        for row in step.rows:
            digests = self.digests(row)
            for position in range(row.start + row.count):
                self.reads += 1
                assert self.slots[self.slot(row.seq, position)] == digests[position], (
                    f"sequence {row.seq.number} reads wrong KV at {position}"
                )
            if row.samples:
                sampled.append(self.verified(row, digests))
        return sampled

    def digests(self, row: Row) -> list[int]:
        """Of the sequence's tokens and of the row's drafts, which are not known to be right."""
        known = digests_of(row.seq.tokens, self.known.setdefault(row.seq.number, []))
        return digests_of([*row.seq.tokens, *row.drafts], list(known))

    def verified(self, row: Row, digests: list[int]) -> tuple[int, ...]:
        drawn = [next_token(digest) for digest in digests[len(row.seq.tokens) - 1 :]]
        right = 0
        while right < len(row.drafts) and row.drafts[right] == drawn[right]:
            right += 1
        return tuple(drawn[: right + 1])

    def draft(self, step: Step, sampled: list[tuple[int, ...]], depth: int) -> dict[int, tuple[int, ...]]:
        """Fill the drafter's slots for what the step computed, and guess on, where nothing of a row is missing."""
        results = iter(sampled)
        drafts: dict[int, tuple[int, ...]] = {}
        for row in step.rows:
            seq = row.seq
            new = next(results) if row.samples else ()
            if seq.status is not Status.RUNNING or seq.predicted != row.start:
                continue
            end = row.start + (len(new) if row.decode else row.count)
            digests = digests_of([*seq.tokens, *new], list(self.known[seq.number]))
            for position in range(row.start, end):
                self.ahead[self.slot(seq, position)] = digests[position]
            for position in range(end):
                assert self.ahead[self.slot(seq, position)] == digests[position], (
                    f"sequence {seq.number} drafts from wrong slots at {position}"
                )
            held = len(seq.pages) * self.page_size - end + 1
            wanted = min(depth, seq.request.params.max_tokens - seq.output_len - len(new) - 1, held)
            guesses: list[int] = []
            for place in range(wanted if new else 0):
                token = next_token(digests[-1])
                guesses.append(token if self.luck.random() < self.right else token + 1)
                digests = digests_of([*seq.tokens, *new, *guesses], digests)
                if place:
                    self.ahead[self.slot(seq, end + place - 1)] = -3  # of a token that may never come
            drafts[seq.number] = tuple(guesses)
        return drafts

    def fail(self, step: Step) -> None:
        """A forward that dies half way leaves anything in the slots that it was to write."""
        for row in step.rows:
            for position in range(row.start, row.start + row.count):
                self.slots[self.slot(row.seq, position)] = self.ahead[self.slot(row.seq, position)] = -2

    def reference(self, prompt: tuple[int, ...], params: SamplingParams) -> list[int]:
        tokens = list(prompt)
        digests = digests_of(tokens, [])
        while True:
            token = next_token(digests[-1])
            tokens.append(token)
            digests.append(digest_next(digests[-1], token))
            done = len(tokens) - len(prompt) >= params.max_tokens
            if done or (token == EOS and not params.ignore_eos):
                return tokens


class CheckedScheduler(Scheduler):
    """Holds the sums that it keeps over a step against what everybody who runs claims now."""

    def _claimed(self, forming: Any, steps: int) -> int:
        claimed = super()._claimed(forming, steps)
        assert claimed == sum(pressure.claim(self.pages, other, steps) for other in self._running.values()), (
            "the running claim other pages than were summed"
        )
        return claimed


class ToyEngine:
    """The engine core's part, as small as it can be: run steps, end sequences, check invariants after every
    step.
    """

    def __init__(self, pages: int = 64, page_size: int = 4, **flags: Any) -> None:
        self.pages = PageManager(pages, page_size)
        self.config = SchedulerConfig(**flags)
        self.scheduler = CheckedScheduler(self.pages, self.config)
        self.model = ToyModel(self.pages)
        self.sequences: list[Sequence] = []
        self.live: dict[int, Sequence] = {}
        self.finished: list[Sequence] = []
        self.steps = 0
        self.accepted = self.drafted = 0
        self.preemptions = self.recomputed = self.computed = self.queries = self.hits = 0

    def add(
        self,
        prompt: list[int] | int,
        max_tokens: int = 8,
        priority: int = 0,
        ignore_eos: bool = True,
    ) -> Sequence:
        """`prompt` as a number: that many tokens nobody else has."""
        number = len(self.sequences)
        if isinstance(prompt, int):
            prompt = random.Random(number).choices(range(1000, 10**9), k=prompt)
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
        seq = sequence_of(
            number, Request(id=str(number), prompt=tuple(prompt), params=params, priority=priority)
        )
        self.sequences.append(seq)
        try:
            self.scheduler.add(seq)
            self.live[number] = seq
        except CannotFit as error:
            seq.finish = Finish(reason=FinishReason.CAPACITY, detail=str(error))
        return seq

    def configure(self, **flags: Any) -> None:
        self.config = replace(self.config, **flags)
        self.scheduler.configure(self.config)

    def form(self) -> Step | None:
        step = self.scheduler.schedule(float(self.steps))
        if step is not None:
            self.steps += 1
            self.check_step(step)
            for seq in step.failed:
                self.end(seq)
            self.preemptions += len(step.preempted)
            self.recomputed += step.recomputed_tokens
            self.computed += step.tokens
            self.drafted += step.draft_tokens
            self.queries += step.prefix_queries
            self.hits += step.prefix_hits
        self.check()
        return step

    def step(self) -> Step | None:
        step = self.form()
        if step is not None:
            self.commit(step)
        return step

    def run_until_preempted(self, times: int = 1) -> None:
        while self.preemptions < times:
            assert self.step() is not None, "it ended without a preemption"

    def commit(self, step: Step, lost: int = 0) -> None:
        """The last `lost` rows turn out to be faulty after the forward and end before the commit."""
        results = self.model.forward(step)
        for row in step.rows[len(step.rows) - lost :]:
            self.cancel(row.seq)
        drafts = self.model.draft(step, results, self.config.spec_depth) if self.config.spec_depth else {}
        rows = [row for row in step.rows if row.samples]
        self.accepted += sum(len(tokens) - 1 for tokens in results)
        cut = [self.cut(row.seq, tokens) for row, tokens in zip(rows, results, strict=True)]
        self.scheduler.commit(step, cut, drafts)
        for row in step.rows:
            seq = row.seq
            if row.samples and seq.status is Status.RUNNING:
                self.judge(seq)
        self.check()

    def cut(self, seq: Sequence, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Up to the token that ends the sequence."""
        tokens = tokens[: max(seq.request.params.max_tokens - seq.output_len, 1)]
        if EOS in tokens and not seq.request.params.ignore_eos:
            return tokens[: tokens.index(EOS) + 1]
        return tokens

    def judge(self, seq: Sequence) -> None:
        params = seq.request.params
        if seq.output_len >= params.max_tokens or (seq.tokens[-1] == EOS and not params.ignore_eos):
            seq.finish = Finish(reason=FinishReason.LENGTH)
            self.cancel(seq)
            assert seq.tokens == self.model.reference(seq.request.prompt, params)

    def fault(self, step: Step) -> None:
        """The forward failed: the step's sequences end, the engine goes on."""
        self.model.fail(step)
        self.scheduler.abort(step)
        for row in step.rows:
            self.cancel(row.seq)
        self.check()

    def cancel(self, seq: Sequence) -> None:
        self.scheduler.remove(seq)
        self.end(seq)

    def end(self, seq: Sequence) -> None:
        assert seq.status is Status.FINISHED
        assert not seq.pages
        del self.live[seq.number]
        self.finished.append(seq)

    def run(self, limit: int = 100_000) -> int:
        """Until nothing can run; the steps it took."""
        before = self.steps
        while self.step() is not None:
            assert self.steps - before <= limit, f"not done after {limit} steps"
        return self.steps - before

    # -- invariants ------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.pages.check()
        scheduler = self.scheduler
        running, waiting = scheduler.running, scheduler.waiting()
        assert {seq.number for seq in running} | {seq.number for seq in waiting} == set(self.live)
        assert len(running) == scheduler.running_count
        assert len(waiting) == scheduler.waiting_count
        assert len(running) + len(waiting) == len(self.live)
        counts: dict = {}
        for seq in waiting:
            assert seq.status is Status.WAITING and not seq.pages and not seq.computed
            assert not seq.predicted and not seq.drafts
            assert seq.wait_reason is not None
            counts[seq.wait_reason] = counts.get(seq.wait_reason, 0) + 1
        assert counts == scheduler.waiting_by_reason()
        for seq in running:
            assert seq.status is Status.RUNNING
            assert seq.predicted <= seq.computed < len(seq.tokens)
            assert len(seq.pages) * self.pages.page_size >= seq.computed

    def check_step(self, step: Step) -> None:
        config = self.config
        assert step.tokens <= config.max_step_tokens
        assert step.decode_rows == sum(row.decode for row in step.rows)
        assert step.tokens == sum(row.count for row in step.rows)
        assert step.prompt_tokens == sum(row.count for row in step.rows if not row.decode)
        assert len({row.seq.number for row in step.rows}) == len(step.rows)
        assert [row.decode for row in step.rows] == sorted((row.decode for row in step.rows), reverse=True)
        for row in step.rows:
            self.check_row(row)
        in_step = {row.seq.number for row in step.rows}
        for seq in self.scheduler.running:
            assert (seq.wait_reason is None) == (seq.number in in_step)
        if step.admitted:
            assert not step.preempted
            assert not config.paused
            assert self.scheduler.running_count <= config.max_running
        for seq in step.preempted:
            assert seq.status is Status.WAITING
        for seq in step.failed:
            assert seq.finish is not None and seq.finish.reason is FinishReason.CAPACITY and seq.finish.detail
        if config.admission == "bucketed":
            lengths = [row.start for row in step.rows if row.decode]
            assert not lengths or max(lengths) - min(lengths) < 64

    def check_row(self, row: Row) -> None:
        seq = row.seq
        assert seq.status is Status.RUNNING
        assert row.start == seq.computed
        assert 1 <= row.count - len(row.drafts) <= seq.remaining
        assert row.drafts == seq.drafts[: len(row.drafts)]
        assert len(row.drafts) <= self.config.spec_depth
        assert row.decode or not row.drafts
        assert row.start + row.count < seq.prompt_len + seq.request.params.max_tokens
        assert row.samples == (row.start + row.count - len(row.drafts) == len(seq.tokens))
        assert row.decode == (seq.remaining == 1)
        assert row.decode or row.count <= self.config.prefill_chunk
        assert len(seq.pages) * self.pages.page_size >= row.start + row.count
