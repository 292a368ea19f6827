"""Everything that touches the device: a step's rows to one flat batch, through the model, to tokens.

The engine loop above it knows no tensor; the model below it knows no sequence.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from ..memory.allocator import Allocator
from ..model.batch import ForwardBatch
from ..model.deepseek import DeepseekModel, ForwardOutput
from ..sampling.sampler import Sampler
from ..sampling.verify import Verified, verify
from ..scheduler.types import Row, Step
from ..sequence import Sequence, TokenLogprob
from .drafter import Drafter
from .graphs import DecodeGraphs
from .layout import Layout


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the device gave for a step, for its sampling rows in order."""

    rows: tuple[Row, ...]  # the rows that sampled
    tokens: list[tuple[int, ...]]  # of a row: the drafts that were right, and the token after them
    logprobs: list[tuple[TokenLogprob, ...] | None]  # one for each of the tokens
    faults: dict[int, str]  # index into rows -> why that row has no token
    layout: float  # seconds: rows to one flat batch
    forward: float
    sample: float
    draft: float = 0.0
    drafts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # see Scheduler.commit
    left_out: Counter[str] = field(default_factory=Counter)  # rows that may not speculate, by why


NO_RESULT = StepResult((), [], [], {}, 0.0, 0.0, 0.0)  # of a step without rows


class Runner:
    """`depth`, most drafts of a row, changes between steps; at 0 nothing of speculation runs."""

    def __init__(
        self,
        model: DeepseekModel,
        layout: Layout,
        sampler: Sampler,
        allocator: Allocator,
        page_size: int,
        max_model_len: int,
    ) -> None:
        """`page_size`: of the pages that sequences hold, also where the layout puts their latents elsewhere."""
        self.model = model
        self.cache = layout.cache
        self.allocator = allocator
        self.sampler = sampler
        self.depth = 0
        self.graphs: DecodeGraphs | None = None  # where steps can be replays of captured graphs
        self._layout = layout
        self.drafter = (
            None if model.prediction is None else Drafter(model.prediction, layout, page_size, max_model_len)
        )

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Run a step. Raises whatever the device raises: the caller then fails the step's sequences."""
        began = time.perf_counter()
        output, layout = self.forward(step)
        ran = time.perf_counter()
        sampling = tuple([row for row in step.rows if row.samples])
        verified = Verified([], [], {})
        if step.draft_tokens:
            verified = self.verify(output.logits, sampling)
        elif sampling:
            sampled = self.sampler.sample(output.logits, [row.seq for row in sampling])
            verified = Verified(
                [(token,) for token in sampled.token_ids],
                [None if each is None else (each,) for each in sampled.logprobs],
                sampled.faults,
            )
        done = time.perf_counter()
        result = StepResult(
            rows=sampling,
            tokens=verified.tokens,
            logprobs=verified.logprobs,
            faults=verified.faults,
            layout=layout,
            forward=ran - began - layout,
            sample=done - ran,
        )
        if self.depth:
            result = self.draft(step, output.hidden, result, done)
        self._layout.close(step, result.tokens)
        return result

    def verify(self, logits: torch.Tensor, rows: tuple[Row, ...]) -> Verified:
        return verify(self.sampler, logits, [row.seq for row in rows], [row.drafts for row in rows])

    def draft(self, step: Step, hidden: torch.Tensor, result: StepResult, began: float) -> StepResult:
        """The result with what the prediction layer proposes for the next step."""
        assert self.drafter is not None
        new = {row.seq.number: tokens for row, tokens in zip(result.rows, result.tokens, strict=True)}
        faulty = {result.rows[index].seq.number for index in result.faults}
        drafts = self.drafter.draft(step, hidden, new, faulty, self.depth)
        return replace(
            result,
            drafts=drafts.by_number,
            left_out=drafts.left_out,
            draft=time.perf_counter() - began,
        )

    def forward(self, step: Step) -> tuple[ForwardOutput, float]:
        """The logits of the rows that sample, and the seconds that laying out the batch took: a step's prompt or decode
        part, as the profiler names it."""
        return self.pipeline_step(step)

    def pipeline_step(self, step: Step) -> tuple[ForwardOutput, float]:
        """One pass through one model, from rows to logits."""
        began = time.perf_counter()
        self._layout.open(step, self.depth)
        batch = self.lay_out(step)
        layout = time.perf_counter() - began
        return self._through_model(batch), layout

    def _through_model(self, batch: ForwardBatch) -> ForwardOutput:
        if self.graphs is not None:
            return self.graphs.forward(batch)
        return self.model.forward(batch, self.cache)

    def end_step(self) -> None:
        """After `run` has returned or raised and its frame is gone: the step's buffers are back."""
        self.allocator.end_step()

    def forget(self, seq: Sequence) -> None:
        """The sequence ended: nothing about it is kept."""
        self._layout.release(seq)
        self.sampler.forget(seq.number)

    def release_pages(self, seq: Sequence) -> None:
        """The sequence gave its pages away and may come back with others (preemption)."""
        self._layout.release(seq)

    def scrub(self, pages: list[int]) -> None:
        """Zero pages whose contents may not be finite: padded attention would carry a NaN into their next owner."""
        self._layout.scrub(pages)

    def lay_out(self, step: Step) -> ForwardBatch:
        rows = step.rows
        sequences = [row.seq for row in rows]
        starts = [row.start for row in rows]
        if step.tokens == step.decode_rows == len(rows):
            return self._layout.decode_batch(sequences, starts, [seq.tokens[-1] for seq in sequences])
        counts = [row.count for row in rows]
        tokens: list[int] = []
        sample: list[int] = []
        for row in rows:
            if row.decode:
                tokens.append(row.seq.tokens[row.start])
                tokens += row.drafts
                sample += range(len(tokens) - row.count, len(tokens))
            else:
                tokens += row.seq.tokens[row.start : row.start + row.count]
                if row.samples:
                    sample.append(len(tokens) - 1)
        return self._layout.batch(
            sequences, np.array(starts, dtype=np.int64), counts, tokens, step.decode_rows, sample
        )
