"""Every operation in C++ against formulas in float64, on every instruction set that this processor has."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from arc.kernels import KernelError, Refusal, Target, resolve
from arc.kernels.cpu import NativeBackend, binding
from arc.kernels.dispatch import OPERATIONS, KernelSet
from arc.kernels.reference import BACKEND as TORCH

from ..oracles import Paged, Spec, decode_attention, prompt_attention

CPU = torch.device("cpu")
LOADED = binding.load()
assert not isinstance(LOADED, str), LOADED
LEVELS = binding.levels(LOADED)
DTYPES = (torch.float32, torch.bfloat16)
# Of the largest value: sums in another order in fp32; in bf16 two roundings of 2^-9 each, and those in between.
BOUNDS = {torch.float32: 3e-6, torch.bfloat16: 1e-2}


def kernels(level: str, dtype: torch.dtype) -> KernelSet:
    ops = resolve("native", Target(CPU, dtype), (NativeBackend(level), TORCH))
    assert all(line.backend == "native" for line in ops.table())
    return ops


SETS = {(level, dtype): kernels(level, dtype) for level in LEVELS for dtype in DTYPES}
each = pytest.mark.parametrize(
    ("ops", "dtype"),
    [pytest.param(ops, dtype, id=f"{level} {str(dtype)[6:]}") for (level, dtype), ops in SETS.items()],
)


def near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    assert got.shape == want.shape
    error = (got.double() - want.double()).abs().max() / want.abs().max().clamp(min=1e-30)
    assert error <= times * BOUNDS[dtype], f"{error:.2e}"


def test_a_library_of_another_revision_is_a_refusal_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    """Sources that moved on without a new installation: any library stands for one that lacks a function."""
    other = next(iter(sorted(Path(torch.__file__).parent.glob("lib/libc10.so"))))
    monkeypatch.setattr(binding, "path_of_library", lambda: other)
    why = binding.load.__wrapped__()
    assert isinstance(why, str) and "of another revision, install arc again" in why and "arc_levels" in why


def test_the_fastest_level_comes_first_which_on_intel_is_not_the_dot_product() -> None:
    assert not isinstance(LOADED, str)
    built = LOADED.arc_levels().decode().split()
    assert sorted(LEVELS) == sorted(name for number, name in enumerate(built) if LOADED.arc_runs(number))
    fastest = next(name for name in built if name in LEVELS)
    if fastest == "avx512_bf16" and "GenuineIntel" in Path("/proc/cpuinfo").read_text():
        fastest = "avx512"
    assert LEVELS[0] == fastest


def test_this_processor_runs_a_level_and_another_backend_is_refused_by_name() -> None:
    assert LEVELS[-1] == "plain"
    refusal = NativeBackend().available(Target(torch.device("cuda"), torch.bfloat16))
    assert refusal == Refusal("it runs on the CPU, not on cuda")
    refusal = NativeBackend().available(Target(CPU, torch.float16))
    assert refusal == Refusal("it computes in bfloat16 and float32, not in float16")
    assert isinstance(NativeBackend("avx1024").available(Target(CPU, torch.float32)), Refusal)
    assert {line.operation for line in SETS[LEVELS[0], torch.float32].table()} == set(OPERATIONS)


@each
@pytest.mark.parametrize(
    "size", [(3, 7, 5), (1, 400, 330), (65, 64, 32), (13, 33, 64), (200, 20, 97), (6, 1, 1)], ids=str
)
def test_linear(ops, dtype, size):
    rows, wide, out = size
    x = torch.randn(rows, wide + 3).to(dtype)[:, 3:]
    weight, bias = torch.randn(out, wide).to(dtype), torch.randn(out).to(dtype)
    for b in (None, bias):
        want = F.linear(x.double(), weight.double(), None if b is None else b.double())
        near(ops.linear(x, ops.linear.pack(weight, b)), want, dtype)
    assert ops.linear(x[:0], ops.linear.pack(weight)).shape == (0, out)
    strided = torch.randn(wide, out).to(dtype).T
    near(ops.linear(x, ops.linear.pack(strided)), x.double() @ strided.double().T, dtype)


@each
@pytest.mark.parametrize(("wide", "out"), [(64, 64), (70, 33)])
def test_a_row_s_product_is_the_same_bits_in_any_company(ops, dtype, wide, out):
    """So a request's answer does not depend on who is served beside it, nor on drafts that add rows."""
    weight, x = torch.randn(out, wide).to(dtype), torch.randn(70, wide).to(dtype)
    packed = ops.linear.pack(weight)
    want = ops.linear(x, packed)
    for rows in (1, 2, 6, 7, 16, 17, 33):
        assert torch.equal(ops.linear(x[:rows].clone(), packed), want[:rows])
        assert torch.equal(ops.linear(x[-rows:], packed), want[-rows:])


@each
def test_a_row_s_decode_attention_is_the_same_bits_in_any_company(ops, dtype):
    lengths, rank, rope = [1, 33, 300, 31, 256, 64], 64, 16
    paged, q = Paged(lengths, 4, rank, rope, dtype), torch.randn(6, 8, rank + rope).to(dtype)

    def attended(rows: slice) -> torch.Tensor:
        held = lengths[rows]
        plan = ops.mla_decode.plan(held, [1] * len(held), paged.tables[rows], 4, rank + rope)
        return ops.mla_decode(q[rows], paged.cache, plan, scale=0.1, rank=rank)

    want = attended(slice(0, 6))
    for row in range(6):
        assert torch.equal(attended(slice(row, row + 1)), want[row : row + 1])


@each
@pytest.mark.parametrize("n", [20, 64, 7])
def test_norms(ops, dtype, n):
    x, weight = torch.randn(11, n + 4).to(dtype)[:, 4:], torch.rand(n)
    norm = lambda t: t / (t.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()  # noqa: E731
    for out in DTYPES:
        got = ops.rms_norm(x, weight, 1e-3, out)
        assert got.dtype == out
        near(got, norm(x.double()), out)
    residual = torch.randn(11, n)
    before = residual.clone()
    near(ops.add_rms_norm(residual, x, weight, 1e-3), norm((before + x).double()), dtype)
    torch.testing.assert_close(residual, before + x)


@each
@pytest.mark.parametrize("offset", [0, 1, 5])
def test_rope_turns_pairs_at_any_offset(ops, dtype, offset):
    wide = torch.randn(9, 3, offset + 6).to(dtype)
    x, before = wide[..., offset:], wide.clone()
    angles = torch.rand(9, 3) * 6
    turns = torch.polar(torch.full_like(angles, 1.5), angles)
    ops.rope(x, turns)
    pairs = torch.view_as_complex(before[..., offset:].double().unflatten(-1, (3, 2)).contiguous())
    near(x, torch.view_as_real(pairs * turns.unsqueeze(1)).flatten(-2), dtype)
    assert torch.equal(wide[..., :offset], before[..., :offset])


@each
@pytest.mark.parametrize(("rank", "rope"), [(16, 8), (9, 4), (33, 2)])
def test_latents_go_to_their_slots_and_nowhere_else(ops, dtype, rank, rope):
    kv, cache = torch.randn(4, rank + rope + 6).to(dtype)[:, 6:], torch.zeros(20, rank + rope, dtype=dtype)
    before, weight = kv.double(), torch.rand(rank)
    angles = torch.rand(4, rope // 2)
    slots = torch.tensor([7, 0, 19, 3])
    turns = torch.polar(torch.ones_like(angles), angles)
    ops.latent_write(kv, cache, slots, weight=weight, eps=1e-6, turns=turns)
    latent = before[:, :rank]
    rms = (latent.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    near(cache[slots, :rank], latent / rms * weight, dtype)
    pairs = torch.view_as_complex(before[:, rank:].unflatten(1, (-1, 2)).contiguous()) * turns
    near(cache[slots, rank:], torch.view_as_real(pairs).flatten(1), dtype)
    assert cache[[n for n in range(20) if n not in slots.tolist()]].abs().max() == 0


@each
@pytest.mark.parametrize(("rank", "nope", "v"), [(16, 8, 12), (9, 5, 7), (70, 33, 20), (128, 64, 48)])
def test_absorbed_and_expanded_are_the_same_products(ops, dtype, rank, nope, v):
    heads = 3
    key_up, value_up = (torch.randn(heads, n, rank).to(dtype) for n in (nope, v))
    packed = ops.kv_up.pack(key_up, value_up)
    q = torch.randn(5, heads, nope + 2).to(dtype)[..., :nope]
    near(ops.kv_up.absorb(q, packed), torch.einsum("rhn,hnk->rhk", q.double(), key_up.double()), dtype)
    out = torch.randn(5, heads, rank + 2).to(dtype)[..., :rank]
    near(ops.kv_up.value(out, packed), torch.einsum("rhk,hvk->rhv", out.double(), value_up.double()), dtype)
    for length in (1, 7, 64, 131):
        latents = torch.randn(length, rank + 3).to(dtype)[:, :rank]
        keys, values = ops.kv_up.expand(latents, packed)
        near(keys, latents.double() @ key_up.double().mT, dtype)
        near(values, latents.double() @ value_up.double().mT, dtype)


SPECS = [
    Spec(),
    Spec(top_groups=4),
    Spec(top_groups=1, top_k=3, normalise=False),
    Spec(scoring="softmax", method="group_max"),
    Spec(scoring="softmax", method="greedy", groups=1, top_groups=1, normalise=False, scale=1.0),
    Spec(scoring="sigmoid", method="group_max", groups=12, top_groups=5),
    Spec(experts=6, groups=1, top_groups=1, top_k=6),
    Spec(experts=67, groups=1, top_groups=1, top_k=1, method="greedy"),
    Spec(experts=1, groups=1, top_groups=1, top_k=1, method="greedy", normalise=False),
]


@each
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("biased", [False, True])
def test_the_gate_chooses_as_the_reference_does(ops, dtype, spec, biased):
    """The reference is held against plain Python in test_reference.py."""
    torch.manual_seed(spec.top_k)
    x, weight = torch.randn(50, 23).to(dtype), torch.randn(spec.experts, 23)
    bias = torch.randn(spec.experts) - 2 if biased else None
    weights, indices = ops.moe_gate(x, weight, bias, spec)
    want_weights, want_indices = resolve("torch", Target(CPU, dtype)).moe_gate(x, weight, bias, spec)
    assert weights.dtype == torch.float32
    for token in range(50):
        got = dict(zip(indices[token].tolist(), weights[token].tolist(), strict=True))
        want = dict(zip(want_indices[token].tolist(), want_weights[token].tolist(), strict=True))
        assert got.keys() == want.keys()
        assert all(math.isclose(got[e], want[e], rel_tol=1e-5) for e in want)


def gated(inner: int, hidden: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.randn(2, inner, hidden) / 4).to(dtype), (torch.randn(hidden, inner) / 4).to(dtype)


def mlp(x: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    (gate, up), down = weights[0].double(), weights[1].double()
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


@each
@pytest.mark.parametrize("size", [(9, 24, 40), (1, 16, 32), (130, 70, 33)], ids=str)
def test_gated_mlp(ops, dtype, size):
    tokens, hidden, inner = size
    x, weights = torch.randn(tokens, hidden).to(dtype), gated(inner, hidden, dtype)
    near(ops.gated_mlp(x, ops.gated_mlp.pack(*weights)), mlp(x.double(), weights), dtype)
    far = torch.full_like(x, 1e4)  # silu of what an exponential cannot hold
    near(ops.gated_mlp(far, ops.gated_mlp.pack(*weights)), mlp(far.double(), weights), dtype)


@each
@pytest.mark.parametrize("experts", [1, 4, 9, 30])
@pytest.mark.parametrize("shared", [0, 1, 3])
@pytest.mark.parametrize("tokens", [1, 2, 40, 300])  # past 256 the second product is cut in two
def test_experts(ops, dtype, experts, shared, tokens):
    torch.manual_seed(experts)
    hidden, inner, top_k = 24, 20, min(2, experts)
    x = torch.randn(tokens, hidden).to(dtype)
    own = [gated(inner, hidden, dtype) for _ in range(experts)]
    extra = gated(shared * inner, hidden, dtype) if shared else None
    # The last expert gets no token where there is another.
    weights = torch.rand(tokens, top_k)
    indices = torch.rand(tokens, max(experts - 1, top_k)).topk(top_k).indices
    got = ops.moe_experts(x, weights, indices, ops.moe_experts.pack(iter(own), experts, extra, top_k))
    want = torch.zeros(tokens, hidden, dtype=torch.float64)
    for expert in range(experts):
        token, place = (indices == expert).nonzero(as_tuple=True)
        part = mlp(x[token].double(), own[expert]) * weights[token, place].double().unsqueeze(1)
        want.index_add_(0, token, part)
    if extra is not None:
        want += mlp(x.double(), extra)
    assert got.dtype == dtype
    near(got, want, dtype)


def rounded(weight: torch.Tensor, weights: str) -> torch.Tensor:
    """weight [n, k] as int8 or int4 keep it: the nearest multiple of a column's, or a group of 32 values', scale."""
    most, group = (127, weight.shape[1]) if weights == "int8" else (7, 32)
    parts = []
    for part in weight.float().split(group, dim=1):
        scale = part.abs().amax(1, keepdim=True) / most
        parts.append((part / scale.clamp(min=1e-30)).round() * scale)
    return torch.cat(parts, dim=1).double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("size", [(1, 64, 96), (7, 300, 50), (40, 129, 20), (9, 33, 70)], ids=str)
def test_whole_number_weights(level, dtype, weights, size):
    """Beside their own rounding, which is the definition, nothing is lost: they are multiplied exactly."""
    tokens, hidden, inner = size
    ops = resolve("native", Target(CPU, dtype, weights), (NativeBackend(level), TORCH))
    x, (gate_up, down) = torch.randn(tokens, hidden).to(dtype), gated(inner, hidden, dtype)
    down[3] = 0  # a column without a scale
    bias = torch.randn(hidden).to(dtype)
    y = torch.randn(tokens, inner).to(dtype)
    want = y.double() @ rounded(down, "int8").T + bias.double()
    near(ops.linear(y, ops.linear.pack(down, bias)), want, dtype)
    kept = torch.stack([rounded(part, weights) for part in gate_up]), rounded(down, weights)
    near(ops.gated_mlp(x, ops.gated_mlp.pack(gate_up, down)), mlp(x.double(), kept), dtype)
    packed = ops.moe_experts.pack(iter([(gate_up, down)] * 3), 3, (gate_up, down), 2)
    indices = torch.rand(tokens, 3).topk(2).indices
    got = ops.moe_experts(x, torch.full((tokens, 2), 0.5), indices, packed)
    near(got, 2 * mlp(x.double(), kept), dtype)


def test_nobody_keeps_weights_otherwise_than_asked():
    with pytest.raises(
        KernelError, match=r"no backend runs linear .*torch: it keeps weights as stored, not in int8"
    ):
        resolve("torch", Target(CPU, torch.float32, "int8"))


ROWS = [
    ([1], [1]),
    ([16], [1]),
    ([700], [1]),
    ([256], [1]),
    ([257, 513, 32, 33, 31], [2, 3, 1, 4, 1]),  # the borders of chunks and of blocks
    ([4, 17, 300, 9, 16], [4, 1, 3, 2, 5]),
    ([5], [5]),
    (list(range(1, 200, 5)), [1] * 40),
]


@each
@pytest.mark.parametrize(("lengths", "counts"), ROWS, ids=str)
@pytest.mark.parametrize(("heads", "rank", "rope"), [(3, 16, 8), (1, 9, 4), (8, 64, 16), (17, 40, 2)])
@pytest.mark.parametrize("page_size", [4, 16])
def test_decode_attention(ops, dtype, lengths, counts, heads, rank, rope, page_size):
    torch.manual_seed(len(lengths))
    width = rank + rope
    paged, scale = Paged(lengths, page_size, rank, rope, dtype), width**-0.5
    q = torch.randn(sum(counts), heads, width).to(dtype)
    plan = ops.mla_decode.plan(lengths, counts, paged.tables, page_size, width)
    got = ops.mla_decode(q, paged.cache, plan, scale=scale, rank=rank)
    near(got, decode_attention(q, paged.rows, counts, scale, rank)[0], dtype)


CHUNKS = [
    [(1, 1)],
    [(300, 300)],
    [(301, 7)],
    [(600, 290)],
    [(40, 38), (39, 2), (41, 41), (1, 1)],
    [(64, 64), (65, 65), (128, 1), (63, 48), (97, 49)],  # the borders of blocks of keys and of queries
]


@each
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize(("rank", "nope", "rope", "v"), [(16, 8, 8, 12), (9, 5, 4, 7), (64, 33, 2, 80)])
def test_prompt_attention(ops, dtype, chunks, rank, nope, rope, v):
    torch.manual_seed(len(chunks))
    heads, scale = 3, 0.3
    lengths, counts = [length for length, _ in chunks], [count for _, count in chunks]
    paged = Paged(lengths, 8, rank, rope, dtype)
    key_up, value_up = (torch.randn(heads, n, rank).to(dtype) / 4 for n in (nope, v))
    packed = ops.kv_up.pack(key_up, value_up)
    q = torch.randn(sum(counts), heads, nope + rope).to(dtype)
    plan = ops.mla_prefill.plan(lengths, counts, paged.tables, 8, heads)
    got = ops.mla_prefill(
        q, paged.cache, plan, scale=scale, rank=rank, expand=lambda latents: ops.kv_up.expand(latents, packed)
    )
    near(got, prompt_attention(q, chunks, paged.rows, key_up, value_up, scale), dtype)


@pytest.mark.parametrize("level", LEVELS)
def test_all_levels_agree(level):
    """In fp32, where only the order of sums differs, to a few units of the last place."""
    torch.manual_seed(0)
    x, weight = torch.randn(7, 300), torch.randn(90, 300)
    first, other = (SETS[name, torch.float32].linear for name in (LEVELS[0], level))
    torch.testing.assert_close(
        other(x, other.pack(weight)), first(x, first.pack(weight)), rtol=1e-5, atol=1e-4
    )


def test_the_result_does_not_depend_on_the_number_of_threads():
    ops = SETS[LEVELS[0], torch.bfloat16]
    hidden, inner, experts = 96, 64, 12
    own = [gated(inner, hidden, torch.bfloat16) for _ in range(experts)]
    packed = ops.moe_experts.pack(iter(own), experts, gated(inner, hidden, torch.bfloat16), 3)
    x = torch.randn(37, hidden).bfloat16()
    weights, indices = torch.rand(37, 3), torch.rand(37, experts).topk(3).indices
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        want = ops.moe_experts(x, weights, indices, packed)
        for threads, _ in itertools.product((2, 3, 7), range(100)):
            torch.set_num_threads(threads)
            assert torch.equal(ops.moe_experts(x, weights, indices, packed), want)
    finally:
        torch.set_num_threads(before)
