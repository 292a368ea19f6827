"""The engine thread: takes the inbox in at a step border, forms a step, runs it, sends the results out once.

This thread alone owns scheduler, cache and model, so there is no lock inside a step. It outlives any request: a step
that fails ends the sequences in it, with a clear error, and the next step is formed.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from typing import Protocol

from ..control.events import EventLog
from ..scheduler.scheduler import Scheduler
from ..scheduler.types import CannotFit, Step
from ..sequence import Finish, FinishReason, Output, Request, Sequence, Status, sequence_of
from ..telemetry.records import Counters, StepRecord
from .accounts import Accounts
from .ending import EndRules
from .inbox import Cancellation, Inbox, Taken
from .interface import Closed
from .runner import NO_RESULT, Runner, StepResult

log = logging.getLogger("arc.engine")

_FAULTS_IN_A_ROW = 8  # border faults without one good step between: the engine cannot go on


class Observer(Protocol):
    """Told of each step, on the engine thread: the flight recorder and the step ring. Quick, and never raising."""

    def step_opened(self, index: int, rows: int) -> None: ...

    def step_closed(self, record: StepRecord) -> None: ...


class Engine:
    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        inbox: Inbox,
        counters: Counters,
        rules: EndRules,
        deliver: Callable[[list[Output]], None],
        died: Callable[[str], None],
        observer: Observer,
        events: EventLog,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.inbox = inbox
        self.counters = counters
        self.accounts = Accounts(counters, scheduler)
        self.sequences: dict[str, Sequence] = {}  # by request id: waiting and running ones
        self.steps = 0  # the index of the next step
        self.at_border: Callable[[], None] = lambda: (
            None
        )  # timed flag changes and publishing, set by the control port
        self.idle_until: Callable[[], float | None] = lambda: (
            None
        )  # monotonic time at which an idle engine must wake
        self.at_end: Callable[[Sequence], None] = lambda _seq: (
            None
        )  # of every sequence; set by the control port
        self._rules = rules
        self._deliver = deliver
        self._died = died
        self._observer = observer
        self._events = events
        self._number = 0
        self._stopping = False
        self._outputs: list[Output] = []
        self._open: Step | None = None  # formed, and neither committed nor aborted

    @property
    def newest(self) -> int:
        """The highest number that a sequence has had; -1 before the first."""
        return self._number - 1

    # -- the loop, on the engine thread ---------------------------------------------------------------------------

    def run(self) -> None:
        """Until `stop`. Whatever still runs then is cancelled, so that no client waits for a thread that is gone."""
        try:
            why = self._loop()
        except BaseException as error:
            log.exception("the engine thread cannot go on")
            why = f"cleaning up after a fault failed as well: {error!r}"
        self._die(why)

    def _loop(self) -> str:
        """Step after step; why it ended."""
        faults = 0
        while not self._stopping:
            try:
                self.border()
                ran = self.step()
                if ran is None:
                    self._idle()
                elif ran:
                    faults = 0
            except Exception as error:
                faults += 1
                log.exception("a fault outside the forward pass")
                if self._open is not None:
                    self.scheduler.abort(self._open)
                    self._open = None
                self._fault(list(self.sequences.values()), f"the engine failed at a step border: {error!r}")
                if faults >= _FAULTS_IN_A_ROW:
                    return f"{faults} faults in a row at the step border, the last one: {error!r}"
        self.end(list(self.sequences.values()), FinishReason.CANCELLED, "the engine is stopping")
        self.accounts.refresh()
        return "it was stopped"

    def stop(self) -> None:
        """From any thread: end after the step under way."""
        self._stopping = True
        self.inbox.poke()

    def border(self) -> None:
        taken = self.inbox.take()
        if taken is not None:
            self._take_in(taken)
        self.at_border()

    def _take_in(self, taken: Taken) -> None:
        for call in taken.calls:
            if call.answer.set_running_or_notify_cancel():
                try:
                    call.answer.set_result(call.run())
                except Exception as error:
                    call.answer.set_exception(error)
        # A request and its cancellation may come in together; the order of the border must not lose the latter.
        cancelled = {each.request_id: each for each in taken.cancellations}
        for each in taken.cancellations:
            if (seq := self.sequences.get(each.request_id)) is not None:
                self.end([seq], each.reason, each.detail)
        for request in taken.requests:
            self._receive(request, cancelled.get(request.id))

    def _receive(self, request: Request, cancelled: Cancellation | None) -> None:
        if not self.sequences:
            self.counters.work_since = time.monotonic()
        seq = sequence_of(self._number, request)
        self._number += 1
        try:
            self.scheduler.add(seq)
        except CannotFit as error:
            finish = Finish(reason=FinishReason.CAPACITY, detail=str(error))
            self._outputs.append(Output(request_id=seq.id, finish=finish))
            self.accounts.ended(seq, finish.reason, time.monotonic())
            self._flush()
            return
        self.sequences[request.id] = seq
        if cancelled is not None:
            self.end([seq], cancelled.reason, cancelled.detail)

    def step(self) -> bool | None:
        """Form and run one step. Whether it ran to its end; None when there is nothing to do."""
        began = time.monotonic()
        step = self.scheduler.schedule(began)
        if step is None:
            return None
        self._open = step
        scheduled = time.monotonic()
        self._before_forward(step, began)
        self.counters.step_open_since = began
        self._observer.step_opened(self.steps, len(step.rows))
        try:
            result = self.runner.run(step) if step.rows else NO_RESULT
        except Exception as error:
            log.exception("step %d failed", self.steps)
            self.scheduler.abort(step)
            self._open = None
            self._fault([row.seq for row in step.rows], f"step {self.steps} failed: {error!r}")
            # Whoever keeps the error, such as a log handler, keeps no buffer of the step by it.
            traceback.clear_frames(error.__traceback__)
            result = None
        self.runner.end_step()
        self.publish(step, began, scheduled, result)
        return result is not None

    def _before_forward(self, step: Step, began: float) -> None:
        """What forming the step alone has brought: failures, preemptions, admissions."""
        for seq in step.failed:
            assert seq.finish is not None
            self._close(seq, seq.finish, began)
        for seq in step.preempted:
            self.runner.release_pages(seq)
        if step.preempted:
            ids = [seq.id for seq in step.preempted]
            self._events.add(
                "preempted", f"{len(ids)} sequences gave up their pages", step=self.steps, ids=ids
            )
        self.accounts.formed(step, began)

    def publish(self, step: Step, began: float, scheduled: float, result: StepResult | None) -> None:
        """What the step brought goes to the clients, the counters and the record. `result` None: it failed."""
        finished = self._conclude(step, result) if result is not None else 0
        self._flush()
        self.accounts.refresh()
        self._record(step, began, scheduled, result, finished)

    def _conclude(self, step: Step, result: StepResult) -> int:
        """Commit the step and say what it brought. The number of sequences that it ended."""
        now = time.monotonic()
        # Before the commit: what a faulty row computed must not become findable in the prefix cache.
        for index, why in result.faults.items():
            self._fault([result.rows[index].seq], why)
        cut = [
            self._rules.cut(row.seq, tokens) for row, tokens in zip(result.rows, result.tokens, strict=True)
        ]
        self.scheduler.commit(step, [tokens for tokens, _ in cut], result.drafts)
        self._open = None
        self.accounts.left_out(result.left_out)
        brought: list[tuple[Sequence, int]] = []
        ended: list[tuple[Sequence, Finish]] = []
        for row, sampled, (tokens, finish), logprobs in zip(
            result.rows, result.tokens, cut, result.logprobs, strict=True
        ):
            seq = row.seq
            if seq.status is Status.FINISHED:
                continue
            brought.append((seq, len(tokens)))
            if row.drafts:
                self.accounts.verified(row, len(sampled) - 1)
            self._outputs.append(
                Output(
                    request_id=seq.request.id,
                    token_ids=tokens,
                    logprobs=None if logprobs is None else logprobs[: len(tokens)],
                    finish=finish,
                    cached_tokens=seq.cached_prefix,
                )
            )
            if finish is not None:
                ended.append((seq, finish))
        self.accounts.tokens(brought, now)
        for seq, finish in ended:
            self._release(seq, finish, now)
        return len(result.faults) + len(ended)

    def _record(
        self, step: Step, began: float, scheduled: float, result: StepResult | None, finished: int
    ) -> None:
        result = result if result is not None else NO_RESULT
        schedule = scheduled - began + result.layout
        counters, wall = self.counters, time.monotonic() - began
        record = StepRecord(
            index=self.steps,
            started=began,
            wall=wall,
            schedule=schedule,
            forward=result.forward,
            sample=result.sample,
            draft=result.draft,
            publish=wall - schedule - result.forward - result.sample - result.draft,
            admitted=counters.running + finished,  # those that ended in this step held KV in its forward
            rows=len(step.rows),
            decode_rows=step.decode_rows,
            prompt_rows=len(step.rows) - step.decode_rows,
            prompt_tokens=step.prompt_tokens,
            draft_tokens=step.draft_tokens,
            waiting=counters.waiting,
            finished=finished,
            preempted=len(step.preempted),
            pages_used=counters.pages_used,
            pages_cached=counters.pages_cached,
            pages_free=counters.pages_free,
        )
        self.accounts.stepped(record, step.tokens)
        counters.step_open_since = None
        self.steps += 1
        self._observer.step_closed(record)

    def _idle(self) -> None:
        self._flush()
        self.counters.effective_batch = 0
        if not self.sequences:
            self.counters.work_since = None
        self.accounts.refresh()
        wake = self.idle_until()
        self.inbox.wait(None if wake is None else max(0.0, wake - time.monotonic()))

    # -- ends -----------------------------------------------------------------------------------------------------

    def end(self, sequences: list[Sequence], reason: FinishReason, detail: str | None) -> None:
        """End sequences in any state; their pages are free when this returns."""
        now = time.monotonic()
        for seq in sequences:
            self._close(seq, Finish(reason=reason, detail=detail), now)
        self._flush()

    def _fault(self, sequences: list[Sequence], why: str) -> None:
        """End sequences whose KV cannot be trusted: nothing of it may stay in the prefix cache or reach a neighbour."""
        self.counters.faults += 1
        ids = [seq.id for seq in sequences]
        self._events.add("fault", f"{len(ids)} sequences ended: {why}", step=self.steps, ids=ids)
        now = time.monotonic()
        for seq in sequences:
            self.runner.scrub(self.scheduler.discard(seq))
            self._close(seq, Finish(reason=FinishReason.FAULT, detail=why), now)
        self._flush()

    def _close(self, seq: Sequence, finish: Finish, now: float) -> None:
        self._outputs.append(Output(request_id=seq.id, finish=finish, cached_tokens=seq.cached_prefix))
        self._release(seq, finish, now)

    def _release(self, seq: Sequence, finish: Finish, now: float) -> None:
        seq.finish = finish
        self.scheduler.remove(seq)
        self.runner.forget(seq)
        self.sequences.pop(seq.id, None)
        self.at_end(seq)
        self.accounts.ended(seq, finish.reason, now)

    def _flush(self) -> None:
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            self._deliver(outputs)

    def _die(self, why: str) -> None:
        """Nothing runs after this: every client and every asker gets its answer now."""
        self._died(why)
        for seq in list(self.sequences.values()):
            self._outputs.append(
                Output(request_id=seq.id, finish=Finish(reason=FinishReason.FAULT, detail=why))
            )
        self.inbox.close(f"the engine thread has ended: {why}")
        if (taken := self.inbox.take()) is not None:
            for call in taken.calls:
                call.answer.set_exception(Closed(f"the engine thread has ended: {why}"))
            self._outputs += [
                Output(request_id=request.id, finish=Finish(reason=FinishReason.FAULT, detail=why))
                for request in taken.requests
            ]
        self._flush()
        log.info("the engine thread has ended: %s", why)
