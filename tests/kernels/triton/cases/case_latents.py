"""Latents to their slots and back, as stored and in fp8, against float64, the reference, and torch's 8-bit floats."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from arc.kernels import latents
from arc.kernels.triton.floats import e4m3_of, half_of_e4m3
from arc.kernels.triton.latents import latent_read
from arc.kernels.triton.launch import launch

from .common import DEVICE, DTYPES, near, offered, randn

SLOTS = [7, 0, 39, 3, 16]
FP8_BOUND = 0.04  # of a token's norm: 3 bits after the point


def normed(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def written(dtype, rank, rope, form):
    """The cache that the kernel wrote and the reference's, what they hold in float64, and the slots."""
    op, reference = offered("latent_write", dtype)
    tokens = len(SLOTS)
    kv = randn(tokens, rank + rope + 7, dtype=dtype)[:, 7:]
    width, kind = latents.slot(form, rank, rope, dtype)
    cache = torch.full((40, width), 3, dtype=kind, device=DEVICE)
    slots = torch.tensor(SLOTS, device=DEVICE)
    weight, angle = torch.rand(rank, device=DEVICE) + 0.5, torch.rand(tokens, rope // 2, device=DEVICE) * 6
    turns = torch.polar(torch.ones_like(angle), angle)
    exact = kv.double()
    want = torch.cat((normed(exact[:, :rank], weight, 1e-6), exact[:, rank:]), dim=1)
    pairs = torch.view_as_complex(want[:, rank:].unflatten(-1, (-1, 2)).contiguous()) * turns.to(
        torch.complex128
    )
    want[:, rank:] = torch.view_as_real(pairs).flatten(-2)
    beside = cache.clone()
    reference(kv.clone(), beside, slots, weight=weight, eps=1e-6, turns=turns)
    op(kv, cache, slots, weight=weight, eps=1e-6, turns=turns)
    others = [n for n in range(40) if n not in SLOTS]
    assert bool((cache[others] == 3).all())
    return cache[slots], beside[slots], want


@DTYPES
@pytest.mark.parametrize(("rank", "rope"), [(512, 64), (48, 6), (1, 2)])
def test_latents_go_to_their_slots_and_nowhere_else(dtype, rank, rope):
    got, beside, want = written(dtype, rank, rope, "stored")
    near(got, want, dtype)
    near(got, beside, dtype, factor=2)


@DTYPES
@pytest.mark.parametrize(("rank", "rope"), [(512, 64), (47, 6), (1, 2)])
def test_latents_in_fp8_go_to_their_slots_and_nowhere_else(dtype, rank, rope):
    got, beside, want = written(dtype, rank, rope, "fp8")
    scale = latents.scales(got, rank)
    torch.testing.assert_close(scale, latents.scales(beside, rank), rtol=1e-5, atol=0.0)
    latent = latents.latent_part(got, rank, torch.float32)
    error = (latent.double() - want[:, :rank]).norm(dim=1) / want[:, :rank].norm(dim=1)
    assert error.max() <= FP8_BOUND
    # Sums in another order move a value over a border between two codes now and then, and never further.
    codes, other = got[:, :rank].int(), beside[:, :rank].int()
    assert (codes - other).abs().max() <= 1
    assert (codes != other).float().mean() < 0.02
    near(latents.rope_part(got, rank, rope, dtype), want[:, rank:], dtype)


def test_a_token_that_is_not_finite_is_read_as_such_and_spoils_no_other():
    op, _ = offered("latent_write", torch.float32)
    width, kind = latents.slot("fp8", 16, 4, torch.float32)
    cache = torch.zeros(8, width, dtype=kind, device=DEVICE)
    kv, turns = randn(3, 20), torch.ones(3, 2, dtype=torch.complex64, device=DEVICE)
    kv[1, 5] = float("nan")
    kv[2, 5] = float("inf")
    slots = torch.tensor([4, 2, 6], device=DEVICE)
    op(kv, cache, slots, weight=torch.ones(16, device=DEVICE), eps=1e-6, turns=turns)
    read = latent_read(cache, 16, torch.float32)
    assert bool(read[[2, 6]].isnan().all())
    assert bool(read[[0, 1, 3, 4, 5, 7]].isfinite().all())


@DTYPES
@pytest.mark.parametrize("rank", [512, 47, 1])
def test_latents_are_read_as_the_reference_reads_them(dtype, rank):
    width, kind = latents.slot("fp8", rank, 8, dtype)
    cache = torch.zeros(9, width, dtype=kind, device=DEVICE)
    latents.write(cache, torch.arange(1, 9, device=DEVICE), randn(8, rank) * 3, randn(8, 8, dtype=dtype))
    got = latent_read(cache, rank, dtype)
    assert not got[0].any()
    near(got[1:], latents.latent_part(cache[1:], rank, torch.float64), dtype)


@triton.jit
def codes_kernel(values, codes, back, N: tl.constexpr):
    place = tl.program_id(0) * N + tl.arange(0, N)
    bits = e4m3_of(tl.load(values + place))
    tl.store(codes + place, bits)
    tl.store(back + place, half_of_e4m3(bits).to(tl.float32) * 256.0)


def test_values_become_the_codes_that_torch_gives_them():
    """Around every border between two codes, on it, and at random, of both signs."""
    finite = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middle = (finite[1:] + finite[:-1]) / 2
    ends = [torch.nextafter(middle, torch.full_like(middle, to)) for to in (0.0, 1000.0)]
    values = torch.cat((finite, middle, *ends, torch.rand(1000) * 448, torch.rand(541) * 0.03))
    values = torch.cat((values, -values))
    values = torch.nn.functional.pad(values, (0, -len(values) % 256)).to(DEVICE)
    codes = torch.empty(len(values), dtype=torch.uint8, device=DEVICE)
    back = torch.empty_like(values)
    launch(codes_kernel, (len(values) // 256,), {"values": values, "codes": codes, "back": back}, {"N": 256})
    want = values.to(torch.float8_e4m3fn)
    assert torch.equal(codes, want.view(torch.uint8))
    assert torch.equal(back, want.float())
