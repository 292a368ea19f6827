"""The gate: scores, group-limited top-k with bias, and the routing weights, one program a token.

The product with the gate's weight stays torch's: an fp32 matrix product of a few rows, which its library splits along
the hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ..operations import RoutingSpec
from .launch import launch, power_of_two

_METHODS = {"greedy": 0, "group_max": 1, "group_top2": 2}
_BARRED: tl.constexpr = tl.constexpr(float("-inf"))
_NOT_A_NUMBER: tl.constexpr = tl.constexpr(-3.0e38)


@triton.jit
def moe_gate_kernel(
    logits, bias, weights, indices, scale,
    EXPERTS: tl.constexpr, GROUPS: tl.constexpr, TOP_K: tl.constexpr, TOP_GROUPS: tl.constexpr, METHOD: tl.constexpr,
    SOFTMAX: tl.constexpr, NORMALISE: tl.constexpr, BIASED: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A token's experts lie as [groups, members of a group], so that groups of any size need no power of two."""
    SIZE: tl.constexpr = EXPERTS // GROUPS
    token = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, BLOCK_GROUPS)
    members = tl.arange(0, BLOCK_SIZE)
    expert = groups[:, None] * SIZE + members[None, :]
    inside = (groups < GROUPS)[:, None] & (members < SIZE)[None, :]
    logit = tl.load(logits + token * EXPERTS + expert, mask=inside, other=_BARRED)
    if SOFTMAX:
        raised = tl.exp(logit - tl.max(tl.max(logit, axis=1), axis=0))
        score = raised / tl.sum(tl.sum(raised, axis=1), axis=0)
    else:
        score = 1.0 / (1.0 + tl.exp(-logit))
    choice = score
    if BIASED:
        choice += tl.load(bias + expert, mask=inside, other=0.0)
    # What is not a number loses to all that is, but not to what is barred: an index stays one of an expert.
    choice = tl.where(choice != choice, _NOT_A_NUMBER, choice)  # noqa: PLR0124
    choice = tl.where(inside, choice, _BARRED)
    if METHOD != 0 and TOP_GROUPS < GROUPS:
        best = tl.max(choice, axis=1)
        if METHOD == 2:
            first = tl.argmax(choice, axis=1)
            best += tl.max(tl.where(members[None, :] == first[:, None], _BARRED, choice), axis=1)
        kept = groups < 0
        for _ in tl.static_range(TOP_GROUPS):
            taken = groups == tl.argmax(best, axis=0)
            kept = kept | taken
            best = tl.where(taken, _BARRED, best)
        choice = tl.where(kept[:, None], choice, _BARRED)
    BLOCK: tl.constexpr = BLOCK_GROUPS * BLOCK_SIZE
    flat = tl.reshape(choice, [BLOCK])
    scores = tl.reshape(score, [BLOCK])
    place = tl.arange(0, BLOCK)
    rank = tl.arange(0, BLOCK_K)
    chosen = tl.zeros([BLOCK_K], tl.int64)
    weight = tl.zeros([BLOCK_K], tl.float32)
    for k in tl.static_range(TOP_K):
        top = tl.argmax(flat, axis=0)
        value = tl.sum(tl.where(place == top, scores, 0.0), axis=0)
        chosen = tl.where(rank == k, ((top // BLOCK_SIZE) * SIZE + top % BLOCK_SIZE).to(tl.int64), chosen)
        weight = tl.where(rank == k, value, weight)
        flat = tl.where(place == top, _BARRED, flat)
    if NORMALISE:
        weight = weight / (tl.sum(weight, axis=0) + 1e-20)
    tl.store(weights + token * TOP_K + rank, weight * scale, mask=rank < TOP_K)
    tl.store(indices + token * TOP_K + rank, chosen, mask=rank < TOP_K)


def moe_gate(x: Tensor, weight: Tensor, bias: Tensor | None, spec: RoutingSpec) -> tuple[Tensor, Tensor]:
    logits = F.linear(x.float(), weight)
    tokens, experts = logits.shape
    groups = 1 if spec.method == "greedy" else spec.groups
    weights = torch.empty(tokens, spec.top_k, dtype=torch.float32, device=x.device)
    indices = torch.empty(tokens, spec.top_k, dtype=torch.int64, device=x.device)
    launch(
        moe_gate_kernel,
        (tokens,),
        {
            "logits": logits,
            "bias": logits if bias is None else bias,
            "weights": weights,
            "indices": indices,
            "scale": float(spec.scale),
        },
        {
            "EXPERTS": experts,
            "GROUPS": groups,
            "TOP_K": spec.top_k,
            "TOP_GROUPS": spec.top_groups,
            "METHOD": _METHODS[spec.method],
            "SOFTMAX": spec.scoring == "softmax",
            "NORMALISE": spec.normalise,
            "BIASED": bias is not None,
            "BLOCK_GROUPS": power_of_two(groups),
            "BLOCK_SIZE": power_of_two(experts // groups),
            "BLOCK_K": power_of_two(spec.top_k),
        },
        warps=1,
    )
    return weights, indices
