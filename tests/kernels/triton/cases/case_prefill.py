"""Attention of prompt chunks with and without a cached prefix, in one window and in several, against float64."""

from __future__ import annotations

import pytest
import torch
from arc.kernels import Target
from arc.kernels.reference import BACKEND as TORCH
from arc.kernels.triton import prefill

from ...oracles import Paged, prompt_attention
from .common import DEVICE, DTYPES, near, offered, randn

CASES = [  # (length, count) of each row; heads, rank, nope, rope, v
    ([(1, 1)], 2, 16, 8, 4, 8),
    ([(40, 40), (7, 7), (16, 16)], 3, 32, 16, 8, 16),
    (
        [(100, 30), (65, 1), (64, 64), (33, 32)],
        3,
        24,
        12,
        6,
        20,
    ),  # cached prefixes, sizes that are no power of two
    ([(150, 140), (3, 2)], 2, 64, 128, 64, 128),  # the published models' heads; more queries than a tile
]


def attend(chunks, heads, rank, nope, rope, v, dtype, page_size=16, form="stored"):
    op, reference = offered("mla_prefill", dtype)
    up = TORCH.offer("kv_up", Target(DEVICE, dtype))
    lengths, counts = [length for length, _ in chunks], [count for _, count in chunks]
    paged = Paged(lengths, page_size, rank, rope, dtype, device=DEVICE, form=form)
    key_up, value_up = (randn(heads, n, rank, dtype=dtype) / rank**0.5 for n in (nope, v))
    packed = up.pack(key_up, value_up)
    expand = lambda latents: up.expand(latents, packed)  # noqa: E731
    q, scale = randn(sum(counts), heads, nope + rope, dtype=dtype), (nope + rope) ** -0.5
    plan = op.plan(lengths, counts, paged.tables, page_size, heads)
    got = op(q, paged.cache, plan, scale=scale, rank=rank, expand=expand)
    want = prompt_attention(q, chunks, paged.rows, key_up, value_up, scale)
    plan_of = reference.plan(lengths, counts, paged.tables, page_size, heads)
    clean = paged.cache.nan_to_num(0.0) if form == "stored" else paged.cache
    beside = reference(q, clean, plan_of, scale=scale, rank=rank, expand=expand)
    return got, want, beside, plan


@DTYPES
@pytest.mark.parametrize(("chunks", "heads", "rank", "nope", "rope", "v"), CASES, ids=str)
def test_prompt_chunks(dtype, chunks, heads, rank, nope, rope, v):
    got, want, beside, plan = attend(chunks, heads, rank, nope, rope, v, dtype)
    assert got.dtype == dtype
    assert len(plan.windows) == 1
    near(got, want, dtype, factor=2)
    near(got, beside, dtype, factor=4)


@DTYPES
@pytest.mark.parametrize(("chunks", "heads", "rank", "nope", "rope", "v"), CASES[2:3], ids=str)
def test_prompt_chunks_over_latents_in_fp8(dtype, chunks, heads, rank, nope, rope, v):
    got, want, _, _ = attend(chunks, heads, rank, nope, rope, v, dtype, form="fp8")
    near(got, want, dtype, factor=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("most", [64, 70])
def test_a_context_in_several_windows(dtype, most, monkeypatch):
    monkeypatch.setattr(prefill, "_MOST_KEYS", 2 * most)
    got, want, _, plan = attend([(150, 20), (10, 10), (90, 90), (1, 1)], 2, 16, 8, 4, 8, dtype, page_size=8)
    assert len(plan.windows) == -(-251 // most)
    near(got, want, dtype, factor=2)


def test_windows_hold_every_token_once_and_no_more_than_they_may():
    for lengths, most in (([5], 64), ([64, 64], 64), ([100, 3, 300], 64), ([1] * 200, 64)):
        windows = prefill.cut_windows(lengths, most)
        assert all(0 < sum(end - begin for _, begin, end in window) <= most for window in windows)
        tokens = [(row, n) for window in windows for row, begin, end in window for n in range(begin, end)]
        assert tokens == [(row, n) for row, length in enumerate(lengths) for n in range(length)]
