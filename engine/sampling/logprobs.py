"""Log-probabilities as clients ask for them: of the model's own distribution, before anything was done to it.

vLLM's default (`logprobs_mode = raw_logprobs`): natural log-softmax of the raw logits, before bars, bias, penalties,
temperature and truncation. So they may be taken before the draw; only the chosen token's is looked up after it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..sequence import TokenLogprob
from .select import top_ids


class RawLogprobs:
    """The raw distribution of the rows that asked for it: `best[i]` alternatives for row `rows[i]` of logits [S, V]."""

    def __init__(self, logits: Tensor, rows: Tensor, best: Sequence[int]) -> None:
        raw = logits[rows]
        self._rows = rows
        self._best = [min(n, logits.shape[1]) for n in best]
        self._logprobs = raw.log_softmax(dim=-1)
        widest = max(self._best)
        self._top = top_ids(raw, widest) if widest else None

    def of(self, chosen: Tensor) -> list[TokenLogprob]:
        """chosen [S] int64: one record for each of the rows, in their order."""
        tokens = chosen[self._rows]
        values = self._logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        if self._top is None:
            return [TokenLogprob(t, v) for t, v in zip(tokens.tolist(), values, strict=True)]
        top_values = self._logprobs.gather(1, self._top).tolist()
        return [
            TokenLogprob(token, value, tuple(zip(ids[:n], best[:n], strict=True)))
            for token, value, ids, best, n in zip(
                tokens.tolist(), values, self._top.tolist(), top_values, self._best, strict=True
            )
        ]


def nonfinite(logits: Tensor) -> dict[int, str]:
    """Rows of logits [S, V] that hold NaN or an infinity, and what they hold.

    A sum is finite unless a term is not (or it overflows), so one reduction clears a sound batch.
    """
    suspect = (~logits.sum(dim=-1).isfinite()).nonzero()[:, 0].tolist()
    found: dict[int, str] = {}
    for row in suspect:
        bad = (~logits[row].isfinite()).nonzero()[:, 0]
        if len(bad):
            nan = int(logits[row].isnan().sum())
            found[row] = (
                f"the model's logits are not finite: {nan} NaN and {len(bad) - nan} infinite of {logits.shape[1]}, "
                f"the first at token {int(bad[0])}"
            )
    return found
