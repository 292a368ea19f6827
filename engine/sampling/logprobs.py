"""What is said about logits: log-probabilities for clients, and that they are not finite.

Log-probabilities are of the model's own distribution: natural log-softmax of the raw logits, before bars, bias,
penalties, temperature and truncation (vLLM's default, `logprobs_mode = raw_logprobs`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...kernels.reference.select import rows_at_once, top_ids
from ..sequence import TokenLogprob


def raw_logprobs(
    logits: Tensor, rows: Sequence[int], best: Sequence[int], chosen: Sequence[int]
) -> list[TokenLogprob]:
    """A record for each of `rows` of the raw logits [S, V]: its `chosen` token's and its `best` alternatives'."""
    at_once = rows_at_once(logits.shape[0], logits.shape[1], logits.device)
    records: list[TokenLogprob] = []
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        records += _records(logits[list(rows[part])], best[part], chosen[part])
    return records


def _records(raw: Tensor, best: Sequence[int], chosen: Sequence[int]) -> list[TokenLogprob]:
    # log softmax(x) = x - (max + log(sum(exp(x - max)))), and the largest probability is 1 / that sum. A softmax goes
    # row by row, which a sum over a batch does not: its last bit could depend on the batch.
    normaliser = (
        raw.amax(dim=-1, keepdim=True).double()
        - raw.softmax(dim=-1).amax(dim=-1, keepdim=True).double().log()
    )
    widest = min(max(best), raw.shape[1])
    ids = torch.cat((torch.tensor(chosen, device=raw.device)[:, None], top_ids(raw, widest)), dim=1)
    logprobs = raw.gather(1, ids).double() - normaliser
    return [
        TokenLogprob(tokens[0], values[0], tuple(zip(tokens[1 : n + 1], values[1 : n + 1], strict=True)))
        for n, tokens, values in zip(best, ids.tolist(), logprobs.tolist(), strict=True)
    ]


_HIGHEST = 1e30


def what_is_not_finite(row: Tensor) -> str:
    """Of a row's logits [V], which hold NaN or an infinity."""
    bad = (~row.isfinite()).nonzero()[:, 0]
    nan = int(row.isnan().sum())
    return (
        f"the model's logits are not finite: {nan} NaN and {len(bad) - nan} infinite of {len(row)}, "
        f"the first at token {int(bad[0])}"
    )


def overflown(logits: Tensor, rows: list[int]) -> dict[int, str]:
    """Those of `rows` whose penalties made a logit NaN, or too high to be divided by a temperature of 1e-5 yet.

    -inf is a barred token and sound.
    """
    highest = logits[rows].amax(dim=-1)  # NaN wins a maximum
    lost = (~(highest < _HIGHEST)).nonzero()[:, 0].tolist()
    return {rows[i]: "the penalties take its logits out of the numbers' range" for i in lost}
