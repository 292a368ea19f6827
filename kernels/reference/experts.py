"""The gate and the experts in torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..operations import Buffers, RoutingSpec
from ..quantise import Quantised, dequantise, quantise
from .linear import PackedMlp, TorchGatedMlp, pack_weight, packed_linear
from .placed import empty, silu

# Running every expert on every token takes two products and no sorting; the sorted form takes two an expert that is
# chosen. Measured on one core in bf16: with 8 experts of 96 x 192, top 2, the dense form takes a half to a fifth of the
# time up to 128 tokens, since a call costs more than the work in it. With 16 experts of 256 x 512, top 4, a decode step
# of the whole model differs by less than a tenth either way, and prefill is a fifth faster sorted.
_DENSE_EXPERTS_A_CHOICE = 4  # most experts for one of top k
_DENSE_WEIGHTS = 1 << 17  # most weights of one expert
_DENSE_TOKENS = 256  # past it, laying the weights out anew for the sorted form costs less than it saves


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


class Matrices(Protocol):
    """One weight of each expert, [N, K]."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Tensor: ...


class SortedExperts(NamedTuple):
    gate_up: Matrices  # E of [2I, H]
    down: Matrices  # E of [H, I]
    intermediate: int
    shared: PackedMlp | None


class QuantisedExperts(NamedTuple):
    """Experts in fewer bits; the shared one is cut into experts of the same size that all tokens take."""

    weights: SortedExperts  # of all, the shared one's parts last
    experts: int  # E
    shared: int


class QuantisedMatrices:
    """Weights in fewer bits, each turned into its dtype anew when it is asked for: exact, and slow."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._kept: list[tuple[Quantised, torch.dtype, int]] = []  # with the columns

    def add(self, weight: Tensor) -> None:
        """weight [.., N, K], whose matrices are quantised one by one."""
        self._kept.append((quantise(weight, self._form), weight.dtype, weight.shape[-1]))

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, number: int, /) -> Tensor:
        kept, dtype, columns = self._kept[number]
        return dequantise(kept, self._form, columns).to(dtype).view(-1, columns)


class TorchMoeExperts:
    """`form`: how the experts are kept: `stored`, or in fewer bits as quantise.py has them."""

    def __init__(self, buffers: Buffers, form: str = "stored") -> None:
        self._buffers = buffers
        self._form = form
        self._gated = TorchGatedMlp(buffers)

    def pack(
        self,
        experts: Iterable[tuple[Tensor, Tensor]],
        count: int,
        shared: tuple[Tensor, Tensor] | None,
        top_k: int,
    ) -> DenseExperts | SortedExperts | QuantisedExperts:
        if self._form != "stored":
            return _pack_quantised(experts, count, shared, self._form)
        experts = iter(experts)
        first = next(experts)
        weights = first[0].numel() + first[1].numel()
        if count <= _DENSE_EXPERTS_A_CHOICE * top_k and weights <= _DENSE_WEIGHTS:
            return _pack_dense([first, *experts], shared)
        gate_ups: list[Tensor] = []
        downs: list[Tensor] = []
        for gate_up, down in itertools.chain((first,), experts):
            gate_ups.append(pack_weight(gate_up.flatten(0, 1)))
            downs.append(pack_weight(down))
        own = None if shared is None else self._gated.pack(*shared)
        return SortedExperts(gate_ups, downs, first[1].shape[1], own)

    def __call__(
        self,
        x: Tensor,
        weights: Tensor,
        indices: Tensor,
        packed: DenseExperts | SortedExperts | QuantisedExperts,
    ) -> Tensor:
        buffers = self._buffers
        if isinstance(packed, QuantisedExperts):
            return _run_sorted(x, *_take_shared(weights, indices, packed), packed.weights, buffers)
        if isinstance(packed, DenseExperts):
            if x.shape[0] <= _DENSE_TOKENS:
                return _run_dense(x, weights, indices, packed, buffers)
            return _run_sorted(x, *_take_shared(weights, indices, packed), _unpack(packed), buffers)
        out = _run_sorted(x, weights, indices, packed, buffers)
        return out if packed.shared is None else out.add_(self._gated(x, packed.shared))


def _pack_dense(experts: list[tuple[Tensor, Tensor]], shared: tuple[Tensor, Tensor] | None) -> DenseExperts:
    gate_ups, downs = (list(part) for part in zip(*experts, strict=True))
    intermediate = downs[0].shape[1]
    if shared is not None:
        gate_ups += shared[0].unflatten(1, (-1, intermediate)).unbind(1)
        downs += shared[1].split(intermediate, dim=1)
    return DenseExperts(
        gate_up=pack_weight(torch.cat([each.flatten(0, 1) for each in gate_ups])),
        down=pack_weight(torch.cat(downs, dim=1)),
        experts=len(experts),
        shared=len(downs) - len(experts),
        intermediate=intermediate,
    )


def _pack_quantised(
    experts: Iterable[tuple[Tensor, Tensor]], count: int, shared: tuple[Tensor, Tensor] | None, form: str
) -> QuantisedExperts:
    gate_ups, downs = QuantisedMatrices(form), QuantisedMatrices(form)
    inner = 0
    for gate_up, down in experts:
        inner = down.shape[1]
        gate_ups.add(gate_up)
        downs.add(down)
    if shared is not None:
        for gate_up, down in zip(shared[0].split(inner, dim=1), shared[1].split(inner, dim=1), strict=True):
            gate_ups.add(gate_up)
            downs.add(down)
    return QuantisedExperts(SortedExperts(gate_ups, downs, inner, None), count, len(downs) - count)


def _run_dense(x: Tensor, weights: Tensor, indices: Tensor, packed: DenseExperts, buffers: Buffers) -> Tensor:
    tokens, total = x.shape[0], packed.experts + packed.shared
    share = x.new_zeros(tokens, total)
    share.scatter_(1, indices, weights.to(x.dtype))
    share[:, packed.experts :] = 1
    both = packed_linear(x, packed.gate_up, None, buffers)
    gate, up = both.view(tokens, total, 2, packed.intermediate).unbind(2)
    active = silu(gate, buffers).mul_(up).mul_(share.unsqueeze(-1))
    return packed_linear(active.flatten(1), packed.down, None, buffers)


def _unpack(packed: DenseExperts) -> SortedExperts:
    one, two = (weight.to_dense() if weight.is_mkldnn else weight for weight in (packed.gate_up, packed.down))
    total = packed.experts + packed.shared
    return SortedExperts(one.chunk(total), two.chunk(total, dim=1), packed.intermediate, None)


def _take_shared(
    weights: Tensor, indices: Tensor, packed: DenseExperts | QuantisedExperts
) -> tuple[Tensor, Tensor]:
    """Routes every token to the parts of the shared expert too."""
    tokens = weights.shape[0]
    parts = torch.arange(packed.experts, packed.experts + packed.shared, device=indices.device)
    return (
        torch.cat((weights, weights.new_ones(tokens, packed.shared)), dim=1),
        torch.cat((indices, parts.expand(tokens, -1)), dim=1),
    )


def _run_sorted(
    x: Tensor, weights: Tensor, indices: Tensor, packed: SortedExperts, buffers: Buffers
) -> Tensor:
    """The chosen (token, expert) pairs sorted by expert, one pair of products an expert that has any."""

    def each(inputs: Tensor, experts: Matrices, width: int) -> Tensor:
        parts = inputs.split(sizes)
        made = [packed_linear(part, experts[n], None, buffers) for part, n in zip(parts, used, strict=True)]
        return torch.cat(made, out=buffers.take((pairs, width), x.dtype))

    tokens, top_k = indices.shape
    pairs, hidden = tokens * top_k, x.shape[1]
    chosen = indices.flatten()
    order = chosen.argsort()
    counts = torch.bincount(chosen, minlength=len(packed.gate_up)).tolist()
    used = [number for number, count in enumerate(counts) if count]
    sizes = [counts[number] for number in used]
    inputs = torch.index_select(x, 0, order // top_k, out=buffers.take((pairs, hidden), x.dtype))
    gate, up = each(inputs, packed.gate_up, 2 * packed.intermediate).chunk(2, dim=-1)
    active = silu(gate, buffers).mul_(up).mul_(weights.flatten().index_select(0, order).unsqueeze(1))
    second = each(active, packed.down, hidden)
    paired = empty((pairs, hidden), x, buffers).index_copy_(0, order, second)
    return torch.sum(paired.view(tokens, top_k, -1), 1, out=buffers.take((tokens, hidden), x.dtype))
