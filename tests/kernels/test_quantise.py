"""Experts in fp8 and int4: the torch reference against float64, and who takes them."""

from __future__ import annotations

import pytest
import torch
from arc.kernels import KernelError, Target, resolve
from arc.kernels.quantise import FORMS, dequantise, quantise
from arc.kernels.triton import BACKEND as TRITON

from .test_reference import gated, mlp

CPU = torch.device("cpu")
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}  # relative norms
KEPT = {"fp8": 0.04, "int4": 0.16}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (130, 257), (3, 2, 40, 200)], ids=str)
def test_weights_come_back_near_what_they_were(form, shape):
    weight = torch.randn(shape)
    kept = quantise(weight, form)
    back = dequantise(kept, form, shape[-1])
    assert back.shape == weight.shape
    assert (back - weight).norm() <= KEPT[form] * weight.norm()
    assert kept.values.element_size() == 1
    again = dequantise(quantise(back, form), form, shape[-1])
    torch.testing.assert_close(again, back, rtol=1e-6, atol=0.0)  # what is kept is kept again


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("tokens", [1, 40])
def test_experts_are_exact_for_the_weights_they_keep(form, dtype, shared, tokens):
    ops = resolve("torch", Target(CPU, dtype, form))
    hidden, inner, experts, top_k = 136, 48, 5, 2
    x = torch.randn(tokens, hidden).to(dtype)
    own = [gated(inner, hidden, dtype) for _ in range(experts)]
    extra = gated(shared * inner, hidden, dtype) if shared else None
    weights, indices = torch.rand(tokens, top_k), torch.rand(tokens, experts - 1).topk(top_k).indices
    got = ops.moe_experts(x, weights, indices, ops.moe_experts.pack(iter(own), experts, extra, top_k))
    parts = [*own]
    if extra is not None:
        parts += zip(extra[0].split(inner, 1), extra[1].split(inner, 1), strict=True)
    keep = lambda each: dequantise(quantise(each, form), form, each.shape[-1])  # noqa: E731
    kept = [(keep(gate_up), keep(down)) for gate_up, down in parts]
    want = torch.zeros(tokens, hidden, dtype=torch.float64)
    for expert, part in enumerate(kept):
        share = (weights.double() * (indices == expert)).sum(-1, keepdim=True) if expert < experts else 1.0
        want += share * mlp(x.double(), part)
    assert got.dtype == dtype
    assert (got.double() - want).norm() <= BOUNDS[dtype] * want.norm()


def test_who_keeps_experts_how():
    def line(weights: str):
        kernels = resolve("auto", Target(CPU, torch.bfloat16, weights))
        return next(each for each in kernels.table() if each.operation == "moe_experts")

    assert line("int4").backend == line("int8").backend == "native"
    fp8 = line("fp8")
    assert fp8.backend == "torch"
    assert dict(fp8.refused)["native"] == "it keeps weights as stored, in int8 or in int4, not in fp8"
    card = Target(torch.device("cuda"), torch.bfloat16, "int8")
    assert "not in int8" in TRITON.offer("moe_experts", card).reason
    with pytest.raises(KernelError, match=r"no backend runs linear .*as stored, not in int8"):
        resolve("torch", Target(CPU, torch.bfloat16, "int8"))
