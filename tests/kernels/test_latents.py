"""Latents in fp8, in torch on the CPU: what a slot holds, what it costs, and attention over it against float64."""

from __future__ import annotations

import pytest
import torch
from arc.kernels import Target, latents, resolve
from hypothesis import given
from hypothesis import strategies as st

from .oracles import Paged, decode_attention, prompt_attention

CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
# Relative norms. What is kept is attended to as exactly as in the dtype; what is kept is near what was given.
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
KEPT = 0.04  # measured: 0.026 of normal values


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape
    return float((got.double() - want).norm() / want.norm())


def test_a_slot_of_the_published_models_takes_656_bytes():
    assert latents.slot("fp8", 512, 64, torch.bfloat16) == (656, torch.uint8)
    assert latents.slot("stored", 512, 64, torch.bfloat16) == (576, torch.bfloat16)


@given(
    rank=st.integers(1, 70),
    pairs=st.integers(1, 9),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    power=st.integers(-20, 12),
    data=st.data(),
)
def test_what_is_written_is_read_again_and_nothing_else_changes(rank, pairs, dtype, power, data):
    rope = 2 * pairs
    width, kind = latents.slot("fp8", rank, rope, dtype)
    assert width % 16 == 0
    seed = data.draw(st.integers(0, 1000))
    generator = torch.Generator().manual_seed(seed)
    cache = torch.full((9, width), 0xA5, dtype=kind)
    slots = torch.randperm(9, generator=generator)[:4]
    latent = torch.randn(4, rank, generator=generator) * 2.0**power
    turned = torch.randn(4, rope, generator=generator).to(dtype)
    latents.write(cache, slots, latent, turned)
    read = latents.latent_part(cache[slots], rank, torch.float32)
    assert bool(
        ((read - latent).abs() <= latent.abs() / 16 + latent.abs().amax(1, keepdim=True) * 2.0**-18).all()
    )
    assert torch.equal(latents.rope_part(cache[slots], rank, rope, dtype), turned)
    both = latents.values(cache[slots], rank, rope, dtype)
    assert torch.equal(both, torch.cat((read.to(dtype), turned), dim=1))
    others = [n for n in range(9) if n not in slots.tolist()]
    assert bool((cache[others] == 0xA5).all())


def test_an_empty_slot_reads_as_zeros_and_a_broken_token_as_no_number():
    width, kind = latents.slot("fp8", 8, 2, torch.float32)
    cache = torch.zeros(4, width, dtype=kind)
    latent = torch.randn(2, 8)
    latent[0, 3] = torch.nan
    latents.write(cache, torch.tensor([1, 2]), latent, torch.zeros(2, 2))
    read = latents.values(cache, 8, 2, torch.float32)
    assert not read[[0, 3]].any()
    assert bool(read[1, :8].isnan().all())
    assert bool(read[2].isfinite().all())


@DTYPES
@pytest.mark.parametrize(
    ("lengths", "counts"),
    [([1], [1]), ([8, 16, 9, 1], [1] * 4), ([3, 900, 2, 880], [1] * 4), ([4, 17, 300, 9], [4, 1, 3, 2])],
    ids=str,
)
@pytest.mark.parametrize("rank", [64, 21])
def test_decode_attention(dtype, lengths, counts, rank):
    ops = resolve("torch", Target(CPU, dtype, latents="fp8"))
    rope, heads, scale = 8, 3, 0.2
    paged = Paged(lengths, 8, rank, rope, dtype, form="fp8", poison=9)
    q = torch.randn(sum(counts), heads, rank + rope).to(dtype)
    plan = ops.mla_decode.plan(lengths, counts, paged.tables, 8, rank + rope)
    got = ops.mla_decode(q, paged.cache, plan, scale=scale, rank=rank)
    assert got.dtype == dtype
    assert error(got, decode_attention(q, paged.rows, counts, scale, rank)[0]) <= 2 * BOUNDS[dtype]
    assert error(got, decode_attention(q, paged.exact, counts, scale, rank)[0]) <= 2 * KEPT


@DTYPES
@pytest.mark.parametrize("chunks", [[(1, 1)], [(300, 7), (40, 40), (9, 3)]], ids=str)
def test_prompt_attention(dtype, chunks):
    ops = resolve("torch", Target(CPU, dtype, latents="fp8"))
    heads, rank, nope, rope, v = 3, 32, 8, 8, 12
    lengths, counts = [length for length, _ in chunks], [count for _, count in chunks]
    paged = Paged(lengths, 8, rank, rope, dtype, form="fp8", poison=9)
    key_up, value_up = (torch.randn(heads, n, rank).to(dtype) / 6 for n in (nope, v))
    packed = ops.kv_up.pack(key_up, value_up)
    q = torch.randn(sum(counts), heads, nope + rope).to(dtype)
    plan = ops.mla_prefill.plan(lengths, counts, paged.tables, 8, heads)
    got = ops.mla_prefill(
        q, paged.cache, plan, scale=0.2, rank=rank, expand=lambda each: ops.kv_up.expand(each, packed)
    )
    assert error(got, prompt_attention(q, chunks, paged.rows, key_up, value_up, 0.2)) <= 2 * BOUNDS[dtype]
    assert error(got, prompt_attention(q, chunks, paged.exact, key_up, value_up, 0.2)) <= 2 * KEPT


def test_the_native_backend_refuses_them_by_name_and_torch_takes_what_it_refuses():
    kernels = resolve("auto", Target(CPU, torch.bfloat16, latents="fp8"))
    assert kernels.decoder is None
    for line in kernels.table():
        if line.operation in ("latent_write", "mla_decode", "mla_prefill"):
            assert line.backend == "torch"
            assert dict(line.refused)["native"] == "it keeps latents as stored, not in fp8"
        elif line.operation != "sample":
            assert line.backend == "native"
