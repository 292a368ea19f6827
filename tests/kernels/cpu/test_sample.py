"""Drawing in C++ against the reference's tokens and the obvious sampler, on every instruction set of this processor."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from arc.engine.sampling.uniform import stream_key, uniforms
from arc.kernels import Target
from arc.kernels.cpu import NativeBackend
from arc.kernels.operations import Sample
from arc.kernels.reference.sample import TorchSample
from hypothesis import given, settings
from hypothesis import strategies as st

from ...engine.sampling.reference import Filters
from ..test_sample import kinds, make_logits, some_filters, uniform_numbers
from .test_operations import CPU, LEVELS

TARGET = Target(CPU, torch.float32)
OPS: dict[str, Sample] = {level: NativeBackend(level).offer("sample", TARGET) for level in LEVELS}
TORCH: Sample = TorchSample()
each = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())


def choose(op: Sample, logits: torch.Tensor, filters: list[Filters], uniform: list[float]) -> list[int]:
    plan = op.plan(
        temperature=[f.temperature for f in filters],
        top_k=[f.top_k for f in filters],
        top_p=[f.top_p for f in filters],
        min_p=[f.min_p for f in filters],
        vocab_size=logits.shape[1],
        device=CPU,
    )
    return op(logits, plan, torch.tensor(uniform, dtype=torch.float64)).tolist()


@each
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from([1, 2, 7, 15, 16, 17, 64, 100, 256, 257, 320, 4200]),
    kind=kinds,
    rows=st.lists(st.tuples(some_filters, uniform_numbers), min_size=1, max_size=4),
)
def test_every_draw_is_the_one_that_the_obvious_sampler_makes(op, seed, vocab, kind, rows):
    logits = make_logits(seed, len(rows), vocab, kind)
    chosen = choose(op, logits, [f for f, _ in rows], [u for _, u in rows])
    for row, token, (filters, uniform) in zip(logits.tolist(), chosen, rows, strict=True):
        assert filters.allows(row, token, uniform)


GRID = [
    Filters(heat, top_k, top_p, min_p)
    for heat, top_k, top_p, min_p in itertools.product(
        (0.0, 0.3, 1.0, 2.0), (0, 1, 40, 300), (1.0, 0.9, 0.3), (0.0, 0.02)
    )
]


@each
@pytest.mark.parametrize("vocab", [1, 3, 33, 2048, 5003])
@pytest.mark.parametrize("kind", ["normal", "flat", "peaked", "tied", "barred"])
def test_the_tokens_are_the_references(op, vocab, kind):
    """A draw may differ only where its uniform number lies within fp32's rounding of a border between two tokens."""
    logits = make_logits(vocab, len(GRID), vocab, kind)
    uniform = np.random.default_rng(1).random(len(GRID)).tolist()
    got, want = choose(op, logits, GRID, uniform), choose(TORCH, logits, GRID, uniform)
    for row, (token, other) in enumerate(zip(got, want, strict=True)):
        if token != other:
            assert GRID[row].temperature > 0
            assert GRID[row].allows(logits[row].tolist(), token, uniform[row], eps=1e-6)
    assert sum(a != b for a, b in zip(got, want, strict=True)) <= 2


HUGE = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).smallest_subnormal)


def adversarial(vocab: int) -> dict[str, torch.Tensor]:
    zeros = torch.zeros(vocab)
    place = torch.arange(vocab)
    one = torch.full((vocab,), -torch.inf)
    one[vocab // 2] = -HUGE
    mixed = torch.where(place % 3 == 0, torch.tensor(-torch.inf), (place % 7).float())
    return {
        "all equal": zeros + 3,
        "one finite": one,
        "only the last": torch.where(place == vocab - 1, torch.tensor(0.0), torch.tensor(-torch.inf)),
        "huge": torch.where(place % 2 == 0, torch.tensor(HUGE / 4), torch.tensor(-HUGE / 4)),
        "denormal": place.float() * TINY,
        "both zeros": torch.where(place % 2 == 0, torch.tensor(-0.0), torch.tensor(0.0)),
        "some barred": mixed,
        "falling": -place.float() / 50,
        "rising": place.float() / 50,
    }


@each
@pytest.mark.parametrize("vocab", [5, 64, 300, 1031])
@pytest.mark.parametrize("what", adversarial(5))
def test_adversarial_rows(op, vocab, what):
    row = adversarial(vocab)[what]
    chosen = [f for f in GRID if f.temperature in (0.0, 1.0)]
    for uniform in (0.0, 0.5, 1 - 2.0**-53):
        logits = row.repeat(len(chosen), 1)
        tokens = choose(op, logits, chosen, [uniform] * len(chosen))
        wanted = choose(TORCH, logits, chosen, [uniform] * len(chosen))
        assert all(math.isfinite(row[token]) for token in tokens)
        for f, token, want in zip(chosen, tokens, wanted, strict=True):
            if token != want:  # beyond rounding at a border it is the same token
                assert f.allows(row.tolist(), token, uniform), (f, token, want)


@each
def test_greedy_is_the_lowest_of_the_largest_wherever_it_stands(op):
    for vocab in (1, 2, 15, 16, 17, 255, 256, 257, 700):
        for place in {0, vocab // 3, vocab - 2, vocab - 1} & set(range(vocab)):
            row = torch.full((1, vocab), -1.0)
            row[0, place:] = 2.0
            assert choose(op, row, [Filters(0.0)], [0.7]) == [place]
            assert choose(op, row, [Filters(1.0, top_k=1)], [0.7]) == [place]


@each
def test_a_row_gets_in_any_batch_and_on_any_threads_what_it_gets_alone(op):
    logits = make_logits(4, len(GRID), 3000, "normal")
    uniform = np.random.default_rng(2).random(len(GRID)).tolist()
    alone = [choose(op, logits[i : i + 1], GRID[i : i + 1], uniform[i : i + 1])[0] for i in range(len(GRID))]
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert choose(op, logits, GRID, uniform) == alone
    finally:
        torch.set_num_threads(before)


@each
@pytest.mark.parametrize(
    "filters",
    [
        Filters(1.0),
        Filters(0.7, top_k=5),
        Filters(1.3, top_p=0.8),
        Filters(0.9, min_p=0.1),
        Filters(1.5, top_k=9, top_p=0.9, min_p=0.02),
    ],
)
def test_draws_have_the_exact_distribution(op, filters):
    draws = 20_000
    row = make_logits(11, 1, 12, "normal")
    keys = np.array([stream_key(s) for s in range(100)], np.uint64).repeat(draws // 100)
    uniform = uniforms(keys, np.tile(np.arange(draws // 100, dtype=np.uint64), 100))
    chosen = choose(op, row.expand(draws, -1).contiguous(), [filters] * draws, uniform.tolist())
    counts = np.bincount(chosen, minlength=12)
    expected = dict(filters.distribution(row[0].tolist()))
    assert {i for i in range(12) if counts[i]} <= set(expected)
    statistic = sum((counts[i] - draws * p) ** 2 / (draws * p) for i, p in expected.items())
    freedom = len(expected) - 1
    assert freedom > 0
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5 + 4


@each
def test_rows_that_are_no_numbers_are_found_and_still_give_some_token(op):
    for vocab in (1, 7, 16, 100, 2049):
        logits = torch.zeros(12, vocab)
        logits[1, vocab - 1] = math.nan
        logits[4, 0] = math.inf
        logits[5, vocab // 2] = -math.inf
        logits[9] = math.nan
        logits[11] = HUGE  # its sum is past fp32's numbers, and it is sound
        assert op.not_finite(logits) == [1, 4, 5, 9] == TORCH.not_finite(logits)
        assert op.not_finite(logits[2:4]) == []
        filters = [Filters(0.0), Filters(1.0), Filters(1.0, top_k=3), Filters(1.0, top_p=0.5)] * 3
        logits[8] = -math.inf
        assert all(0 <= token < vocab for token in choose(op, logits, filters, [0.5] * 12))
