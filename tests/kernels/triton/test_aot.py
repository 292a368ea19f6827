"""Every kernel compiles for every card within its limits, and what does not is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict

import pytest
import torch
from arc.kernels.triton import aot, decode, experts, gate, latents, pointwise, prefill, routing, sample
from arc.kernels.triton.launch import arch_of, recording
from arc.kernels.triton.resources import CARDS, Usage, compile_for

MODULES = (decode, experts, gate, latents, pointwise, prefill, routing, sample)
GOOD = Usage(registers=100, spilled=0, shared=1000, tensor_memory=0, matrix=8)


def run_aot(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "arc.kernels.triton.aot", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_kernel_compiles_for_every_card_without_a_spill():
    environment = {"TRITON_INTERPRET": ""} if "TRITON_INTERPRET" in os.environ else {}
    run = run_aot(**environment)
    assert run.returncode == 0, run.stdout + run.stderr
    compiled = defaultdict(set)
    for line in run.stdout.splitlines()[1:-1]:
        kernel, card = line[24:40].strip(), line[40:48].strip()
        compiled[card].add(kernel)
        assert line.endswith("  ok")
    kernels = {
        name.removesuffix("_kernel")
        for module in MODULES
        for name in vars(module)
        if name.endswith("_kernel") and not name.startswith("_")
    }
    assert len(kernels) >= 12
    assert set(compiled) == set(CARDS)
    assert all(of == kernels for of in compiled.values())


def test_an_over_large_tile_is_refused(monkeypatch):
    """More shared memory than the card has: Triton compiles it all the same."""
    monkeypatch.setattr(decode, "tile_of", lambda *_: decode.Tile(64, 64, warps=8, stages=1))
    card = CARDS["sm_80"]
    launch = aot.launches_of(aot.CASES["decode, 128 heads"], card.arch)[0]
    problems = compile_for(launch, card).problems(card, multiplies=True)
    assert any("shared memory, 166912 are there" in problem for problem in problems)
    assert any("spilled" in problem for problem in problems)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"spilled": 8}, "8 spilled"),
        ({"shared": 166_913}, "166913 bytes of shared memory"),
        ({"registers": 256}, "256 registers"),
        ({"registers": 0}, "the kernel is empty"),
        ({"tensor_memory": 1}, "1 columns of tensor memory"),
        ({"matrix": 0}, "no matrix instruction"),
    ],
)
def test_each_limit_has_its_words(change, problem):
    card = CARDS["sm_80"]
    assert GOOD.problems(card, multiplies=True) == []
    values = {name: getattr(GOOD, name) for name in GOOD.__slots__}
    found = Usage(**(values | change)).problems(card, multiplies=True)
    assert len(found) == 1
    assert found[0].startswith(problem) or problem in found[0]


def test_what_an_interpreted_triton_cannot_do_is_said():
    run = run_aot(TRITON_INTERPRET="1")
    assert run.returncode == 1
    assert "TRITON_INTERPRET is set" in run.stderr


def test_a_recorded_launch_is_not_made():
    """The launches of tensors without data; made for real, this would fail."""
    with recording() as launches:
        pointwise.rms_norm(
            torch.empty(2, 8, device="meta"), torch.empty(8, device="meta"), 1e-6, torch.float32
        )
    assert [each.kernel.__name__ for each in launches] == ["rms_norm_kernel"]
    assert arch_of(torch.device("cpu")).name == "interpreter"
