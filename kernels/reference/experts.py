"""The gate and the experts in torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..operations import RoutingSpec
from .linear import PackedMlp, TorchGatedMlp, pack_weight, packed_linear

# Running every expert on every token is two products and no sorting. Measured on one core (16 experts of 256, top 4,
# hidden 512, bf16): 178 us against 273 for the sorted loop at 2 tokens, 311 against 666 at 8, even at 32. So it is the
# form where the experts are few for their top k; the sorted loop takes over where its fewer products outweigh laying
# the weights out anew.
_DENSE_EXPERTS_A_CHOICE = 4
_DENSE_TOKENS = 224


def moe_gate(x: Tensor, weight: Tensor, bias: Tensor | None, spec: RoutingSpec) -> tuple[Tensor, Tensor]:
    logits = F.linear(x.float(), weight)
    scores = logits.sigmoid() if spec.scoring == "sigmoid" else logits.softmax(-1)
    choice = scores if bias is None else scores + bias
    if spec.method != "greedy" and spec.top_groups < spec.groups:
        grouped = choice.unflatten(-1, (spec.groups, -1))
        if spec.method == "group_max":
            group_scores = grouped.amax(-1)
        else:
            group_scores = grouped.topk(2, dim=-1, sorted=False).values.sum(-1)
        kept = group_scores.topk(spec.top_groups, dim=-1, sorted=False).indices
        barred = torch.ones_like(group_scores, dtype=torch.bool).scatter_(-1, kept, False)
        choice = grouped.masked_fill(barred.unsqueeze(-1), -math.inf).flatten(-2)
    indices = choice.topk(spec.top_k, dim=-1, sorted=False).indices
    weights = scores.gather(-1, indices)
    if spec.normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    if spec.scale != 1.0:
        weights = weights * spec.scale
    return weights, indices


class DenseExperts(NamedTuple):
    """All experts in one pair of weights; the shared one is cut into experts of the same size that all tokens take."""

    gate_up: Tensor  # [(E + shared) * 2 * I, H]
    down: Tensor  # [H, (E + shared) * I]
    experts: int  # E
    shared: int
    intermediate: int


class SortedExperts(NamedTuple):
    gate_up: Sequence[Tensor]  # E of [2I, H]
    down: Sequence[Tensor]  # E of [H, I]
    shared: PackedMlp | None


class TorchMoeExperts:
    def pack(
        self,
        experts: Iterable[tuple[Tensor, Tensor]],
        count: int,
        shared: tuple[Tensor, Tensor] | None,
        top_k: int,
    ) -> DenseExperts | SortedExperts:
        if count <= _DENSE_EXPERTS_A_CHOICE * top_k:
            return _pack_dense(experts, count, shared)
        gate_ups: list[Tensor] = []
        downs: list[Tensor] = []
        for gate_up, down in experts:
            gate_ups.append(pack_weight(gate_up.flatten(0, 1)))
            downs.append(pack_weight(down))
        return SortedExperts(gate_ups, downs, None if shared is None else TorchGatedMlp().pack(*shared))

    def __call__(
        self, x: Tensor, weights: Tensor, indices: Tensor, packed: DenseExperts | SortedExperts
    ) -> Tensor:
        if isinstance(packed, DenseExperts):
            if x.shape[0] <= _DENSE_TOKENS:
                return _run_dense(x, weights, indices, packed)
            return _run_sorted(x, *_take_shared(weights, indices, packed), _unpack(packed))
        out = _run_sorted(x, weights, indices, packed)
        return out if packed.shared is None else out.add_(TorchGatedMlp()(x, packed.shared))


def _pack_dense(
    experts: Iterable[tuple[Tensor, Tensor]], count: int, shared: tuple[Tensor, Tensor] | None
) -> DenseExperts:
    """Fills the final layout an expert at a time: at most one copy of the layer lies beside the packed one."""
    each = iter(experts)
    first = next(each)
    hidden, intermediate = first[1].shape
    parts = 0 if shared is None else shared[1].shape[1] // intermediate
    gate_ups = first[0].new_empty(count + parts, 2, intermediate, hidden)
    downs = first[1].new_empty(hidden, count + parts, intermediate)
    for number, (gate_up, down) in enumerate(itertools.chain((first,), each)):
        gate_ups[number] = gate_up
        downs[:, number] = down
    if shared is not None:
        gate_ups[count:] = shared[0].unflatten(1, (parts, intermediate)).transpose(0, 1)
        downs[:, count:] = shared[1].unflatten(1, (parts, intermediate))
    one = pack_weight(gate_ups.flatten(0, 2))
    del gate_ups
    return DenseExperts(one, pack_weight(downs.flatten(1, 2)), count, parts, intermediate)


def _run_dense(x: Tensor, weights: Tensor, indices: Tensor, packed: DenseExperts) -> Tensor:
    tokens, total = x.shape[0], packed.experts + packed.shared
    share = x.new_zeros(tokens, total)
    share.scatter_(1, indices, weights.to(x.dtype))
    share[:, packed.experts :] = 1
    gate, up = packed_linear(x, packed.gate_up).view(tokens, total, 2, packed.intermediate).unbind(2)
    active = F.silu(gate).mul_(up).mul_(share.unsqueeze(-1))
    return packed_linear(active.flatten(1), packed.down)


def _unpack(packed: DenseExperts) -> SortedExperts:
    one, two = (weight.to_dense() if weight.is_mkldnn else weight for weight in (packed.gate_up, packed.down))
    total = packed.experts + packed.shared
    return SortedExperts(one.chunk(total), two.chunk(total, dim=1), None)


def _take_shared(weights: Tensor, indices: Tensor, packed: DenseExperts) -> tuple[Tensor, Tensor]:
    """Routes every token to the parts of the shared expert too."""
    tokens = weights.shape[0]
    parts = torch.arange(packed.experts, packed.experts + packed.shared, device=indices.device)
    return (
        torch.cat((weights, weights.new_ones(tokens, packed.shared)), dim=1),
        torch.cat((indices, parts.expand(tokens, -1)), dim=1),
    )


def _run_sorted(x: Tensor, weights: Tensor, indices: Tensor, packed: SortedExperts) -> Tensor:
    """The chosen (token, expert) pairs sorted by expert, one pair of products an expert that has any."""
    tokens, top_k = indices.shape
    chosen = indices.flatten()
    order = chosen.argsort()
    counts = torch.bincount(chosen, minlength=len(packed.gate_up)).tolist()
    used = [number for number, count in enumerate(counts) if count]
    sizes = [counts[number] for number in used]
    inputs = x.index_select(0, order // top_k).split(sizes)
    first = torch.cat([packed_linear(part, packed.gate_up[n]) for part, n in zip(inputs, used, strict=True)])
    gate, up = first.chunk(2, dim=-1)
    active = F.silu(gate).mul_(up).mul_(weights.flatten().index_select(0, order).unsqueeze(1)).split(sizes)
    second = torch.cat([packed_linear(part, packed.down[n]) for part, n in zip(active, used, strict=True)])
    pairs = torch.empty_like(second).index_copy_(0, order, second)
    return pairs.view(tokens, top_k, -1).sum(1)
