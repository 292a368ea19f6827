"""Norms, rope and the cache write against float64."""

from __future__ import annotations

import pytest
import torch
from arc.kernels.reference.pointwise import rope as reference_rope

from .common import DEVICE, DTYPES, near, offered, randn


def normed(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@DTYPES
@pytest.mark.parametrize(("tokens", "n"), [(1, 1), (3, 20), (5, 512), (2, 1536), (1, 7168)])
def test_rms_norm_of_strided_rows(dtype, tokens, n):
    op, _ = offered("rms_norm", dtype)
    x, weight = randn(tokens, n + 3, dtype=dtype)[:, 3:], torch.rand(n, device=DEVICE) + 0.5
    near(op(x, weight, 1e-3, dtype), normed(x.double(), weight, 1e-3), dtype)


def test_rms_norm_from_fp32_to_another_dtype():
    op, _ = offered("rms_norm", torch.bfloat16)
    x, weight = randn(4, 96), torch.rand(96, device=DEVICE)
    got = op(x, weight, 1e-6, torch.bfloat16)
    assert got.dtype == torch.bfloat16
    near(got, normed(x.double(), weight, 1e-6), torch.bfloat16)


@DTYPES
@pytest.mark.parametrize(("tokens", "n"), [(1, 192), (7, 33), (2, 7168)])
def test_add_rms_norm_adds_in_place_and_norms_the_sum(dtype, tokens, n):
    op, _ = offered("add_rms_norm", dtype)
    residual, update, weight = (
        randn(tokens, n),
        randn(tokens, 2 * n, dtype=dtype)[:, n:],
        torch.rand(n, device=DEVICE),
    )
    want = residual.double() + update.double()
    got = op(residual, update, weight, 1e-6)
    near(residual, want, torch.float32)
    near(got, normed(want, weight, 1e-6), dtype)
    assert got.is_contiguous()


def test_no_tokens_is_no_launch():
    op, _ = offered("rms_norm", torch.float32)
    assert op(randn(0, 8), torch.ones(8, device=DEVICE), 1e-6, torch.float32).shape == (0, 8)


@DTYPES
@pytest.mark.parametrize(("tokens", "heads", "width"), [(1, 1, 2), (3, 5, 16), (2, 128, 64)])
def test_rope_turns_in_place_and_touches_nothing_else(dtype, tokens, heads, width):
    op, _ = offered("rope", dtype)
    wide = randn(tokens, heads, width + 5, dtype=dtype)
    before = wide.clone()
    angle = torch.rand(tokens, width // 2, device=DEVICE) * 6
    turns = torch.polar(torch.full_like(angle, 1.5), angle)
    want = before[..., 5:].double().clone()
    pairs = torch.view_as_complex(want.unflatten(-1, (-1, 2)).contiguous()) * turns.to(
        torch.complex128
    ).unsqueeze(1)
    op(wide[..., 5:], turns)
    near(wide[..., 5:], torch.view_as_real(pairs).flatten(-2), dtype)
    assert torch.equal(wide[..., :5], before[..., :5])


def test_a_token_that_is_not_finite_spoils_its_own_row_alone():
    op, _ = offered("add_rms_norm", torch.float32)
    residual, update = randn(3, 40), randn(3, 40)
    update[1, 7] = float("nan")
    got = op(residual, update, torch.ones(40, device=DEVICE), 1e-6)
    assert bool(got[1].isnan().all())
    assert bool(got[[0, 2]].isfinite().all())


def test_the_reference_turns_the_same_way():
    op, _ = offered("rope", torch.float32)
    x, angle = randn(2, 3, 8), torch.rand(2, 4, device=DEVICE)
    turns = torch.polar(torch.ones_like(angle), angle)
    same = x.clone()
    op(x, turns)
    reference_rope(same, turns)
    near(x, same, torch.float32)
