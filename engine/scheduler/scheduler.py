"""Forms one step after another: decode rows first, then prompt chunks, under one token budget and no phases.

The rules, their bounds and where they come from: docs/scheduler.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType

from ..sequence import Finish, FinishReason, Sequence, Status, WaitReason
from . import buckets, pressure
from .entry import Entry, entry_of
from .pages import PageManager
from .queue import WaitingQueue, Walk
from .types import CannotFit, Row, SchedulerConfig, Step

# Under `prefix` the longest cached prefix among this many of the line's first is taken, and the very first is
# passed over at most so many times in a row.
PREFIX_WINDOW = 32
PREFIX_PASSES = 32

NO_DRAFTS: Mapping[int, tuple[int, ...]] = MappingProxyType({})


@dataclass(slots=True)
class _Forming:
    """The step that is being formed."""

    budget: int
    now: float
    decode: list[Entry] = field(default_factory=list)
    late: list[Entry] = field(default_factory=list)  # decode rows beyond their share of the budget
    prefilling: list[Entry] = field(
        default_factory=list
    )  # admitted before this step, more than a token to compute
    prompts: list[tuple[Entry, int]] = field(default_factory=list)  # with the count of query tokens
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    failed: list[Sequence] = field(default_factory=list)
    queries: int = 0
    hits: int = 0
    drafts: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by number, of the decode rows
    claims: dict[int, int] = field(
        default_factory=dict
    )  # by horizon: pages that all who run claim within it; while admitting, only admissions change it


class Scheduler:
    """Owned by the engine thread. Every step is schedule -> forward -> commit (or abort); between steps, in
    any order, configure, add and remove.

    A pure function of these calls: no clock, no randomness, so that every rank of a parallel engine forms the
    same steps.
    """

    def __init__(self, pages: PageManager, config: SchedulerConfig) -> None:
        self.pages = pages
        self.config = config
        self._entries: dict[int, Entry] = {}  # all sequences, by number
        self._running: dict[int, Entry] = {}  # in order of admission
        self._queue = WaitingQueue(config.order == "priority")
        self._index = 0  # of the step that is formed next
        self._open: Step | None = None
        self._passed = (-1, 0)  # number of the line's first and how often `prefix` order passed it over
        # why the waiting wait: `_newcomers` came after the last step was formed, `_ousted` lost their pages
        # in it, and of the rest the first `_slots` wait for `_blocked`, those behind them for a slot
        self._newcomers: set[int] = set()
        self._ousted: dict[int, WaitReason] = {}
        self._blocked = WaitReason.QUEUED
        self._slots = 0
        _refuse_deadlocks(config)
        pages.set_prefix(config.prefix_cache)
        pages.set_cap(config.page_cap)
        pages.predicted = config.spec_depth > 0

    # -- views -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Sequence]:
        """The admitted, in order of admission. One that was left out of the last step carries its
        wait_reason.
        """
        return [entry.seq for entry in self._running.values()]

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        return len(self._queue)

    def waiting(self, most: int | None = None) -> list[Sequence]:
        """The first `most` in line order, else all, each with its wait_reason as of the last step. Walks so much
        of the line: for those who look, not a step.
        """
        return list(islice(self._refresh_reasons(), most))

    def walk(self) -> Walk:
        """Over the line without those that were preempted, in pieces: for a table that is written over many steps."""
        return self._queue.walk()

    def preempted(self) -> list[Sequence]:
        """Those that wait for the second time, in line order: at most as many as ever ran at once."""
        return [entry.seq for entry in self._queue.returned()]

    def refresh_reason(self, seq: Sequence, ahead: int) -> int:
        """Say why a waiting sequence waits, as of the last step. `ahead`: how many of the line's first wait for what
        blocks it and for nothing of their own; the count with this one comes back.
        """
        if seq.number in self._ousted:
            seq.wait_reason = self._ousted[seq.number]
        elif seq.number not in self._newcomers:
            behind = self._blocked is not WaitReason.PAUSED and ahead >= self._slots
            seq.wait_reason = WaitReason.RUNNING_CAP if behind else self._blocked
            ahead += 1
        return ahead

    def waiting_by_reason(self) -> dict[WaitReason, int]:
        """How many wait for what; only reasons that occur. Does not walk the line."""
        counts = {WaitReason.QUEUED: len(self._newcomers)}
        for reason in self._ousted.values():
            counts[reason] = counts.get(reason, 0) + 1
        rest = len(self._queue) - len(self._newcomers) - len(self._ousted)
        first = rest if self._blocked is WaitReason.PAUSED else min(rest, self._slots)
        counts[self._blocked] = counts.get(self._blocked, 0) + first
        counts[WaitReason.RUNNING_CAP] = counts.get(WaitReason.RUNNING_CAP, 0) + rest - first
        return {reason: count for reason, count in counts.items() if count}

    # -- between steps ---------------------------------------------------------------------------------------

    def configure(self, config: SchedulerConfig) -> None:
        """Take new flags, at a step border. A lowered page cap does not bind sequences that ran under the
        larger one.
        """
        if config == self.config:
            return
        _refuse_deadlocks(config)
        before, self.config = self.config, config
        if (before.order == "priority") != (config.order == "priority"):
            queue = WaitingQueue(config.order == "priority")
            for entry in sorted(self._queue, key=lambda entry: entry.seq.number):
                queue.push(entry)
            self._queue = queue
        limit = self.pages.limit
        self.pages.set_cap(config.page_cap)
        if self.pages.limit < limit:
            for entry in self._entries.values():
                if entry.seq.admitted_at is not None:
                    entry.reach = max(entry.reach, limit)
        self.pages.set_prefix(config.prefix_cache)
        if self.pages.predicted != (config.spec_depth > 0):
            self.pages.predicted = config.spec_depth > 0
            for entry in self._queue:
                entry.chain = []  # found under the other rule

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence. Raises CannotFit, with nothing queued, if its prompt exceeds all pages under
        the cap.
        """
        if seq.number in self._entries or seq.status is not Status.WAITING:
            raise ValueError(f"sequence {seq.number} is {seq.status} and cannot be added")
        entry = entry_of(seq)
        if self._exceeds(entry):
            raise CannotFit(self._why_not(entry))
        seq.wait_reason = WaitReason.QUEUED
        self._entries[seq.number] = entry
        self._newcomers.add(seq.number)
        self._queue.push(entry)

    def remove(self, seq: Sequence) -> None:
        """End a sequence in whatever state: its pages are back when this returns. Nothing happens to a
        finished one.
        """
        if seq.status is Status.FINISHED:
            return
        entry = self._entries.pop(seq.number)
        if seq.status is Status.RUNNING:
            del self._running[seq.number]
            self.pages.close(seq)
        else:
            self._leave_line(entry)
        seq.status = Status.FINISHED
        seq.wait_reason = None

    def discard(self, seq: Sequence) -> list[int]:
        """End a sequence whose KV cannot be trusted, a fault's: nothing of it stays findable. Gives the pages that
        come free by it, whose contents must not reach their next owner.
        """
        pages = self.pages.distrust(seq) if seq.status is Status.RUNNING else []
        self.remove(seq)
        return pages

    # -- one step --------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> Step | None:
        """Form the next step, or None: nothing can run before something is added, removed or configured.

        `now` is time.monotonic(), noted as the time of first admissions. A step may have no rows and only
        tell of failures and preemptions. Each must be committed or aborted before the next one is formed.
        """
        if self._open is not None:
            raise RuntimeError("the last step was neither committed nor aborted")
        self._newcomers = set()
        self._ousted = {}
        forming = _Forming(self.config.max_step_tokens, now)
        decode: list[Entry] = []
        for entry in self._running.values():
            (decode if entry.seq.remaining == 1 else forming.prefilling).append(entry)
        if self.config.admission == "bucketed" and decode:
            decode = self._run_bucket(forming, decode)
        self._add_decode_rows(forming, decode)
        self._add_prompt_rows(forming)
        self._admit(forming)
        self._fill_with_decode_rows(forming)
        return self._close_step(forming)

    def commit(
        self,
        step: Step,
        sampled: list[tuple[int, ...]],
        drafts: Mapping[int, tuple[int, ...]] = NO_DRAFTS,
    ) -> None:
        """The forward of `step` is done. `sampled` has the new tokens of each row that samples, in row order.

        With speculation a row may bring several: all but the last are those of its query tokens that were
        accepted, so the sequence is computed up to its new last token. `drafts` has, by number, the sequences
        whose new latents of the prediction layer were written in this step, and what it proposes. Sequences
        removed since are passed over.
        """
        if step is not self._open:
            raise RuntimeError("this is not the step under way")
        counts = [row.count for row in step.rows if row.samples]
        given = [len(tokens) for tokens in sampled]
        if given != counts and (
            len(given) != len(counts)
            or not all(1 <= n <= most for n, most in zip(given, counts, strict=True))
        ):
            raise ValueError(f"rows of {counts} query tokens sample, but the results have {given} tokens")
        self._open = None
        size = self.pages.page_size
        results = iter(sampled)
        for row in step.rows:
            seq = row.seq
            new = next(results) if row.samples else ()
            if seq.status is not Status.RUNNING:
                continue
            before, tokens = seq.computed, seq.tokens
            tokens += new
            seq.computed = computed = len(tokens) - 1 if new else before + row.count
            proposed = drafts.get(seq.number) if drafts else None
            if proposed is not None:
                seq.predicted = computed
            seq.drafts = proposed or ()
            if computed // size > before // size:
                self.pages.register(seq)

    def abort(self, step: Step) -> None:
        """The forward of `step` failed: nothing of it counts as computed. Its sequences stay until they are
        removed.
        """
        if step is not self._open:
            raise RuntimeError("this is not the step under way")
        self._open = None

    # -- the parts of a step ---------------------------------------------------------------------------------

    def _run_bucket(self, forming: _Forming, decode: list[Entry]) -> list[Entry]:
        winners, losers = buckets.choose(decode)
        for entry in losers:
            if self.config.bucket_losers == "preempt":
                self._preempt(forming, entry, WaitReason.BUCKET)
            else:
                entry.seq.wait_reason = WaitReason.BUCKET
        return winners

    def _add_decode_rows(self, forming: _Forming, decode: list[Entry]) -> None:
        """Those that waited longest first, if the budget does not hold all besides the prompts' share."""
        quota = self._decode_quota(forming)
        if len(decode) > quota:
            decode.sort(key=lambda entry: entry.served)
        forming.late = decode[quota:]
        pages, chosen = self.pages, forming.decode
        for entry in decode[:quota]:
            seq = entry.seq
            if seq.status is Status.RUNNING and (pages.covers(seq) or self._make_room(forming, entry)):
                chosen.append(entry)
        if forming.preempted:  # a later row's need may have taken an earlier row's pages
            forming.decode = [entry for entry in forming.decode if entry.seq.status is Status.RUNNING]
            forming.late = [entry for entry in forming.late if entry.seq.status is Status.RUNNING]
        forming.budget -= len(forming.decode)
        if self.config.spec_depth:
            self._add_drafts(forming, quota - len(forming.decode))

    def _add_drafts(self, forming: _Forming, budget: int) -> None:
        """Let rows carry their drafts, within what the decode rows left of their share of the budget.

        A draft takes no page from anyone who runs: where the free pages do not reach, fewer are verified. Pages are
        taken for the next drafts as well, which the prediction layer writes before they are verified.
        """
        pages, depth = self.pages, self.config.spec_depth
        for entry in forming.decode:
            seq = entry.seq
            tokens = len(seq.tokens)
            count = min(len(seq.drafts), depth, max(entry.last - tokens, 0), budget)
            if not pages.grow(seq, min(tokens + count + depth - 1, entry.last), entry.reach):
                count = min(count, len(seq.pages) * pages.page_size - tokens)
            if count:
                forming.drafts[seq.number] = seq.drafts[:count]
                budget -= count
                forming.budget -= count

    def _decode_quota(self, forming: _Forming) -> int:
        """The rows that may decode before prompts had their share of the budget, an eighth, if they could use
        it.
        """
        config = self.config
        could_admit = self._queue and not config.paused and len(self._running) < config.max_running
        share = max(config.max_step_tokens // 8, 1) if forming.prefilling or could_admit else 0
        return config.max_step_tokens - share

    def _make_room(self, forming: _Forming, entry: Entry) -> bool:
        """Pages for the row's next token, preempting as few as it takes. False if the row itself gave way or
        failed.
        """
        seq = entry.seq
        while not self.pages.grow(seq, len(seq.tokens), entry.reach):
            if self._exceeds(entry):
                self._fail(forming, entry)
                return False
            strict = self.config.order == "priority"
            loser = pressure.victim(self.pages, self._running.values(), strict)
            loser.evictions += 1
            self._preempt(forming, loser, WaitReason.PREEMPTED)
            if loser is entry:
                return False
        return True

    def _add_prompt_rows(self, forming: _Forming) -> None:
        """A chunk each, the longest admitted first, as far as the budget goes. Their pages are held since
        admission.
        """
        for entry in forming.prefilling:
            if entry.seq.status is Status.RUNNING:  # it may have given its pages to a decode row
                self._add_chunk(forming, entry)

    def _add_chunk(self, forming: _Forming, entry: Entry) -> None:
        count = min(entry.seq.remaining, self.config.prefill_chunk, forming.budget)
        if not count:
            entry.seq.wait_reason = WaitReason.TOKEN_BUDGET
            return
        forming.prompts.append((entry, count))
        forming.budget -= count

    def _admit(self, forming: _Forming) -> None:
        """Take from the line in its order until something stops its first: nobody overtakes, so nobody
        starves.
        """
        config = self.config
        while self._queue:
            self._slots = max(config.max_running - len(self._running), 0)
            if config.paused:
                self._blocked = WaitReason.PAUSED
            elif not self._slots:
                self._blocked = WaitReason.RUNNING_CAP
            elif forming.preempted:
                self._blocked = WaitReason.NO_PAGES
            elif not forming.budget:
                self._blocked = WaitReason.TOKEN_BUDGET
            else:
                entry = self._next_in_line()
                if self._exceeds(entry):
                    self._fail(forming, entry)
                    continue
                if self._fits(forming, entry):
                    self._admit_one(forming, entry)
                    continue
                self._blocked = WaitReason.NO_PAGES
            return

    def _next_in_line(self) -> Entry:
        head = self._queue.head()
        if self.config.order == "prefix" and self.pages.prefix and not head.seq.preemptions:
            number, passes = self._passed
            if number != head.seq.number or passes < PREFIX_PASSES:
                return max(self._queue.window(PREFIX_WINDOW), key=self._cached_blocks)
        return head

    def _cached_blocks(self, entry: Entry) -> int:
        return len(self.pages.match(entry.seq.tokens, entry.chain))

    def _fits(self, forming: _Forming, entry: Entry) -> bool:
        """Whether all its tokens get pages, and those who run keep room for what they claim within its
        horizon.
        """
        pages, tokens = self.pages, entry.seq.tokens
        lacking = pages.pages_for(len(tokens)) - self._cached_blocks(entry)
        room = pages.room(entry.reach) - lacking
        if self._running and room >= 0:
            steps = pressure.horizon(entry)
            room -= pressure.claim(pages, entry, steps)
            room -= self._claimed(forming, steps)
        return room >= 0 and room >= pages.idle(entry.chain)

    def _claimed(self, forming: _Forming, steps: int) -> int:
        """Summed once a step, so that many admissions in one do not each ask everybody who runs."""
        claimed = forming.claims.get(steps)
        if claimed is None:
            claimed = sum(pressure.claim(self.pages, other, steps) for other in self._running.values())
            forming.claims[steps] = claimed
        return claimed

    def _admit_one(self, forming: _Forming, entry: Entry) -> None:
        seq = entry.seq
        head = self._queue.head()
        number, passes = self._passed
        if entry is not head:
            self._passed = (head.seq.number, passes + 1 if number == head.seq.number else 1)
        self._queue.remove(entry)
        self.pages.open(seq, entry.chain)
        self.pages.grow(seq, len(seq.tokens), entry.reach)
        entry.chain = []
        if not entry.looked_up:
            entry.looked_up = True
            seq.cached_prefix = seq.computed
            if self.pages.prefix:
                forming.queries += seq.prompt_len
                forming.hits += seq.computed
        if seq.admitted_at is None:
            seq.admitted_at = forming.now
        seq.status = Status.RUNNING
        for steps in forming.claims:
            forming.claims[steps] += pressure.claim(self.pages, entry, steps)
        self._running[seq.number] = entry
        forming.admitted.append(seq)
        if seq.remaining > 1:
            self._add_chunk(forming, entry)
        elif self.config.admission == "bucketed" and not buckets.joins(entry, forming.decode):
            seq.wait_reason = WaitReason.BUCKET
        else:
            forming.decode.append(entry)
            forming.budget -= 1

    def _fill_with_decode_rows(self, forming: _Forming) -> None:
        """What the prompts left of their share goes to decode rows that need nobody's pages for it."""
        for entry in forming.late:
            if forming.budget and self.pages.grow(entry.seq, len(entry.seq.tokens), entry.reach):
                forming.decode.append(entry)
                forming.budget -= 1
            else:
                entry.seq.wait_reason = WaitReason.TOKEN_BUDGET

    def _close_step(self, forming: _Forming) -> Step | None:
        if not (forming.decode or forming.prompts or forming.preempted or forming.failed):
            return None
        rows, recomputed, index, drafts = [], 0, self._index, forming.drafts
        for entry in forming.decode:
            seq = entry.seq
            entry.served, seq.wait_reason = index, None
            if entry.high > seq.computed:
                recomputed += 1
            proposed = drafts.get(seq.number, ()) if drafts else ()
            rows.append(Row(seq, seq.computed, 1 + len(proposed), True, True, proposed))
        for entry, count in forming.prompts:
            seq = entry.seq
            entry.served, seq.wait_reason = index, None
            recomputed += max(min(entry.high, seq.computed + count) - seq.computed, 0)
            rows.append(Row(seq, seq.computed, count, samples=count == seq.remaining, decode=False))
        self._index += 1
        self._open = Step(
            rows=tuple(rows),
            decode_rows=len(forming.decode),
            prompt_tokens=sum(count for _, count in forming.prompts),
            admitted=tuple(forming.admitted),
            preempted=tuple(forming.preempted),
            failed=tuple(forming.failed),
            prefix_queries=forming.queries,
            prefix_hits=forming.hits,
            recomputed_tokens=recomputed,
            draft_tokens=sum(map(len, drafts.values())),
        )
        return self._open

    # -- moves -----------------------------------------------------------------------------------------------

    def _preempt(self, forming: _Forming, entry: Entry, reason: WaitReason) -> None:
        """Back to the front of its class, in order of arrival."""
        seq = entry.seq
        entry.high = max(entry.high, seq.computed)
        del self._running[seq.number]
        self.pages.close(seq)
        seq.status = Status.WAITING
        seq.preemptions += 1
        seq.wait_reason = reason
        self._queue.push(entry)
        self._ousted[seq.number] = reason
        forming.preempted.append(seq)

    def _exceeds(self, entry: Entry) -> bool:
        """Whether it could not hold its tokens even with all pages to itself."""
        return self.pages.pages_for(len(entry.seq.tokens)) > max(self.pages.limit, entry.reach)

    def _why_not(self, entry: Entry) -> str:
        pages, tokens = self.pages, len(entry.seq.tokens)
        cap = f"cache.page_cap allows {pages.limit} of {pages.total}"
        have = cap if pages.limit < pages.total else f"the cache has {pages.total}"
        return f"{tokens} tokens need {pages.pages_for(tokens)} pages of {pages.page_size} and {have}"

    def _fail(self, forming: _Forming, entry: Entry) -> None:
        entry.seq.finish = Finish(reason=FinishReason.CAPACITY, detail=self._why_not(entry))
        self.remove(entry.seq)
        forming.failed.append(entry.seq)

    def _leave_line(self, entry: Entry) -> None:
        self._queue.remove(entry)
        self._newcomers.discard(entry.seq.number)
        self._ousted.pop(entry.seq.number, None)

    def _refresh_reasons(self) -> Iterator[Sequence]:
        ahead = 0
        for entry in self._queue:
            ahead = self.refresh_reason(entry.seq, ahead)
            yield entry.seq


def _refuse_deadlocks(config: SchedulerConfig) -> None:
    """Values below these would stop all work for good; the flags' own bounds are tighter."""
    if config.max_step_tokens < 2:
        raise ValueError(
            f"sched.max_step_tokens = {config.max_step_tokens}: decode and prompts need a token each"
        )
    for flag, value in (
        ("sched.max_running", config.max_running),
        ("sched.prefill_chunk", config.prefill_chunk),
        ("cache.page_cap", config.page_cap),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{flag} = {value}: at least 1 is needed to run anything")
