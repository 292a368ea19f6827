"""One batched pass from logits to tokens for all rows of a step, whatever each row asks for.

Order, as in vLLM: raw log-probabilities; bars (min_tokens) and logit_bias; penalties; temperature, min_p, top_k, top_p;
draw. A greedy row takes the maximum after the penalties.

A sequence whose drafts are verified has a row for each place: after none of its drafts, after the first, after two, ...
Each is edited and drawn as it would be in a step of its own, with the uniform number of its place in the output. So the
draws are those of a sequence without drafts for as long as the drafts agree with them, and keeping the drafts that do
is rejection sampling (Leviathan et al. 2023, arXiv:2211.17192, 2.3) from proposals that are certain: a draft d passes
with probability p(d), and what comes in its place is drawn from p without d.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...kernels.operations import GREEDY_BELOW, Plan, Sample
from ...kernels.reference.sample import TorchSample
from ..sequence import SamplingParams, Sequence, TokenLogprob
from .edits import Bias, PenaltyCounts, bar, penalise
from .logprobs import overflown, raw_logprobs, what_is_not_finite
from .uniform import stream_key, uniforms

FAULTED = -1  # the token id of a row without a token

_TORCH = TorchSample()


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a pass chose, one entry a row; a row in `faults` has no token (FAULTED) and no log-probability."""

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]  # None also where the row asked for none
    faults: dict[int, str]  # row -> reason; the other rows are sound


@dataclass(slots=True)
class _State:
    """What the sampler keeps of one sequence, all of it derived from its request and tokens."""

    params: SamplingParams
    key: int  # of the uniform numbers
    barred: NDArray[np.int64]  # until min_tokens are there
    penalties: PenaltyCounts | None
    fault: str | None  # why its parameters cannot be applied


@dataclass(frozen=True, slots=True)
class _Plan:
    """What stays the same from step to step as long as the batch is made of the same sequences."""

    numbers: list[int]
    states: list[_State]
    drawing: Plan  # of the operation that draws
    keys: NDArray[np.uint64]
    unused: Tensor | None  # the uniform numbers where no row draws
    bias: Bias | None
    penalised: list[int]
    minimum: list[int]  # rows with min_tokens
    logprobs: list[int]
    faults: dict[int, str]

    @property
    def edits(self) -> bool:
        return bool(self.bias is not None or self.penalised or self.minimum)


class Sampler:
    """Samples for one model. Used by the engine thread alone; `forget` each sequence when it has ended."""

    def __init__(
        self,
        vocab_size: int,
        device: torch.device | str,
        eos_ids: frozenset[int],
        draw: Sample = _TORCH,
    ) -> None:
        self._draw = draw
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._eos_ids = eos_ids
        self._states: dict[int, _State] = {}
        self._plan: _Plan | None = None

    def sample(
        self, logits: Tensor, rows: Rows[Sequence], drafts: Rows[tuple[int, ...]] | None = None
    ) -> Sampled:
        """The next token of each of `rows`, from logits [S, V] float32, S = len(rows).

        `drafts`: for each row, what is taken to follow its sequence's tokens already; None: nothing, for all of them.
        `logits` is scratch space: what it holds afterwards is undefined. A row whose logits are not finite, or whose
        parameters name what the vocabulary lacks, is a fault of its own. Raises ValueError for a wrong shape or dtype.
        """
        if logits.shape != (len(rows), self._vocab_size) or logits.dtype != torch.float32:
            raise ValueError(
                f"logits are {list(logits.shape)} {logits.dtype}: "
                f"wanted [{len(rows)}, {self._vocab_size}] torch.float32"
            )
        if not rows:
            return Sampled([], [], {})
        logits = logits.contiguous()
        plan = self._plan_of(rows)
        faults = plan.faults | self.find_faults(logits)
        if faults:
            logits[list(faults)] = 0.0  # drawn from like the rest, so that the pass stays one; not reported
        raw = logits.clone() if plan.logprobs and plan.edits else logits
        self._edit(logits, plan, rows, drafts)
        if plan.penalised:  # penalties can make of finite logits what no token can be drawn from
            spoilt = overflown(logits, [row for row in plan.penalised if row not in faults])
            if spoilt:
                faults |= spoilt
                logits[list(spoilt)] = 0.0
        token_ids = self.fetch(self._draw(logits, plan.drawing, self._uniforms(plan, rows, drafts)))
        logprobs: list[TokenLogprob | None] = [None] * len(rows)
        if plan.logprobs:
            best = [plan.states[r].params.logprobs or 0 for r in plan.logprobs]
            records = raw_logprobs(raw, plan.logprobs, best, [token_ids[r] for r in plan.logprobs])
            for row, record in zip(plan.logprobs, records, strict=True):
                logprobs[row] = record
        for row in faults:
            token_ids[row], logprobs[row] = FAULTED, None
        return Sampled(token_ids, logprobs, faults)

    def find_faults(self, logits: Tensor) -> dict[int, str]:
        """Rows that are not finite, and why. On a card the host waits here until the forward pass is done."""
        return {row: what_is_not_finite(logits[row]) for row in self._draw.not_finite(logits)}

    def fetch(self, tokens: Tensor) -> list[int]:
        """The tokens on the host. On a card the host waits here until they are drawn."""
        return tokens.tolist()

    def forget(self, number: int) -> None:
        """Drop what is kept of the sequence of that number, if anything is: it has ended."""
        if self._states.pop(number, None) and self._plan is not None and number in self._plan.numbers:
            self._plan = None

    def _edit(
        self, logits: Tensor, plan: _Plan, rows: Rows[Sequence], drafts: Rows[tuple[int, ...]] | None
    ) -> None:
        barred = [
            r
            for r in plan.minimum
            if rows[r].output_len + (len(drafts[r]) if drafts else 0) < plan.states[r].params.min_tokens
        ]
        if barred:
            bar(logits, barred, [plan.states[r].barred for r in barred])
        if plan.bias is not None:
            plan.bias.add_to(logits)
        if plan.penalised:
            counts = [c for r in plan.penalised if (c := plan.states[r].penalties) is not None]
            for row, count in zip(plan.penalised, counts, strict=True):
                count.count(rows[row].tokens)
            penalties = [
                count.after(drafts[row] if drafts else ())
                for row, count in zip(plan.penalised, counts, strict=True)
            ]
            penalise(logits, plan.penalised, penalties)

    def _uniforms(self, plan: _Plan, rows: Rows[Sequence], drafts: Rows[tuple[int, ...]] | None) -> Tensor:
        if plan.unused is not None:
            return plan.unused
        positions = np.array([len(seq.tokens) - seq.prompt_len for seq in rows], dtype=np.uint64)
        if drafts is not None:
            positions += np.array([len(each) for each in drafts], dtype=np.uint64)
        return torch.from_numpy(uniforms(plan.keys, positions)).to(self._device)

    def _plan_of(self, rows: Rows[Sequence]) -> _Plan:
        numbers = [seq.number for seq in rows]
        if self._plan is None or self._plan.numbers != numbers:
            self._plan = self._new_plan(numbers, [self._state_of(seq) for seq in rows])
        return self._plan

    def _new_plan(self, numbers: list[int], states: list[_State]) -> _Plan:
        sound = [(row, state) for row, state in enumerate(states) if state.fault is None]
        params = [state.params for state in states]
        biased = [row for row, state in sound if state.params.logit_bias]
        logprobs = [row for row, state in sound if state.params.logprobs is not None]
        drawing = self._draw.plan(
            temperature=[p.temperature for p in params],
            top_k=[p.top_k for p in params],
            top_p=[p.top_p for p in params],
            min_p=[p.min_p for p in params],
            vocab_size=self._vocab_size,
            device=self._device,
        )
        return _Plan(
            numbers=numbers,
            states=states,
            drawing=drawing,
            unused=None
            if any(p.temperature >= GREEDY_BELOW for p in params)
            else torch.zeros(len(params), dtype=torch.float64),
            keys=np.array([state.key for state in states], dtype=np.uint64),
            bias=Bias(biased, [params[r].logit_bias for r in biased], self._vocab_size, self._device)
            if biased
            else None,
            penalised=[row for row, state in sound if state.penalties is not None],
            minimum=[row for row, state in sound if state.params.min_tokens > 0 and len(state.barred)],
            logprobs=logprobs,
            faults={row: state.fault for row, state in enumerate(states) if state.fault is not None},
        )

    def _state_of(self, seq: Sequence) -> _State:
        state = self._states.get(seq.number)
        if state is None:
            state = self._states[seq.number] = self._new_state(seq)
        return state

    def _new_state(self, seq: Sequence) -> _State:
        params = seq.request.params
        # Ids past the vocabulary can never be drawn, so there is nothing to bar.
        barred = {i for i in self._eos_ids.union(params.stop_token_ids) if 0 <= i < self._vocab_size}
        penalised = (
            params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0
        )
        return _State(
            params=params,
            key=stream_key(secrets.randbits(64) if params.seed is None else params.seed),
            barred=np.array(sorted(barred), dtype=np.int64),
            penalties=PenaltyCounts(params, seq.tokens[: seq.prompt_len]) if penalised else None,
            fault=self._why_not(params, len(barred)),
        )

    def _why_not(self, params: SamplingParams, barred: int) -> str | None:
        foreign = [token for token in params.logit_bias if not 0 <= token < self._vocab_size]
        if foreign:
            return f"logit_bias names token {foreign[0]}: the vocabulary has ids 0 to {self._vocab_size - 1}"
        if params.min_tokens > 0 and barred == self._vocab_size:
            return "min_tokens bars every token: eos and stop_token_ids cover the whole vocabulary"
        return None
