"""What the kernels' benchmark counts, by hand."""

from __future__ import annotations

import pytest
import torch
from arc.kernels import Target, bench, resolve
from arc.kernels.bench import Rates, Work


def test_decode_reads_each_latent_once():
    work = bench.decode_work([8192] * 64, heads=128, slot=1152, itemsize=2)
    assert work.bytes == 64 * 8192 * 1152 + 64 * 128 * (576 + 512) * 2
    assert work.operations == 64 * 8192 * 128 * (2 * 576 + 2 * 512)
    few = bench.decode_work([1], heads=1, slot=1152, itemsize=2)
    assert few == Work(2 * (576 + 576 + 512), 2 * (576 + 512))


@pytest.mark.parametrize(("form", "slot"), [("stored", 1152), ("fp8", 656)])
def test_a_case_runs_over_latents_as_they_are_kept(form, slot):
    device = torch.device("cpu")
    case = bench._decode([70, 3], 2, form)
    kernels = resolve("torch", Target(device, torch.bfloat16, latents=case.latents))
    run, work = case.build(kernels, device)
    assert run().shape == (2, 2, 512)
    assert work.bytes == 73 * slot + 2 * 2 * (576 + 512) * 2


def test_experts_read_the_weights_of_those_that_are_used():
    one = 3 * 7168 * 2048
    assert bench.experts_work(1, used=8, choices=8, weight=2, itemsize=2) == Work(
        8 * one * 2 + 4 * 7168, 16 * one
    )


def test_a_line_gives_shares_of_what_was_measured():
    line = bench.line("x", 1e-3, 2e-3, Work(bytes=2e9, operations=3e11), Rates(bandwidth=4e12, matrix=1e15))
    assert line.split() == ["x", "1000.0", "50.0", "30.0", "2000.0", "2.00"]
