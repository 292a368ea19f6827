"""The slow, obvious sampler in float64, and requests for the tests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from arc.engine.sequence import Request, SamplingParams, Sequence, sequence_of


@dataclass(frozen=True)
class Filters:
    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def distribution(self, logits: list[float]) -> list[tuple[int, float]]:
        """(token, probability) in the order in which the draw walks: best first, or by id without filters."""
        best = max(logits)
        order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
        weights = {i: math.exp((logits[i] - best) / self.temperature) for i in order}
        kept = [i for i in order if weights[i] >= self.min_p]
        kept = kept[: self.top_k] if self.top_k else kept
        total = sum(weights[i] for i in kept)
        nucleus: list[int] = []
        mass = 0.0
        for i in kept:
            # top_p = 1 cuts nothing, though in floating point the mass is whole before the last tiny weights are in
            if nucleus and self.top_p < 1 and mass >= self.top_p * total:
                break
            nucleus.append(i)
            mass += weights[i]
        filtered = 0 < self.top_k < len(logits) or self.top_p < 1 or self.min_p > 0
        walk = nucleus if filtered else sorted(nucleus)
        return [(i, weights[i] / mass) for i in walk]

    def interval(self, logits: list[float], token: int) -> tuple[float, float] | None:
        """The uniform numbers that give `token`; None when it is filtered out."""
        below = 0.0
        for i, probability in self.distribution(logits):
            if i == token:
                return below, below + probability
            below += probability
        return None

    def near(self) -> list[Filters]:
        """Itself and what float32 may make of it at a border."""
        eps = 1e-5
        return [
            Filters(
                self.temperature,
                self.top_k,
                min(1.0, self.top_p * p) if self.top_p < 1 else 1.0,
                self.min_p * m,
            )
            for p in (1, 1 - eps, 1 + eps)
            for m in (1, 1 - eps)
        ]

    def allows(self, logits: list[float], token: int, uniform: float, eps: float = 1e-5) -> bool:
        found = (filters.interval(logits, token) for filters in self.near())
        return any(i is not None and i[0] - eps <= uniform <= i[1] + eps for i in found)


def sequence(
    number: int, *, prompt: tuple[int, ...] = (1,), output: tuple[int, ...] = (), **params: object
) -> Sequence:
    request = Request(id=str(number), prompt=prompt, params=SamplingParams(**params))  # pyright: ignore[reportArgumentType]
    seq = sequence_of(number, request)
    seq.tokens.extend(output)
    return seq
