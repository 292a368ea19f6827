"""A whole model with every operation of this backend, against the same weights with the reference's."""

from __future__ import annotations

import dataclasses
import zlib

import pytest
import torch
from arc.engine.model.cache import LatentCache, slot_of
from arc.engine.model.deepseek import DeepseekModel
from arc.kernels import Target, resolve

from ....engine.deepseek_cases import Case, Runner
from .common import DEVICE

CASES = {
    "V3": Case("v3", 3, experts=8, top_k=3, groups=4, top_groups=2, shared=2, heads=3, layers=2),
    "V2": Case("v2", 2, experts=6, top_k=2, q_lora_rank=None, heads=2, layers=2),
}


class RandomSource:
    """The same tensor for the same name, whoever asks."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def get(self, name, shape, *, dtype=None, rows=None):
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
        tensor = torch.randn(shape, generator=generator) * scale
        return (tensor if rows is None else tensor[rows]).to(DEVICE, dtype or self._dtype)

    def has(self, name: str) -> bool:
        return True

    def finish(self) -> None: ...


def run(case: Case, backend: str, steps, kept: str = "stored") -> list[torch.Tensor]:
    """`kept`: the form of the experts and of the latents."""
    kernels = resolve(backend, Target(DEVICE, torch.float32, kept, latents=kept))
    if backend == "triton":
        assert sum(line.backend == "triton" for line in kernels.table()) >= 9
    model = DeepseekModel(
        case.config(), RandomSource(torch.float32), dtype=torch.float32, device=DEVICE, kernels=kernels
    )
    runner = Runner(model)
    config = model.config
    width, dtype = slot_of(config, torch.float32, kept)
    cache = LatentCache(config.layers, 64, runner.page_size, width, dtype=dtype, device=DEVICE)
    logits: list[torch.Tensor] = []
    for rows, decode_rows in steps:
        batch = runner.batch(rows, decode_rows)
        moved = {
            field.name: value.to(DEVICE)
            for field in dataclasses.fields(batch)
            if isinstance(value := getattr(batch, field.name), torch.Tensor)
        }
        logits.append(model.forward(dataclasses.replace(batch, **moved), cache).logits)
    return logits


PROMPT = [(7 * n) % 97 for n in range(40)]
STEPS = [
    ([("a", PROMPT[:21]), ("b", PROMPT[:3])], 0),
    ([("b", [5]), ("a", PROMPT[21:]), ("c", PROMPT[:9])], 1),  # decode beside a chunk with a prefix
    ([("a", [1]), ("b", [2, 3, 4]), ("c", [9])], 3),  # several queries a row
]


@pytest.mark.parametrize("name", CASES)
def test_a_model_gives_the_logits_that_the_reference_gives(name):
    for got, want in zip(run(CASES[name], "triton", STEPS), run(CASES[name], "torch", STEPS), strict=True):
        assert bool(got.isfinite().all())
        assert (got - want).norm() <= 1e-5 * want.norm()


def test_a_model_with_experts_and_latents_in_fp8_does_too():
    """Sums in another order move a latent's value to the next code of 8 bits now and then; what that costs is small."""
    case = CASES["V3"]
    for got, want in zip(run(case, "triton", STEPS, "fp8"), run(case, "torch", STEPS, "fp8"), strict=True):
        assert bool(got.isfinite().all())
        assert (got - want).norm() <= 1e-2 * want.norm()
