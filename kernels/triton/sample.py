"""Sampling without sorting the vocabulary: top-k, min-p, top-p and the draw are searches for a threshold.

Everything that the reference decides on the descending order of a row is a question to one falling function: how many
values, or how much weight, lie at or above a threshold. Logits become integers of the same order, and a threshold is
found four bits at a time. Where values tie, the lower id counts as the likelier, as in the reference: the threshold's
own equals are then counted off in the order of their ids. The function's values are summed in fp32 within a block and
in fp64 across blocks, always in the same sequence, so a row gets the same token in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..operations import GREEDY_BELOW
from ..reference.sample import not_finite
from .launch import launch, power_of_two

_GREEDY_BELOW: tl.constexpr = tl.constexpr(GREEDY_BELOW)
_TINY: tl.constexpr = tl.constexpr(torch.finfo(torch.float32).tiny)
_BUT_SIGN: tl.constexpr = tl.constexpr(0x7FFFFFFF)
_LOWEST: tl.constexpr = tl.constexpr(-(1 << 31))
_DIGITS: tl.constexpr = tl.constexpr(16)  # thresholds a pass; 8 passes find 32 bits


@triton.jit
def _values(row, start, V: tl.constexpr, BLOCK: tl.constexpr):
    place = start + tl.arange(0, BLOCK)
    # Adding zero makes -0 and 0 one value.
    return tl.load(row + place, mask=place < V, other=float("-inf")) + 0.0


@triton.jit
def _keys(values):
    """Signed integers in the order of the values: below zero, the bits of a float count the other way."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ _BUT_SIGN, bits)


@triton.jit
def _weights(values, highest, temperature, least):
    """Of the largest value 1; what weighs less than `least` weighs nothing and is not there."""
    weight = tl.exp((values - highest) / temperature)
    return tl.where(weight >= least, weight, 0.0)


@triton.jit
def _at_least(row, keys, highest, temperature, least, counted, V: tl.constexpr, BLOCK: tl.constexpr):
    """How much weight, or if `counted` how many values that weigh anything, lie at or above each of 16 keys."""
    total = tl.zeros([_DIGITS], tl.float64)
    for start in range(0, V, BLOCK):
        values = _values(row, start, V, BLOCK)
        weight = _weights(values, highest, temperature, least)
        weight = tl.where(counted & (weight > 0.0), 1.0, weight)
        above = _keys(values)[:, None] >= keys[None, :]
        total += tl.sum(tl.where(above, weight[:, None], 0.0), axis=0).to(tl.float64)
    return total


@triton.jit
def _search(
    row, highest, temperature, least, counted, bound, inclusive, V: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The largest key at or above which the sum is more than `bound`, or, if inclusive, at least `bound`."""
    digit = tl.arange(0, _DIGITS)
    found = tl.zeros([], tl.int64) + _LOWEST
    for turn in range(8):
        shift = 28 - 4 * turn
        keys = found + (digit.to(tl.int64) << shift)
        total = _at_least(row, keys.to(tl.int32), highest, temperature, least, counted, V, BLOCK)
        enough = tl.where(inclusive, total >= bound, total > bound)
        best = tl.max(tl.where(enough, digit, 0), axis=0)
        found += best.to(tl.int64) << shift
    return found.to(tl.int32)


@triton.jit
def _around(row, key, highest, temperature, least, V: tl.constexpr, BLOCK: tl.constexpr):
    """Of the values above a key: how many weigh anything and how much; of its equals: how many, and what one weighs."""
    above = tl.zeros([], tl.int32)
    mass = tl.zeros([], tl.float64)
    equal = tl.zeros([], tl.int32)
    each = tl.zeros([], tl.float32)
    for start in range(0, V, BLOCK):
        values = _values(row, start, V, BLOCK)
        weight = _weights(values, highest, temperature, least)
        keys = _keys(values)
        over = keys > key
        above += tl.sum((over & (weight > 0.0)).to(tl.int32), axis=0)
        mass += tl.sum(tl.where(over, weight, 0.0), axis=0).to(tl.float64)
        same = keys == key
        equal += tl.sum((same & (weight > 0.0)).to(tl.int32), axis=0)
        each = tl.maximum(each, tl.max(tl.where(same, weight, 0.0), axis=0))
    return above, mass, equal, each.to(tl.float64)


@triton.jit
def sample_kernel(
    logits, uniform, temperatures, top_ks, top_ps, min_ps, out,
    V: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SEARCH: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    row = logits + line.to(tl.int64) * V
    temperature = tl.load(temperatures + line)
    step = tl.arange(0, BLOCK)
    highest = tl.full([], float("-inf"), tl.float32)
    first = tl.zeros([], tl.int32)
    for start in range(0, V, BLOCK):
        values = _values(row, start, V, BLOCK)
        best = tl.max(values, axis=0)
        if best > highest:
            first = start + tl.argmax(values, axis=0)
            highest = best
    if temperature < _GREEDY_BELOW:
        tl.store(out + line, first.to(tl.int64))
        return
    top_k = tl.load(top_ks + line)
    top_p = tl.load(top_ps + line)
    least = tl.maximum(tl.load(min_ps + line), _TINY)
    chance = tl.load(uniform + line)
    total = tl.zeros([], tl.float64)
    there = tl.zeros([], tl.int32)
    lowest = tl.zeros([], tl.int32) + _BUT_SIGN  # the least key of what is kept
    for start in range(0, V, BLOCK):
        values = _values(row, start, V, BLOCK)
        weight = _weights(values, highest, temperature, least)
        total += tl.sum(weight, axis=0).to(tl.float64)
        there += tl.sum((weight > 0.0).to(tl.int32), axis=0)
        lowest = tl.minimum(lowest, tl.min(tl.where(weight > 0.0, _keys(values), _BUT_SIGN), axis=0))
    if (top_k >= V) & (top_p >= 1.0) & (least <= _TINY):
        # No filter: the inverse of the cumulative distribution in the order of the ids.
        target = chance * total
        below = tl.zeros([], tl.float64)
        chosen = tl.full([], V, tl.int32)
        last = tl.zeros([], tl.int32)
        for start in range(0, V, BLOCK):
            weight = _weights(_values(row, start, V, BLOCK), highest, temperature, least).to(tl.float64)
            reached = below + tl.cumsum(weight, axis=0)
            passed = (reached > target) & (weight > 0.0)
            chosen = tl.minimum(chosen, tl.min(tl.where(passed, start + step, V), axis=0))
            last = tl.maximum(last, tl.max(tl.where(weight > 0.0, start + step, 0), axis=0))
            below += tl.sum(weight, axis=0)
        # Summed in another order, the whole can be a little above its parts' sum: then it is the last that weighs.
        tl.store(out + line, tl.where(chosen < V, chosen, last).to(tl.int64))
        return
    kept = tl.minimum(there, top_k.to(tl.int32))
    if kept < there:
        key = _search(row, highest, temperature, least, True, kept.to(tl.float64), True, V, BLOCK_SEARCH)
        above, mass, _, each = _around(row, key, highest, temperature, least, V, BLOCK)
        total = mass + (kept - above).to(tl.float64) * each
        lowest = key
    # Sums of one row in different sequences differ in their last bits, so a search may fall short of a bound near the
    # whole by a hair, and end below what is kept: hence the maximum with `lowest`.
    if top_p < 1.0:
        # Of what is left, the fewest that reach the share; at least one.
        share = top_p * total
        key = tl.maximum(
            _search(row, highest, temperature, least, False, share, True, V, BLOCK_SEARCH), lowest
        )
        above, mass, equal, each = _around(row, key, highest, temperature, least, V, BLOCK)
        needed = tl.ceil((share - mass) / each).to(tl.int32)
        needed = above + tl.minimum(tl.maximum(needed, 1), tl.maximum(equal, 1))
        if needed < kept:
            kept = needed
            lowest = key
            total = mass + (kept - above).to(tl.float64) * each
    target = chance * total
    key = tl.maximum(_search(row, highest, temperature, least, False, target, False, V, BLOCK_SEARCH), lowest)
    above, mass, equal, each = _around(row, key, highest, temperature, least, V, BLOCK)
    nth = tl.floor((target - mass) / each).to(tl.int32)
    nth = tl.maximum(tl.minimum(nth, tl.minimum(equal, kept - above) - 1), 0)
    seen = tl.zeros([], tl.int32)
    chosen = tl.zeros([], tl.int32)
    for start in range(0, V, BLOCK):
        same = (_keys(_values(row, start, V, BLOCK)) == key).to(tl.int32)
        order = seen + tl.cumsum(same, axis=0) - 1
        hit = (same == 1) & (order == nth) & (start + step < V)
        chosen += tl.sum(tl.where(hit, start + step, 0), axis=0)
        seen += tl.sum(same, axis=0)
    tl.store(out + line, chosen.to(tl.int64))


class SamplePlan(NamedTuple):
    temperature: Tensor  # [S] fp32
    top_k: Tensor  # [S] int64, at most V
    top_p: Tensor  # [S] fp64
    min_p: Tensor  # [S] fp32


class TritonSample:
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
        def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(device)

        limits = [k if 0 < k < vocab_size else vocab_size for k in top_k]
        return SamplePlan(
            column(temperature, torch.float32),
            column(limits, torch.int64),
            column(top_p, torch.float64),
            column(min_p, torch.float32),
        )

    def __call__(self, logits: Tensor, plan: SamplePlan, uniform: Tensor) -> Tensor:
        rows, vocab_size = logits.shape
        out = torch.empty(rows, dtype=torch.int64, device=logits.device)
        block = min(4096, power_of_two(vocab_size))
        launch(
            sample_kernel,
            (rows,),
            {
                "logits": logits.contiguous(),
                "uniform": uniform.to(logits.device),
                "temperatures": plan.temperature,
                "top_ks": plan.top_k,
                "top_ps": plan.top_p,
                "min_ps": plan.min_p,
                "out": out,
            },
            {"V": vocab_size, "BLOCK": block, "BLOCK_SEARCH": min(1024, block)},
            warps=8,
        )
        return out

    def not_finite(self, logits: Tensor) -> list[int]:
        return not_finite(logits)
