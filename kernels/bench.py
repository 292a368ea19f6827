"""`arc kernels bench`: each kernel's time on the card that is here, against what the card was measured to do.

Times are medians of triton.testing.do_bench, which clears the L2 cache between runs. Bytes and operations are counted
from the sizes and not by a profiler: what must be read and written once, and what must be multiplied. Bandwidth and
matrix rate, which fractions are of, are measured in the same run, by a copy and by a square product in bf16.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from . import latents
from .dispatch import KernelError, KernelSet, resolve
from .operations import Target

# DeepSeek-V3's sizes (arXiv:2412.19437).
HEADS, RANK, ROPE, HIDDEN, INNER, EXPERTS, TOP_K, VOCABULARY, PAGE = (
    128,
    512,
    64,
    7168,
    2048,
    256,
    8,
    129_280,
    64,
)
WIDTH = RANK + ROPE


@dataclass(frozen=True, slots=True)
class Work:
    """What an operation cannot do without."""

    bytes: float
    operations: float  # of the matrix units: a multiplication and an addition are two


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured on this card."""

    bandwidth: float  # bytes a second, read and written together
    matrix: float  # operations a second, bf16


def decode_work(lengths: list[int], heads: int, slot: int, itemsize: int) -> Work:
    """The slots of `slot` bytes once, queries in and results out; scores over the whole width, values over the rank."""
    tokens, rows = sum(lengths), len(lengths)
    moved = tokens * slot + rows * heads * (WIDTH + RANK) * itemsize
    return Work(moved, 2.0 * tokens * heads * (WIDTH + RANK))


def experts_work(tokens: int, used: int, choices: int, weight: float, itemsize: int) -> Work:
    """The weights of `used` experts once, `weight` bytes each, tokens in and out; three products a (token, choice)."""
    weights = used * 3 * HIDDEN * INNER * weight
    return Work(weights + 2 * tokens * HIDDEN * itemsize, 2.0 * tokens * choices * 3 * HIDDEN * INNER)


def norm_work(tokens: int, itemsize: int) -> Work:
    """The fp32 residual in and out, the update in, the result out."""
    return Work(tokens * HIDDEN * (8 + 2 * itemsize), 0.0)


def unmeasurable() -> str | None:
    """Why nothing can be measured here, or None."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if not torch.cuda.is_available():
        return "torch sees no CUDA or ROCm card on this machine"
    return None


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    build: Callable[[KernelSet, torch.device], tuple[Callable[[], Any], Work]]
    weights: str = "stored"
    latents: str = "stored"


def _decode(lengths: list[int], heads: int, form: str = "stored") -> Case:
    def build(kernels: KernelSet, device: torch.device) -> tuple[Callable[[], Any], Work]:
        most = -(-max(lengths) // PAGE)
        tables = torch.randperm(len(lengths) * most, device=device).view(len(lengths), most)
        values = torch.randn(len(lengths) * most * PAGE, WIDTH, device=device, dtype=torch.bfloat16)
        width, dtype = latents.slot(form, RANK, ROPE, torch.bfloat16)
        cache = values
        if form != "stored":
            cache = torch.zeros(len(values), width, device=device, dtype=dtype)
            slots = torch.arange(len(values), device=device)
            latents.write(cache, slots, values[:, :RANK].float(), values[:, RANK:])
        q = torch.randn(len(lengths), heads, WIDTH, device=device, dtype=torch.bfloat16)
        plan = kernels.mla_decode.plan(lengths, [1] * len(lengths), tables, PAGE, WIDTH)
        run = lambda: kernels.mla_decode(q, cache, plan, scale=0.07, rank=RANK)  # noqa: E731
        return run, decode_work(lengths, heads, width * dtype.itemsize, 2)

    shape = (
        f"{len(lengths)} rows x {lengths[0]:,}" if len(set(lengths)) == 1 else f"{len(lengths)} ragged rows"
    )
    kept = "" if form == "stored" else f", {form}"
    return Case(f"mla_decode, {shape}, {heads} heads{kept}", build, latents=form)


WEIGHT_BYTES = {"stored": 2.0, "fp8": 1 + 4 / 128**2, "int4": 0.5 + 4 / 128}  # with their scales


def _experts(tokens: int, form: str = "stored") -> Case:
    def build(kernels: KernelSet, device: torch.device) -> tuple[Callable[[], Any], Work]:
        experts = (
            (
                torch.randn(2, INNER, HIDDEN, device=device, dtype=torch.bfloat16) / HIDDEN**0.5,
                torch.randn(HIDDEN, INNER, device=device, dtype=torch.bfloat16) / INNER**0.5,
            )
            for _ in range(EXPERTS)
        )
        packed = kernels.moe_experts.pack(experts, EXPERTS, None, TOP_K)
        x = torch.randn(tokens, HIDDEN, device=device, dtype=torch.bfloat16)
        weights = torch.rand(tokens, TOP_K, device=device)
        indices = torch.rand(tokens, EXPERTS, device=device).topk(TOP_K).indices
        run = lambda: kernels.moe_experts(x, weights, indices, packed)  # noqa: E731
        return run, experts_work(tokens, len(indices.unique()), TOP_K, WEIGHT_BYTES[form], 2)

    kept = "" if form == "stored" else f", {form}"
    return Case(f"moe_experts, {tokens:,} tokens{kept}", build, weights=form)


def _norm(tokens: int) -> Case:
    def build(kernels: KernelSet, device: torch.device) -> tuple[Callable[[], Any], Work]:
        residual = torch.randn(tokens, HIDDEN, device=device)
        update = torch.randn(tokens, HIDDEN, device=device, dtype=torch.bfloat16)
        weight = torch.ones(HIDDEN, device=device)
        return lambda: kernels.add_rms_norm(residual, update, weight, 1e-6), norm_work(tokens, 2)

    return Case(f"add_rms_norm, {tokens:,} tokens", build)


CASES = (
    _decode([8192] * 64, 128),
    _decode([8192] * 64, 16),
    _decode([131_072, *[1024] * 63], 16),
    _decode([8192] * 64, 128, "fp8"),
    _decode([8192] * 64, 16, "fp8"),
    _experts(16),
    _experts(4096),
    _experts(16, "fp8"),
    _experts(16, "int4"),
    _norm(64),
    _norm(4096),
)


def median_seconds(run: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    milliseconds = do_bench(run, return_mode="median")
    assert isinstance(milliseconds, float), "one median was asked for"
    return milliseconds * 1e-3


def measured_rates(device: torch.device) -> Rates:
    source = torch.empty(1 << 28, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    copy = median_seconds(lambda: target.copy_(source))
    side = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    product = median_seconds(lambda: side @ side)
    return Rates(2 * source.nbytes / copy, 2 * 8192**3 / product)


def line(name: str, seconds: float, beside: float, work: Work, rates: Rates) -> str:
    """One case: its time, its share of either rate, and torch's own time."""
    bandwidth = work.bytes / seconds / rates.bandwidth
    matrix = work.operations / seconds / rates.matrix
    return (
        f"{name:<46}{seconds * 1e6:>10.1f}{100 * bandwidth:>11.1f}{100 * matrix:>9.1f}{beside * 1e6:>12.1f}"
        f"{beside / seconds:>8.2f}"
    )


HEADER = f"{'case':<46}{'us':>10}{'% of copy':>11}{'% of mm':>9}{'torch, us':>12}{'ratio':>8}"
PEERS = ("flashinfer", "vllm")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="arc kernels bench", description="Measure the kernels on this machine's card."
    )
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    reason = unmeasurable()
    if reason is not None:
        print(HEADER)
        for case in CASES:
            print(f"{case.name:<46}{'NA':>10}{'NA':>11}{'NA':>9}{'NA':>12}{'NA':>8}")
        print(f"NA: {reason}")
        return 0
    device = torch.device(arguments.device)
    try:
        resolve("triton", Target(device, torch.bfloat16))
    except KernelError as error:
        print(f"arc kernels bench: {error}", file=sys.stderr)
        return 1
    rates = measured_rates(device)
    print(
        f"{torch.cuda.get_device_name(device)}: copy {rates.bandwidth / 1e9:,.0f} GB/s, bf16 product", end=" "
    )
    print(f"{rates.matrix / 1e12:,.0f} TFLOP/s")
    print(HEADER)
    for case in CASES:
        target = Target(device, torch.bfloat16, case.weights, latents=case.latents)
        run, work = case.build(resolve("triton", target), device)
        seconds = median_seconds(run)
        del run
        other, _ = case.build(resolve("torch", target), device)
        print(line(case.name, seconds, median_seconds(other), work, rates), flush=True)
        del other
        torch.cuda.empty_cache()
    for name in PEERS:
        found = importlib.util.find_spec(name) is not None
        print(f"{name}: {'NA: installed, and no case of it is written' if found else 'NA: not installed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
