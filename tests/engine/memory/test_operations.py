"""The reference's operations write into buffers what they allocate without, to the last bit; poison would show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from arc.engine.memory import pool as pool_module
from arc.kernels import Target, resolve
from arc.kernels.reference import experts as experts_module

from .pools import check, pool

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def pooled_whatever_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LEAST", 1)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    torch.manual_seed(0)
    yield request.param


def both(dtype: torch.dtype, run: Any) -> None:
    """`run(operations)` gives the same with the system's memory and with a poisoned pool, twice over."""
    made = pool()
    plain = run(resolve("torch", Target(CPU, dtype)))
    for _ in range(2):
        pooled = run(resolve("torch", Target(CPU, dtype, buffers=made)))
        assert all(torch.equal(one, two) for one, two in zip(plain, pooled, strict=True))
        del pooled
        made.end_step()
        assert made.counters.overdue == 0
        check(made)
    assert made.counters.hits > 0


@torch.inference_mode()
def test_linear_and_gated_mlp(dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(5, 40).to(dtype), torch.randn(24, 40).to(dtype), torch.randn(24).to(dtype)
    gate_up, down = torch.randn(2, 48, 40).to(dtype), torch.randn(40, 48).to(dtype)

    def run(ops: Any) -> list[torch.Tensor]:
        return [
            ops.linear(x, ops.linear.pack(weight, bias, kept=True)),
            ops.linear(x, ops.linear.pack(weight)),
            ops.gated_mlp(x, ops.gated_mlp.pack(gate_up, down)),
        ]

    both(dtype, run)


@torch.inference_mode()
def test_decode_attention(dtype: torch.dtype) -> None:
    heads, width, rank, page = 3, 24, 16, 8
    lengths, counts = [3, 260, 8, 70, 256, 1], [1, 1, 2, 1, 1, 1]
    cache = torch.randn(400 * page, width).to(dtype)
    tables = torch.randperm(399)[: len(lengths) * 33].view(len(lengths), 33)
    q = torch.randn(sum(counts), heads, width).to(dtype)
    key_up, value_up = torch.randn(heads, 12, rank).to(dtype), torch.randn(heads, 10, rank).to(dtype)
    q_nope = torch.randn(4, heads, 12).to(dtype)

    def run(ops: Any) -> list[torch.Tensor]:
        plan = ops.mla_decode.plan(lengths, counts, tables, page, width)
        up = ops.kv_up.pack(key_up, value_up)
        out = ops.mla_decode(q, cache, plan, scale=0.3, rank=rank)
        return [out, ops.kv_up.absorb(q_nope, up), ops.kv_up.value(out, up)]

    both(dtype, run)


@torch.inference_mode()
def test_prompt_attention(dtype: torch.dtype) -> None:
    heads, rank, rope, nope, page = 2, 16, 4, 6, 8
    lengths, counts = [40, 300, 9, 200], [38, 130, 9, 1]
    cache = torch.randn(200 * page, rank + rope).to(dtype)
    tables = torch.randperm(199)[: 4 * 38].view(4, 38)
    q = torch.randn(sum(counts), heads, nope + rope).to(dtype)
    key_up, value_up = torch.randn(heads, nope, rank).to(dtype), torch.randn(heads, 5, rank).to(dtype)

    def run(ops: Any) -> list[torch.Tensor]:
        up = ops.kv_up.pack(key_up, value_up)
        plan = ops.mla_prefill.plan(lengths, counts, tables, page, heads)
        expand = lambda latents: ops.kv_up.expand(latents, up)  # noqa: E731
        return [ops.mla_prefill(q, cache, plan, scale=0.3, rank=rank, expand=expand)]

    both(dtype, run)


@torch.inference_mode()
@pytest.mark.parametrize("tokens", [1, 9, 70])
@pytest.mark.parametrize("count", [4, 24])
def test_experts(dtype: torch.dtype, tokens: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_module, "_DENSE_TOKENS", 20)
    hidden, wide, top_k = 20, 12, 2
    experts = [
        (torch.randn(2, wide, hidden).to(dtype), torch.randn(hidden, wide).to(dtype)) for _ in range(count)
    ]
    shared = torch.randn(2, wide, hidden).to(dtype), torch.randn(hidden, wide).to(dtype)
    x, weights = torch.randn(tokens, hidden).to(dtype), torch.rand(tokens, top_k)
    indices = torch.stack([torch.randperm(count)[:top_k] for _ in range(tokens)])

    def run(ops: Any) -> list[torch.Tensor]:
        packed = ops.moe_experts.pack(iter(experts), count, shared, top_k)
        return [ops.moe_experts(x, weights, indices, packed)]

    both(dtype, run)
