"""What changes logits before the draw: barred tokens, logit_bias and the three penalties.

Definitions: presence and frequency as OpenAI's API reference states them (mu - count * frequency - (count > 0) *
presence, counts over generated tokens); repetition after Keskar et al., "CTRL" (arXiv 1909.05858), section 4.1, in the
form that Hugging Face and vLLM use: over prompt and output, a positive logit is divided and a negative one multiplied.
Order as in vLLM: bars, bias, repetition, then frequency and presence.

A row's edits touch the tokens it has seen, not the vocabulary: they are lists, applied by gather and scatter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..sequence import SamplingParams


class Penalties(NamedTuple):
    """What penalties do to one row: each token once, what is subtracted from its logit, and the repetition factor."""

    ids: NDArray[np.int64]
    subtract: NDArray[np.float32]
    repetition: float


class PenaltyCounts:
    """One sequence's penalised tokens. Grows by new tokens; drafts never enter it, whatever becomes of them."""

    __slots__ = (
        "_counted",
        "_frequency",
        "_ids",
        "_output",
        "_place",
        "_presence",
        "_repetition",
        "_subtract",
    )

    def __init__(self, params: SamplingParams, prompt: Sequence[int]) -> None:
        self._repetition = params.repetition_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._ids = np.unique(np.asarray(prompt if self._repetition != 1 else (), dtype=np.int64))
        self._subtract = np.zeros(len(self._ids), dtype=np.float32)
        self._place = {token: place for place, token in enumerate(self._ids.tolist())}
        self._output: dict[int, int] = {}  # times generated
        self._counted = len(prompt)

    def count(self, tokens: Sequence[int]) -> None:
        """Take in what `tokens`, prompt and output, gained since the last call: they never shrink, even preempted."""
        if len(tokens) < self._counted:
            raise ValueError(f"{self._counted} tokens were counted and now the sequence has {len(tokens)}")
        for token in tokens[self._counted :]:
            times = self._output[token] = self._output.get(token, 0) + 1
            place = self._place.setdefault(token, len(self._place))
            self._make_room(place)
            self._ids[place] = token
            self._subtract[place] = times * self._frequency + self._presence
        self._counted = len(tokens)

    def _make_room(self, place: int) -> None:
        if place >= len(self._ids):
            room = np.zeros(max(16, len(self._ids)), dtype=np.int64)
            self._ids = np.concatenate((self._ids, room))
            self._subtract = np.concatenate((self._subtract, room.astype(np.float32)))

    def after(self, drafts: Sequence[int]) -> Penalties:
        """As they stand, and as they would once `drafts` came out too."""
        known = len(self._place)
        if not drafts:
            return Penalties(self._ids[:known], self._subtract[:known], self._repetition)
        times = Counter(drafts)
        fresh = [token for token in times if token not in self._place]
        ids = np.concatenate((self._ids[:known], np.array(fresh, dtype=np.int64)))
        subtract = np.concatenate((self._subtract[:known], np.zeros(len(fresh), dtype=np.float32)))
        place = {token: known + at for at, token in enumerate(fresh)}
        for token, more in times.items():
            count = self._output.get(token, 0) + more
            subtract[self._place.get(token, place.get(token))] = count * self._frequency + self._presence
        return Penalties(ids, subtract, self._repetition)


def penalise(logits: Tensor, rows: Sequence[int], counts: Sequence[Penalties]) -> None:
    """Apply each row's penalties to logits [S, V], contiguous, in place."""
    sizes = [len(c.ids) for c in counts]
    if not any(sizes):
        return
    places = _flat(rows, [c.ids for c in counts], logits.shape[1], logits.device)
    subtract = torch.from_numpy(np.concatenate([c.subtract for c in counts])).to(logits.device)
    flat = logits.view(-1)
    seen = flat.index_select(0, places)
    if any(c.repetition != 1 for c in counts):
        factors = np.array([c.repetition for c in counts], dtype=np.float32)
        repetition = torch.from_numpy(np.repeat(factors, sizes)).to(logits.device)
        seen = seen.clamp(min=0) / repetition + seen.clamp(max=0) * repetition
    flat.scatter_(0, places, seen - subtract)


class Bias:
    """The logit_bias of some rows of a batch, laid out once for as long as the batch stays the same."""

    def __init__(
        self, rows: Sequence[int], biases: Sequence[dict[int, float]], vocab_size: int, device: torch.device
    ) -> None:
        ids = [np.fromiter(bias, dtype=np.int64) for bias in biases]
        self._places = _flat(rows, ids, vocab_size, device)
        self._values = torch.tensor([v for bias in biases for v in bias.values()], device=device)

    def add_to(self, logits: Tensor) -> None:
        """OpenAI: the bias is added to the logits before sampling. logits [S, V], contiguous, in place."""
        logits.view(-1)[self._places] += self._values


def bar(logits: Tensor, rows: Sequence[int], ids: Sequence[NDArray[np.int64]]) -> None:
    """Give each row's `ids` no chance. logits [S, V], contiguous, in place."""
    logits.view(-1)[_flat(rows, ids, logits.shape[1], logits.device)] = -torch.inf


def _flat(
    rows: Sequence[int], ids: Sequence[NDArray[np.int64]], vocab_size: int, device: torch.device
) -> Tensor:
    """Where each row's ids stand in logits.view(-1)."""
    starts = np.repeat(np.asarray(rows, dtype=np.int64) * vocab_size, [len(i) for i in ids])
    return torch.from_numpy(np.concatenate(ids) + starts).to(device)
