"""Sampling against the obvious sampler, which sorts: the same token, or the one beside a border that the draw is at."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from arc.kernels.triton.sample import TritonSample

from ....engine.sampling.reference import Filters
from .common import DEVICE


def choose(logits: torch.Tensor, filters: list[Filters], uniform: list[float]) -> list[int]:
    op = TritonSample()
    plan = op.plan(
        temperature=[f.temperature for f in filters],
        top_k=[f.top_k for f in filters],
        top_p=[f.top_p for f in filters],
        min_p=[f.min_p for f in filters],
        vocab_size=logits.shape[1],
        device=DEVICE,
    )
    return op(logits.to(DEVICE), plan, torch.tensor(uniform, dtype=torch.float64)).tolist()


def make_logits(rows: int, vocab: int, kind: str) -> torch.Tensor:
    rng = np.random.default_rng(rows * vocab)
    values = rng.normal(size=(rows, vocab)) * {"flat": 0.01, "peaked": 12.0}.get(kind, 2.0)
    if kind == "tied":
        values = np.round(values)
    logits = torch.from_numpy(values.astype(np.float32))
    if kind == "barred":
        logits[torch.from_numpy(rng.random((rows, vocab)) < 0.5)] = -torch.inf
        logits[:, int(rng.integers(vocab))] = 1.0
    return logits


FILTERS = [
    Filters(1.0),
    Filters(0.7, top_k=1),
    Filters(0.7, top_k=5),
    Filters(1.5, top_k=40, top_p=0.9),
    Filters(2.0, top_p=0.999),
    Filters(1.0, top_p=1e-9),
    Filters(1.0, min_p=0.05),
    Filters(0.9, top_k=30, top_p=0.8, min_p=0.02),
    Filters(1.0, min_p=1.0),
]


@pytest.mark.parametrize(
    ("vocab", "kind"),
    [(2, "normal"), (100, "peaked"), (100, "barred"), (100, "tied"), (600, "flat"), (1500, "normal")],
)
def test_the_same_token_as_the_sampler_that_sorts(kind, vocab):
    logits = make_logits(len(FILTERS), vocab, kind)
    uniforms = np.random.default_rng(vocab).random(len(FILTERS)).tolist()
    for row, token, filters, uniform in zip(
        logits.tolist(), choose(logits, FILTERS, uniforms), FILTERS, uniforms, strict=True
    ):
        assert filters.allows(row, token, uniform), (filters, uniform, token)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_unit_interval(uniform):
    logits = make_logits(len(FILTERS), 60, "tied")
    for row, token, filters in zip(
        logits.tolist(), choose(logits, FILTERS, [uniform] * len(FILTERS)), FILTERS, strict=True
    ):
        assert filters.allows(row, token, uniform), (filters, token)


def test_a_temperature_of_nothing_takes_the_first_maximum():
    logits = make_logits(3, 300, "tied")
    logits[2, [7, 250]] = 50.0
    greedy = [Filters(0.0), Filters(9e-6, top_k=3), Filters(0.0, top_p=0.5)]
    assert choose(logits, greedy, [0.9] * 3) == logits.argmax(-1).tolist()


def test_equal_values_are_counted_off_by_id():
    """All tokens weigh the same: the first k stay, and the draw walks through them in order."""
    for place, token in enumerate(
        choose(torch.zeros(7, 700), [Filters(1.0, top_k=7)] * 7, [(n + 0.5) / 7 for n in range(7)])
    ):
        assert token == place
    signed = torch.tensor([[-0.0, 0.0, -1.0, 0.0]] * 3)
    assert choose(signed, [Filters(1.0, top_k=3)] * 3, [0.1, 0.5, 0.9]) == [0, 1, 3]


def test_a_row_gets_in_any_batch_what_it_gets_alone():
    some = FILTERS[3:7]
    logits = make_logits(len(some), 260, "normal")
    together = choose(logits, some, [0.3] * len(some))
    alone = [choose(logits[n : n + 1], [some[n]], [0.3])[0] for n in range(len(some))]
    assert together == alone


def test_what_is_barred_never_comes():
    logits = torch.full((6, 50), -torch.inf)
    logits[:, 17] = -3.0
    logits[:, 4] = -200.0  # weighs nothing in fp32
    assert set(
        choose(
            logits, [Filters(1.0), Filters(1.0, top_k=5), Filters(1.0, top_p=0.9)] * 2, [0.0, 0.5, 0.99] * 2
        )
    ) == {17}
