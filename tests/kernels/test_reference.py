"""The torch reference against formulas written out token by token."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from arc.kernels import Target, resolve
from arc.kernels.reference import experts as experts_module
from arc.kernels.reference.groups import cut
from hypothesis import given, settings
from hypothesis import strategies as st

from .oracles import Paged, Spec, decode_attention, prompt_attention

CPU = torch.device("cpu")
OPS = resolve("torch", Target(CPU, torch.float32))
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
# Of the largest value: two to four roundings of the dtype.
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    assert got.shape == want.shape
    assert (got.double() - want.double()).abs().max() <= BOUNDS[dtype] * want.abs().max()


@DTYPES
@pytest.mark.parametrize("size", [(3, 7, 5), (1, 400, 330), (65, 64, 32)])
@pytest.mark.parametrize("kept", [False, True])
def test_linear_whatever_its_layout(dtype, size, kept):
    rows, wide, out = size
    x = torch.randn(rows, wide + 3).to(dtype)[:, 3:]
    weight, bias = torch.randn(out, wide).to(dtype), torch.randn(out).to(dtype)
    for b in (None, bias):
        want = F.linear(x.double(), weight.double(), None if b is None else b.double())
        near(OPS.linear(x, OPS.linear.pack(weight, b, kept=kept)), want, dtype)
    assert OPS.linear(x[:0], OPS.linear.pack(weight)).shape == (0, out)


@DTYPES
def test_rms_norm_and_its_sum(dtype):
    x, weight = torch.randn(5, 24).to(dtype)[:, 4:], torch.rand(20)
    norm = lambda t: t / (t.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()  # noqa: E731
    near(OPS.rms_norm(x, weight, 1e-3, dtype), norm(x.double()), dtype)
    residual = torch.randn(5, 20)
    before = residual.clone()
    near(OPS.add_rms_norm(residual, x, weight, 1e-3), norm((before + x).double()), dtype)
    torch.testing.assert_close(residual, before + x)


@DTYPES
@pytest.mark.parametrize("offset", [0, 1, 5])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("tokens", [1, 4])
def test_rope_turns_pairs_at_any_offset(dtype, offset, heads, tokens):
    wide = torch.randn(tokens, heads, offset + 6).to(dtype)
    x, before = wide[..., offset:], wide.double()
    angles = torch.rand(tokens, 3) * 6
    OPS.rope(x, torch.polar(torch.full_like(angles, 1.5), angles))
    for t, h, pair in itertools.product(range(tokens), range(heads), range(3)):
        a, b = (before[t, h, offset + 2 * pair + side] for side in (0, 1))
        cos, sin = (1.5 * f(angles[t, pair].double()) for f in (torch.cos, torch.sin))
        want = torch.stack((a * cos - b * sin, b * cos + a * sin))
        assert (x[t, h, 2 * pair : 2 * pair + 2].double() - want).abs().max() <= 3 * BOUNDS[dtype]
    assert torch.equal(wide[..., :offset].double(), before[..., :offset])


def chosen(logits: list[float], bias: list[float], spec: Spec) -> dict[int, float]:
    """The gate of one token in plain Python."""
    if spec.scoring == "sigmoid":
        scores = [1 / (1 + math.exp(-value)) for value in logits]
    else:
        total = sum(math.exp(value) for value in logits)
        scores = [math.exp(value) / total for value in logits]
    choice = [score + b for score, b in zip(scores, bias, strict=True)]
    size = spec.experts // spec.groups
    groups = [choice[g * size : (g + 1) * size] for g in range(spec.groups)]
    value = {
        "group_max": max,
        "group_top2": lambda group: sum(sorted(group)[-2:]),
        "greedy": lambda group: 0.0,
    }
    best = sorted(range(spec.groups), key=lambda g: value[spec.method](groups[g]), reverse=True)
    kept = set(best if spec.method == "greedy" else best[: spec.top_groups])
    allowed = [e for e in range(spec.experts) if e // size in kept]
    picks = sorted(allowed, key=choice.__getitem__, reverse=True)[: spec.top_k]
    total = sum(scores[e] for e in picks) if spec.normalise else 1.0
    return {e: scores[e] / total * spec.scale for e in picks}


@pytest.mark.parametrize(
    "spec",
    [
        Spec(),
        Spec(top_groups=4),
        Spec(top_groups=1, top_k=3, normalise=False),
        Spec(scoring="softmax", method="group_max"),
        Spec(scoring="softmax", method="greedy", groups=1, top_groups=1, normalise=False, scale=1.0),
        Spec(scoring="sigmoid", method="group_max", groups=12, top_groups=5),
        Spec(experts=6, groups=1, top_groups=1, top_k=6),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_the_gate_chooses_and_weighs(spec, biased):
    torch.manual_seed(spec.top_k)
    x, weight = torch.randn(50, 16), torch.randn(spec.experts, 16)
    # Far below zero: a group that is barred must lose to it all the same.
    bias = torch.randn(spec.experts) - 2 if biased else None
    weights, indices = OPS.moe_gate(x, weight, bias, spec)
    assert weights.dtype == torch.float32
    logits = (x.double() @ weight.double().T).tolist()
    for token in range(50):
        want = chosen(logits[token], [0.0] * spec.experts if bias is None else bias.double().tolist(), spec)
        got = dict(zip(indices[token].tolist(), weights[token].tolist(), strict=True))
        assert got.keys() == want.keys()
        assert all(math.isclose(got[e], want[e], rel_tol=1e-5) for e in want)


@DTYPES
@pytest.mark.parametrize("experts", [1, 4, 8, 9, 30])  # up to 8 of top 2 are run densely
@pytest.mark.parametrize("shared", [0, 1, 3])
@pytest.mark.parametrize("tokens", [1, 2, 40, 300])  # past 256 the dense weights are unpacked and sorted
def test_experts_in_every_form(dtype, experts, shared, tokens):
    torch.manual_seed(experts)
    hidden, inner, top_k = 24, 16, min(2, experts)
    x = torch.randn(tokens, hidden).to(dtype)
    own = [gated(inner, hidden, dtype) for _ in range(experts)]
    extra = gated(shared * inner, hidden, dtype) if shared else None
    # The last expert gets no token where there is another: an empty group among the sorted.
    weights, indices = (
        torch.rand(tokens, top_k),
        torch.rand(tokens, max(experts - 1, top_k)).topk(top_k).indices,
    )
    packed = OPS.moe_experts.pack(iter(own), experts, extra, top_k)
    assert isinstance(packed, experts_module.DenseExperts) == (experts <= 8)
    got = OPS.moe_experts(x, weights, indices, packed)
    want = torch.zeros(tokens, hidden, dtype=torch.float64)
    for token, place in itertools.product(range(tokens), range(top_k)):
        part = mlp(x[token].double(), own[int(indices[token, place])])
        want[token] += weights[token, place].double() * part
    if extra is not None:
        want += mlp(x.double(), extra)
    assert got.dtype == dtype
    near(got, want, dtype)


@DTYPES
def test_gated_mlp(dtype):
    x, weights = torch.randn(9, 24).to(dtype), gated(40, 24, dtype)
    near(OPS.gated_mlp(x, OPS.gated_mlp.pack(*weights)), mlp(x.double(), weights), dtype)


def gated(inner: int, hidden: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.randn(2, inner, hidden) / 4).to(dtype), (torch.randn(hidden, inner) / 4).to(dtype)


def mlp(x: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    (gate, up), down = weights[0].double(), weights[1].double()
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=9),
    slope=st.floats(0.1, 3),
    overhead=st.floats(0, 500),
)
def test_cutting_is_the_best_of_all_ways(lengths, slope, overhead):
    lengths.sort(reverse=True)

    def cost(start, end):
        return (end - start) * lengths[start] * slope + overhead

    def total(ranges):
        return sum(cost(start, end) for start, end in ranges)

    ranges = cut(len(lengths), cost)
    assert [*itertools.chain(*(range(*r) for r in ranges))] == list(range(len(lengths)))
    ways = itertools.product((False, True), repeat=len(lengths) - 1)
    borders = ([0, *(n + 1 for n, here in enumerate(way) if here), len(lengths)] for way in ways)
    best = min(total(itertools.pairwise(way)) for way in borders)
    assert math.isclose(total(ranges), best, rel_tol=1e-9)


@pytest.mark.parametrize("rows", [31, 32, 33, 64, 65, 300])
def test_cutting_many_rows_asks_a_bounded_number_of_times(rows):
    asked = []
    ranges = cut(rows, lambda start, end: asked.append((start, end)) or 1.0 / (end - start))
    assert [*itertools.chain(*(range(*r) for r in ranges))] == list(range(rows))
    assert len(asked) <= 33 * 34 / 2


LENGTHS = [
    [1],
    [16],
    [700],
    [8, 8, 8],
    [3, 900, 2, 880, 1],
    [500, 1, 500, 64],
    list(range(1, 200, 5)),
]


@DTYPES
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} rows")
@pytest.mark.parametrize("width", [24, 3000])  # wide rows make more groups
def test_decode_attention_of_ragged_rows(dtype, lengths, width):
    torch.manual_seed(len(lengths))
    rank, scale = width - 8, width**-0.5
    paged = Paged(lengths, 8, rank, 8, dtype, poison=9.0)
    q = torch.randn(len(lengths), 3, width).to(dtype)
    plan = OPS.mla_decode.plan(lengths, [1] * len(lengths), paged.tables, 8, width)
    got = OPS.mla_decode(q, paged.cache, plan, scale=scale, rank=rank)
    near(got, decode_attention(q, paged.rows, [1] * len(lengths), scale, rank)[0], dtype)


@DTYPES
def test_each_draft_sees_what_comes_before_it(dtype):
    lengths, counts = [4, 17, 300, 9, 16], [4, 1, 3, 2, 5]
    heads, rank, width, scale = 3, 16, 24, 0.3
    paged = Paged(lengths, 8, rank, width - rank, dtype, poison=9.0)
    q = torch.randn(sum(counts), heads, width).to(dtype)
    plan = OPS.mla_decode.plan(lengths, counts, paged.tables, 8, width)
    got = OPS.mla_decode(q, paged.cache, plan, scale=scale, rank=rank)
    near(got, decode_attention(q, paged.rows, counts, scale, rank)[0], dtype)


def test_spread_rows_are_cut_into_groups():
    paged = Paged([900, 4, 880, 3], 8, 2992, 8, torch.float32)
    plan = OPS.mla_decode.plan([900, 4, 880, 3], [1] * 4, paged.tables, 8, 3000)
    assert [group.rows for group in plan.groups] == [2, 2]
    assert plan.take is not None
    assert plan.take.tolist() == [0, 2, 1, 3]


@DTYPES
@pytest.mark.parametrize(
    "chunks",
    [
        [(1, 1)],
        [(300, 300)],
        [(301, 7)],
        [(600, 290)],  # blocks after a prefix
        [(40, 40), (40, 40)],
        [(40, 38), (39, 2), (41, 41), (1, 1)],
        [(500, 1), (8, 8), (490, 150), (300, 300)],
    ],
    ids=str,
)
def test_prompt_attention_of_ragged_rows(dtype, chunks):
    torch.manual_seed(len(chunks))
    heads, rank, nope, rope, v = 3, 16, 8, 8, 12
    lengths, counts = [length for length, _ in chunks], [count for _, count in chunks]
    paged = Paged(lengths, 8, rank, rope, dtype, poison=9.0)
    key_up, value_up = (torch.randn(heads, n, rank).to(dtype) / 4 for n in (nope, v))
    packed = OPS.kv_up.pack(key_up, value_up)
    q, scale = torch.randn(sum(counts), heads, nope + rope).to(dtype), 0.3
    plan = OPS.mla_prefill.plan(lengths, counts, paged.tables, 8, heads)
    got = OPS.mla_prefill(
        q, paged.cache, plan, scale=scale, rank=rank, expand=lambda latents: OPS.kv_up.expand(latents, packed)
    )
    near(got, prompt_attention(q, chunks, paged.rows, key_up, value_up, scale), dtype)


@DTYPES
def test_absorbed_and_expanded_are_the_same_attention(dtype):
    heads, rank, nope, v = 3, 16, 8, 12
    key_up, value_up = (torch.randn(heads, n, rank).to(dtype) for n in (nope, v))
    packed = OPS.kv_up.pack(key_up, value_up)
    q, latents = (
        torch.randn(5, heads, nope + 2).to(dtype)[..., :nope],
        torch.randn(7, rank + 3).to(dtype)[:, :rank],
    )
    keys, values = OPS.kv_up.expand(latents, packed)
    near(keys, latents.double() @ key_up.double().mT, dtype)
    near(values, latents.double() @ value_up.double().mT, dtype)
    near(OPS.kv_up.absorb(q, packed), torch.einsum("rhn,hnk->rhk", q.double(), key_up.double()), dtype)
    out = torch.randn(5, heads, rank + 2).to(dtype)[..., :rank]
    near(OPS.kv_up.value(out, packed), torch.einsum("rhk,hvk->rhv", out.double(), value_up.double()), dtype)


@DTYPES
def test_latents_go_to_their_slots(dtype):
    kv, cache = torch.randn(4, 30).to(dtype)[:, 6:], torch.zeros(20, 24, dtype=dtype)
    before, weight = kv.double(), torch.rand(16)
    angles = torch.rand(4, 4)
    slots = torch.tensor([7, 0, 19, 3])
    OPS.latent_write(
        kv, cache, slots, weight=weight, eps=1e-6, turns=torch.polar(torch.ones_like(angles), angles)
    )
    latent = before[:, :16]
    near(cache[slots, :16], latent / latent.square().mean(-1, keepdim=True).sqrt() * weight, dtype)
    pairs = torch.view_as_complex(before[:, 16:].reshape(4, 4, 2)) * torch.polar(
        torch.ones(4, 4).double(), angles.double()
    )
    near(cache[slots, 16:], torch.view_as_real(pairs).flatten(1), dtype)
    assert cache[[n for n in range(20) if n not in slots.tolist()]].abs().max() == 0
