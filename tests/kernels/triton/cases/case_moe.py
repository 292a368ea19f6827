"""The gate, the dispatch and the experts: against the reference, float64, and what a sort by hand gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from arc.kernels.quantise import dequantise, quantise
from arc.kernels.triton.routing import moe_dispatch
from torch import Tensor

from ...oracles import Spec
from .common import DEVICE, DTYPES, near, offered, randn

SPECS = [
    Spec(),
    Spec(top_groups=4),
    Spec(top_groups=1, normalise=False),
    Spec(scoring="softmax", method="group_max"),
    Spec(scoring="softmax", method="greedy", groups=1, top_groups=1, normalise=False, scale=1.0),
    Spec(method="greedy", groups=4, top_groups=1),  # greedy knows no groups, whatever the config names
    Spec(experts=6, groups=1, top_groups=1, method="greedy", top_k=6),
    Spec(experts=256, groups=8, top_groups=4, top_k=8),  # DeepSeek-V3
    Spec(experts=160, groups=8, top_groups=3, top_k=6, scoring="softmax", method="group_max"),  # DeepSeek-V2
    Spec(experts=1, groups=1, top_groups=1, top_k=1, method="greedy"),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_the_gate_chooses_as_the_reference(spec, biased):
    op, reference = offered("moe_gate", torch.float32)
    x, weight = randn(9, 16), randn(spec.experts, 16)
    # Far below zero: a group that is barred must lose to it all the same.
    bias = randn(spec.experts) - 2 if biased else None
    weights, indices = op(x, weight, bias, spec)
    want_weights, want_indices = reference(x, weight, bias, spec)
    assert (weights.dtype, indices.dtype) == (torch.float32, torch.int64)
    order, want_order = indices.argsort(-1), want_indices.argsort(-1)
    assert torch.equal(indices.gather(-1, order), want_indices.gather(-1, want_order))
    near(weights.gather(-1, order), want_weights.gather(-1, want_order), torch.float32)


def test_the_gate_chooses_real_experts_even_where_scores_are_no_numbers():
    op, _ = offered("moe_gate", torch.float32)
    spec = Spec(experts=12, groups=3, top_groups=2)
    x, weight = randn(4, 16), randn(12, 16)
    x[1] = float("nan")
    x[2] = float("inf")
    weights, indices = op(x, weight, None, spec)
    assert bool(((indices >= 0) & (indices < 12)).all())
    assert all(len(set(row)) == spec.top_k for row in indices.tolist())
    assert bool(weights[[0, 3]].isfinite().all())
    assert bool(weights[1].isnan().all())


ROUTINGS = {
    "spread": lambda tokens, experts, top_k: torch.rand(tokens, experts).topk(top_k).indices,
    "all to one": lambda tokens, experts, top_k: torch.full((tokens, top_k), experts - 1),
    "some empty": lambda tokens, experts, top_k: torch.randint(0, 2, (tokens, top_k)) * (experts - 1),
}


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "shared", "rows"),
    [(1, 1, 1, 0, 16), (5, 8, 2, 1, 16), (700, 5, 3, 2, 128), (3, 300, 2, 1, 32)],
)
def test_dispatch_sorts_by_expert_in_whole_blocks(routing, tokens, experts, top_k, shared, rows):
    top_k = min(top_k, experts)
    indices = ROUTINGS[routing](tokens, experts, top_k).to(DEVICE)
    routes = moe_dispatch(indices, experts, shared, rows)
    choices = top_k + shared
    shared_ids = torch.arange(experts, experts + shared, device=DEVICE).expand(tokens, -1)
    expert_of_pair = torch.cat((indices, shared_ids), dim=1).flatten().tolist()
    order = routes.order.view(routes.blocks, rows).tolist()
    owners = routes.expert_of_block.tolist()
    seen: list[int] = []
    for pairs, owner in zip(order, owners, strict=True):
        real = [pair for pair in pairs if pair < tokens * choices]
        assert all(pair == tokens * choices for pair in pairs[len(real) :])
        assert bool(real) == (owner >= 0)
        assert all(expert_of_pair[pair] == owner for pair in real)
        seen += real
    assert sorted(seen) == [*range(tokens * choices)]
    used = [owner for owner in owners if owner >= 0]
    assert used == sorted(used)
    # Only an expert's last block may be filled in part.
    for one, two, pairs in zip(used, used[1:], order, strict=False):
        assert one != two or max(pairs) < tokens * choices


def gated(inner: int, hidden: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return randn(2, inner, hidden, dtype=dtype) / hidden**0.5, randn(hidden, inner, dtype=dtype) / inner**0.5


def mlp(x: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
    (gate, up), down = weights[0].double(), weights[1].double()
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def expected(x, weights, indices, own, extra) -> Tensor:
    want = torch.zeros(x.shape, dtype=torch.float64, device=DEVICE)
    for expert, each in enumerate(own):
        share = (weights.double() * (indices == expert)).sum(-1, keepdim=True)
        if bool(share.any()):
            want += share * mlp(x.double(), each)
    return want if extra is None else want + mlp(x.double(), extra)


SIZES = [  # tokens, experts, top_k, shared, hidden, inner
    (1, 4, 2, 1, 64, 32),
    (3, 2, 1, 0, 192, 96),  # no multiple of a group of 128
    (17, 4, 3, 2, 128, 64),
    (90, 3, 2, 0, 40, 24),  # no multiple of anything
    (300, 2, 2, 1, 64, 64),  # large tiles
]


@DTYPES
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize(("tokens", "experts", "top_k", "shared", "hidden", "inner"), SIZES)
def test_experts(dtype, routing, tokens, experts, top_k, shared, hidden, inner):
    if dtype == torch.float32 or routing != "spread":
        tokens = min(tokens, 40)  # the large tiles are for the narrow dtypes
    op, reference = offered("moe_experts", dtype)
    x = randn(tokens, hidden + 5, dtype=dtype)[:, 5:]
    own = [gated(inner, hidden, dtype) for _ in range(experts)]
    extra = gated(shared * inner, hidden, dtype) if shared else None
    weights, indices = (
        torch.rand(tokens, top_k).to(DEVICE),
        ROUTINGS[routing](tokens, experts, top_k).to(DEVICE),
    )
    got = op(x, weights, indices, op.pack(iter(own), experts, extra, top_k))
    assert got.dtype == dtype
    near(
        got, expected(x, weights, indices, own, extra), dtype, factor=2
    )  # three roundings, one after the other
    if routing == "spread":  # the reference's dense form does not know an expert chosen twice
        packed = reference.pack(iter(own), experts, extra, top_k)
        near(got, reference(x, weights, indices, packed), dtype, factor=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("form", ["fp8", "int4"])
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "shared", "hidden", "inner"), [*SIZES[:3], (140, 2, 1, 0, 136, 160)]
)
def test_experts_with_fewer_bits_are_exact_for_the_weights_they_keep(
    dtype, form, tokens, experts, top_k, shared, hidden, inner
):
    op, reference = offered("moe_experts", dtype, form)
    tokens = min(tokens, 20) if dtype == torch.float32 else tokens
    x = randn(tokens, hidden, dtype=dtype)
    own = [gated(inner, hidden, dtype) for _ in range(experts)]
    own[0][0][0, 0] *= 1e-4  # small values in a block with large ones: subnormal in e4m3
    extra = gated(shared * inner, hidden, dtype) if shared else None
    weights = torch.rand(tokens, top_k).to(DEVICE)
    indices = ROUTINGS["spread"](tokens, experts, top_k).to(DEVICE)
    packed = op.pack(iter(own), experts, extra, top_k)
    got = op(x, weights, indices, packed)

    def kept(weight: Tensor) -> Tensor:
        return dequantise(quantise(weight, form), form, weight.shape[-1]).double()

    def kept_pair(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return kept(pair[0]), kept(pair[1])

    kept_extra = None
    if extra is not None:  # it is cut into parts, which are quantised one by one
        cut = [
            kept_pair(part) for part in zip(extra[0].split(inner, 1), extra[1].split(inner, 1), strict=True)
        ]
        kept_extra = torch.cat([one for one, _ in cut], dim=1), torch.cat([two for _, two in cut], dim=1)
    near(got, expected(x, weights, indices, [kept_pair(each) for each in own], kept_extra), dtype, factor=2)
    beside = reference(x, weights, indices, reference.pack(iter(own), experts, extra, top_k))
    near(got, beside, dtype, factor=4)  # it rounds the weights to the dtype
    # And the weights kept are near those given: e4m3 has 3 bits after the point, 4-bit integers 15 levels.
    bound = {"fp8": 0.04, "int4": 0.16}[form]
    error = (kept(own[0][1]) - own[0][1].double()).norm() / own[0][1].double().norm()
    assert error < bound
    assert packed.down.element_size() == 1


def test_every_code_of_e4m3_is_read_right():
    """Row c of the gate holds the code c once, up holds ones and down is the identity: the result shows each code."""
    op, _ = offered("moe_experts", torch.float32, "fp8")
    packed = op.pack(iter([gated(256, 256, torch.float32)]), 1, None, 1)
    codes = torch.arange(256)
    codes[[0x7F, 0xFF]] = 0  # not a number, which no quantised weight is
    one = 0x38
    packed.gate_up.zero_()
    packed.gate_up[0, 0, :, 0] = codes.to(DEVICE, torch.uint8)
    packed.gate_up[0, 1, :, 0] = one
    packed.down.copy_(torch.eye(256, device=DEVICE) * one)
    packed.gate_up_scales.fill_(1.0)
    packed.down_scales.fill_(1.0)
    x = torch.zeros(1, 256, device=DEVICE)
    x[0, 0] = 1.0
    got = op(x, torch.ones(1, 1, device=DEVICE), torch.zeros(1, 1, dtype=torch.int64, device=DEVICE), packed)
    want = F.silu(codes.to(torch.uint8).view(torch.float8_e4m3fn).float())
    torch.testing.assert_close(got[0].cpu(), want, rtol=1e-6, atol=1e-9)


def test_a_token_that_is_not_finite_spoils_its_own_row_alone():
    op, _ = offered("moe_experts", torch.float32)
    x, weights = randn(6, 32), torch.rand(6, 2).to(DEVICE)
    indices = ROUTINGS["spread"](6, 4, 2).to(DEVICE)
    packed = op.pack(iter([gated(16, 32, torch.float32) for _ in range(4)]), 4, None, 2)
    x[2, 5] = float("nan")
    got = op(x, weights, indices, packed)
    assert bool(got[2].isnan().all())
    assert bool(got[[0, 1, 3, 4, 5]].isfinite().all())


def test_no_tokens_is_no_launch():
    op, _ = offered("moe_experts", torch.float32)
    packed = op.pack(iter([gated(16, 32, torch.float32)]), 1, None, 1)
    empty = torch.zeros(0, 1, device=DEVICE)
    assert op(randn(0, 32), empty, empty.long(), packed).shape == (0, 32)
