"""Drawing tokens, and finding rows that are no numbers, in C++: rows side by side, none of them by the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..operations import GREEDY_BELOW
from .binding import NOT_FINITE, SAMPLE, NotFiniteCall, SampleCall
from .operations import Operation


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """The parameters of a batch's rows, one each, as the library reads them."""

    call: SampleCall  # without what is a step's own
    held: tuple[Tensor, ...]  # what it points to


class NativeSample(Operation):
    def plan(
        self,
        *,
        temperature: Sequence[float],
        top_k: Sequence[int],
        top_p: Sequence[float],
        min_p: Sequence[float],
        vocab_size: int,
        device: torch.device,
    ) -> SamplePlan:
        heat = torch.tensor([each if each >= GREEDY_BELOW else 0.0 for each in temperature])
        limit = torch.tensor([k if 0 < k < vocab_size else vocab_size for k in top_k], dtype=torch.int32)
        mass, least = torch.tensor(top_p, dtype=torch.float64), torch.tensor(min_p, dtype=torch.float32)
        call = SampleCall(
            temperature=heat.data_ptr(), top_k=limit.data_ptr(), top_p=mass.data_ptr(), min_p=least.data_ptr(),
            rows=len(heat), vocab=vocab_size,
        )  # fmt: skip
        return SamplePlan(call, (heat, limit, mass, least))

    def __call__(self, logits: Tensor, plan: SamplePlan, uniform: Tensor) -> Tensor:
        call = SampleCall.from_buffer_copy(plan.call)
        assert logits.shape == (call.rows, call.vocab) and len(uniform) == call.rows
        assert logits.dtype == torch.float32 and uniform.dtype == torch.float64
        assert logits.is_contiguous() and uniform.is_contiguous()
        tokens = torch.empty(call.rows, dtype=torch.int64)
        call.logits, call.uniform, call.tokens = logits.data_ptr(), uniform.data_ptr(), tokens.data_ptr()
        self.team.run(SAMPLE, torch.float32, call)
        return tokens

    def not_finite(self, logits: Tensor) -> list[int]:
        rows, vocab_size = logits.shape
        assert logits.is_contiguous() and logits.dtype == torch.float32
        found = torch.empty(rows, dtype=torch.int32)
        call = NotFiniteCall(x=logits.data_ptr(), found=found.data_ptr(), rows=rows, n=vocab_size)
        self.team.run(NOT_FINITE, torch.float32, call)
        return found.nonzero()[:, 0].tolist() if call.count else []
