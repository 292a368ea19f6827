"""Decode attention of ragged rows over shuffled pages, whose other places hold NaN, against float64."""

from __future__ import annotations

import pytest
import torch
from arc.kernels.triton.decode import TritonMlaDecode
from arc.kernels.triton.launch import Arch

from ...oracles import Paged, decode_attention
from .common import DEVICE, DTYPES, near, offered, randn

# The interpreter counts four processors, so a step is cut into as many parts as eight programs take.
CASES = [
    ([1], [1], 3, 64, 16),
    ([16, 32, 1, 17], [1, 1, 1, 1], 4, 64, 16),  # ends at a page's border, and one past it
    ([700, 3, 33, 1], [1, 1, 1, 1], 5, 32, 8),  # one long row among short ones
    ([900], [1], 2, 64, 16),  # one row, many parts
    ([64, 20, 300], [4, 1, 2], 3, 24, 8),  # several queries a row, a rank that is no power of two
    ([3, 2, 640], [3, 2, 5], 7, 16, 16),  # a row that is all queries; parts of which some queries see nothing
    ([40, 9], [1, 1], 128, 32, 4),
    ([70, 260], [1, 2], 16, 512, 64),  # the published models' size
]


@DTYPES
@pytest.mark.parametrize(("lengths", "counts", "heads", "rank", "rope"), CASES, ids=str)
def test_ragged_rows(dtype, lengths, counts, heads, rank, rope):
    op, reference = offered("mla_decode", dtype)
    paged = Paged(lengths, 16, rank, rope, dtype, device=DEVICE)
    q = randn(sum(counts), heads, rank + rope, dtype=dtype)
    scale = (rank + rope) ** -0.5
    want, sums = decode_attention(q, paged.rows, counts, scale, rank)
    got, lse = op.attend(
        q, paged.cache, op.plan(lengths, counts, paged.tables, 16, rank + rope), scale=scale, rank=rank
    )
    near(got, want, dtype)
    assert (lse.double() - sums).abs().max() <= (1e-5 if dtype == torch.float32 else 2e-2)
    # The reference may multiply what lies past a row by zero, so it gets a cache without NaN.
    clean = paged.cache.nan_to_num(0.0)
    plan = reference.plan(lengths, counts, paged.tables, 16, rank + rope)
    near(got, reference(q, clean, plan, scale=scale, rank=rank), dtype, factor=2)


FP8 = [CASES[n] for n in (1, 4, 7)]


@DTYPES
@pytest.mark.parametrize(("lengths", "counts", "heads", "rank", "rope"), FP8, ids=str)
def test_latents_in_fp8(dtype, lengths, counts, heads, rank, rope):
    op, reference = offered("mla_decode", dtype)
    paged = Paged(lengths, 16, rank, rope, dtype, device=DEVICE, form="fp8")
    q = randn(sum(counts), heads, rank + rope, dtype=dtype)
    scale = (rank + rope) ** -0.5
    want, sums = decode_attention(q, paged.rows, counts, scale, rank)
    got, lse = op.attend(
        q, paged.cache, op.plan(lengths, counts, paged.tables, 16, rank + rope), scale=scale, rank=rank
    )
    near(got, want, dtype)  # nothing is lost beside what the cache does not keep
    assert (lse.double() - sums).abs().max() <= (1e-5 if dtype == torch.float32 else 2e-2)
    held = torch.zeros(len(paged.cache), dtype=torch.bool, device=DEVICE)
    for table, length in zip(paged.tables, lengths, strict=True):
        place = torch.arange(length, device=DEVICE)
        held[table[place // 16] * 16 + place % 16] = True
    clean = paged.cache.clone()
    clean[~held] = 0
    plan = reference.plan(lengths, counts, paged.tables, 16, rank + rope)
    near(got, reference(q, clean, plan, scale=scale, rank=rank), dtype, factor=3)


@pytest.mark.parametrize("page_size", [1, 8, 64, 128])
def test_any_page_size(page_size):
    op, _ = offered("mla_decode", torch.float32)
    lengths = [200, 64, 65]
    paged = Paged(lengths, page_size, 16, 8, torch.float32, device=DEVICE)
    q = randn(3, 2, 24)
    got = op(q, paged.cache, op.plan(lengths, [1, 1, 1], paged.tables, page_size, 24), scale=0.2, rank=16)
    near(got, decode_attention(q, paged.rows, [1, 1, 1], 0.2, 16)[0], torch.float32)


def test_rows_of_1_and_of_131072_tokens_in_one_launch():
    op, _ = offered("mla_decode", torch.float16)
    lengths = [1, 131_072, 65]
    paged = Paged(lengths, 64, 16, 8, torch.float16, device=DEVICE)
    q = randn(3, 1, 24, dtype=torch.float16) * 2
    plan = op.plan(lengths, [1, 1, 1], paged.tables, 64, 24)
    got, lse = op.attend(q, paged.cache, plan, scale=0.3, rank=16)
    want, sums = decode_attention(q, paged.rows, [1, 1, 1], 0.3, 16)
    near(got, want, torch.float16, factor=2)
    near(lse, sums, torch.float16)


def test_however_it_is_cut_the_result_is_the_same():
    lengths, counts = [900, 70, 257], [1, 2, 1]
    paged = Paged(lengths, 32, 16, 8, torch.float32, device=DEVICE)
    q = randn(4, 3, 24)
    want, sums = decode_attention(q, paged.rows, counts, 0.2, 16)
    for processors in (1, 3, 100):
        op = TritonMlaDecode(Arch("interpreter" if DEVICE.type == "cpu" else "sm_80", processors, 1 << 20))
        got, lse = op.attend(
            q, paged.cache, op.plan(lengths, counts, paged.tables, 32, 24), scale=0.2, rank=16
        )
        near(got, want, torch.float32)
        near(lse, sums, torch.float32)


def test_one_plan_serves_every_layer():
    op, _ = offered("mla_decode", torch.float32)
    lengths = [600, 5]
    first = Paged(lengths, 16, 16, 8, torch.float32, device=DEVICE)
    plan = op.plan(lengths, [1, 1], first.tables, 16, 24)
    for layer in (first, Paged(lengths, 16, 16, 8, torch.float32, device=DEVICE, tables=first.tables)):
        q = randn(2, 3, 24)
        got = op(q, layer.cache, plan, scale=0.1, rank=16)
        near(got, decode_attention(q, layer.rows, [1, 1], 0.1, 16)[0], torch.float32)


def test_a_fixed_plan_serves_one_step_after_another():
    """As a captured graph has it: the same memory and the same launches, whatever the lengths."""
    op, _ = offered("mla_decode", torch.float32)
    plan = op.fixed_plan(3, 2, 40, 16, DEVICE)
    launched: set[tuple[int, int, int]] = set()
    for lengths, counts in (([1, 1, 1], [1, 1, 1]), ([600, 3], [2, 2]), ([40, 640, 300], [1, 2, 1])):
        paged = Paged(lengths, 16, 16, 8, torch.float32, device=DEVICE)
        op.refill(plan, lengths, counts, paged.tables)
        q = randn(6, 2, 24)  # the last of them belong to no row, and their results to nobody
        got, lse = op.attend(q, paged.cache, plan, scale=0.2, rank=16)
        want, sums = decode_attention(q, paged.rows, counts, 0.2, 16)
        near(got[: len(want)], want, torch.float32)
        near(lse[: len(want)], sums, torch.float32)
        launched |= {(cut.size, cut.parts, cut.items.data_ptr()) for cut in plan.cuts.values()}
    assert len(launched) == 1


def test_large_scores_do_not_overflow():
    op, _ = offered("mla_decode", torch.float32)
    paged = Paged([300, 40], 16, 16, 8, torch.float32, device=DEVICE)
    q = randn(2, 3, 24) * 300
    got = op(q, paged.cache, op.plan([300, 40], [1, 1], paged.tables, 16, 24), scale=1.0, rank=16)
    near(got, decode_attention(q, paged.rows, [1, 1], 1.0, 16)[0], torch.float32, factor=20)


@pytest.mark.parametrize("form", ["stored", "fp8"])
def test_a_row_that_is_not_finite_spoils_itself_alone(form):
    op, _ = offered("mla_decode", torch.float32)
    lengths = [600, 30, 700]
    paged = Paged(lengths, 16, 16, 8, torch.float32, device=DEVICE, form=form)
    paged.cache[paged.tables[1, 0] * 16 + 3] = float("nan") if form == "stored" else 0xFF
    got = op(
        randn(3, 2, 24), paged.cache, op.plan(lengths, [1, 1, 1], paged.tables, 16, 24), scale=0.2, rank=16
    )
    assert bool(got[[0, 2]].isfinite().all())
    assert bool(got[1].isnan().all())
