"""`arc kernels aot`: compile every kernel for every card, and refuse what spills, does not fit, or comes out empty.

No card is needed. The operations run on tensors without data, at the sizes of the published models; their launches are
written down and compiled, so that what is looked at here is what a card would run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from triton import knobs

from .. import latents
from ..quantise import GROUP, HALF
from . import pointwise
from .decode import TritonMlaDecode
from .experts import PackedExperts, TritonMoeExperts
from .gate import moe_gate
from .latents import latent_write
from .launch import INTERPRETED, Arch, Launch, recording
from .prefill import TritonMlaPrefill
from .resources import CARDS, Usage, compile_for, source_of
from .sample import TritonSample

BF16, FP32 = torch.bfloat16, torch.float32
# DeepSeek-V3 (arXiv:2412.19437): 128 heads, rank 512, rope 64, nope and v 128, 256 experts of 2,048, 8 a token.
HIDDEN, RANK, ROPE, NOPE, INNER, EXPERTS, TOP_K, VOCABULARY = 7168, 512, 64, 128, 2048, 256, 8, 129_280
WIDTH, PAGE = RANK + ROPE, 64


def _meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def _cache(form: str, dtype: torch.dtype) -> Tensor:
    width, kind = latents.slot(form, RANK, ROPE, dtype)
    return _meta(4096, width, dtype=kind)


@dataclass(frozen=True, slots=True)
class Spec:
    """The gate of DeepSeek-V3."""

    scoring: str = "sigmoid"
    experts: int = EXPERTS
    top_k: int = TOP_K
    groups: int = 8
    top_groups: int = 4
    method: str = "group_top2"
    normalise: bool = True
    scale: float = 2.5


def _norms(arch: Arch) -> None:
    pointwise.rms_norm(_meta(8, HIDDEN), _meta(HIDDEN, dtype=FP32), 1e-6, BF16)
    pointwise.add_rms_norm(_meta(8, HIDDEN, dtype=FP32), _meta(8, HIDDEN), _meta(HIDDEN, dtype=FP32), 1e-6)


def _rope(arch: Arch) -> None:
    turns = _meta(8, ROPE // 2, dtype=torch.complex64)
    pointwise.rope(_meta(8, 128, NOPE + ROPE)[..., NOPE:], turns)
    kv, slots = _meta(8, WIDTH), _meta(8, dtype=torch.int64)
    for cache in (_cache("stored", BF16), _cache("fp8", BF16)):
        latent_write(kv, cache, slots, weight=_meta(RANK, dtype=FP32), eps=1e-6, turns=turns)


def _decode(heads: int, dtype: torch.dtype, form: str = "stored") -> Callable[[Arch], None]:
    def run(arch: Arch) -> None:
        op = TritonMlaDecode(arch)
        plan = op.plan([131_072, 900], [1, 1], _meta(2, 2048, dtype=torch.int64), PAGE, WIDTH)
        op(_meta(2, heads, WIDTH, dtype=dtype), _cache(form, dtype), plan, scale=0.1, rank=RANK)

    return run


def _prefill(dtype: torch.dtype, length: int, form: str = "stored") -> Callable[[Arch], None]:
    def run(arch: Arch) -> None:
        heads = 128

        def expand(latents: Tensor) -> tuple[Tensor, Tensor]:
            length = latents.shape[0]
            return _meta(heads, length, NOPE, dtype=dtype), _meta(heads, length, 128, dtype=dtype)

        op = TritonMlaPrefill(arch, dtype)
        plan = op.plan([length], [64], _meta(1, 4096, dtype=torch.int64), PAGE, heads)
        q = _meta(64, heads, NOPE + ROPE, dtype=dtype)
        op(q, _cache(form, dtype), plan, scale=0.1, rank=RANK, expand=expand)

    return run


def _gate(arch: Arch) -> None:
    moe_gate(_meta(8, HIDDEN), _meta(EXPERTS, HIDDEN, dtype=FP32), _meta(EXPERTS, dtype=FP32), Spec())


def _experts(form: str, tokens: int, dtype: torch.dtype) -> Callable[[Arch], None]:
    def run(arch: Arch) -> None:
        x, weights = _meta(tokens, HIDDEN, dtype=dtype), _meta(tokens, TOP_K, dtype=FP32)
        indices = _meta(tokens, TOP_K, dtype=torch.int64)
        TritonMoeExperts(arch, form)(x, weights, indices, _packed(form, dtype))

    return run


def _packed(form: str, dtype: torch.dtype) -> PackedExperts:
    total = EXPERTS + 1
    gate_up, down = (total, 2, INNER, HIDDEN), (total, HIDDEN, INNER)
    tensors: list[Tensor] = []
    for *heads, rows, columns in (gate_up, down):
        groups = -(-columns // GROUP)
        if form == "stored":
            weight = _meta(*heads, rows, columns, dtype=dtype)
            tensors += [weight, weight]
        elif form == "fp8":
            tensors.append(_meta(*heads, rows, columns, dtype=torch.uint8))
            tensors.append(_meta(*heads, -(-rows // GROUP), groups, dtype=FP32))
        else:
            tensors.append(_meta(*heads, rows, groups * HALF, dtype=torch.uint8))
            tensors.append(_meta(*heads, rows, groups, dtype=FP32))
    return PackedExperts(*tensors, experts=EXPERTS, shared=1, inner=INNER, form=form)


def _sample(arch: Arch) -> None:
    op = TritonSample()
    plan = op.plan(
        temperature=[1.0] * 8,
        top_k=[0] * 8,
        top_p=[0.9] * 8,
        min_p=[0.0] * 8,
        vocab_size=VOCABULARY,
        device=torch.device("meta"),
    )
    op(_meta(8, VOCABULARY, dtype=FP32), plan, _meta(8, dtype=torch.float64))


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    run: Callable[[Arch], None]


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("norms", _norms),
        Case("rope and cache", _rope),
        Case("decode, 16 heads", _decode(16, BF16)),
        Case("decode, 32 heads", _decode(32, BF16)),
        Case("decode, 128 heads", _decode(128, BF16)),
        Case("decode, fp32", _decode(16, FP32)),
        Case("fp8 decode, 16 heads", _decode(16, BF16, "fp8")),
        Case("fp8 decode, 32 heads", _decode(32, BF16, "fp8")),
        Case("fp8 decode, 128 heads", _decode(128, BF16, "fp8")),
        Case("fp8 decode, fp32", _decode(16, FP32, "fp8")),
        Case("fp8 prefill", _prefill(BF16, 1024, "fp8")),
        Case("prefill", _prefill(BF16, 1024)),
        Case("prefill, windows", _prefill(BF16, 20_000)),
        Case("prefill, fp32", _prefill(FP32, 1024)),
        Case("gate", _gate),
        Case("experts, 16 rows", _experts("stored", 64, BF16)),
        Case("experts, 32 rows", _experts("stored", 800, BF16)),
        Case("experts, 64 rows", _experts("stored", 1600, BF16)),
        Case("experts, 128 rows", _experts("stored", 4096, BF16)),
        Case("experts, fp32", _experts("stored", 64, FP32)),
        Case("fp8 experts, 16 rows", _experts("fp8", 64, BF16)),
        Case("fp8 experts, 64 rows", _experts("fp8", 4096, BF16)),
        Case("int4 experts, 16 rows", _experts("int4", 64, BF16)),
        Case("int4 experts, 64 rows", _experts("int4", 4096, BF16)),
        Case("sample", _sample),
    )
}
# Kernels without a matrix product are the same in several cases; each is compiled in one of them.
_ONLY_IN = {
    "mla_combine_kernel": "decode, 16 heads",
    "moe_dispatch_kernel": "experts, 16 rows",
    "moe_combine_kernel": "experts, 16 rows",
}


@dataclass(frozen=True, slots=True)
class Line:
    case: str
    kernel: str
    card: str
    usage: Usage | None  # None: it did not compile
    problems: tuple[str, ...]


def launches_of(case: Case, arch: Arch) -> list[Launch]:
    with recording() as launches:
        case.run(arch)
    mine = [each for each in launches if _ONLY_IN.get(each.kernel.__name__, case.name) == case.name]
    return list({(each.kernel.__name__, source_of(each).hash()): each for each in mine}.values())


def multiplies(launch: Launch, arch: Arch) -> bool:
    """Whether matrix units must be at work: fp32 products are exact, which on NVIDIA's cards they are not made for."""
    dot = launch.constants.get("DOT")
    return dot is not None and (arch.amd or str(dot) != "fp32")


def check(name: str, card_name: str) -> list[Line]:
    """Compile one case for one card."""
    case, card = CASES[name], CARDS[card_name]
    lines: list[Line] = []
    for launch in launches_of(case, card.arch):
        kernel = launch.kernel.__name__
        try:
            usage = compile_for(launch, card)
        except Exception as error:  # whatever the compiler raises is what is wrong with the kernel
            lines.append(Line(name, kernel, card_name, None, (f"{type(error).__name__}: {error}",)))
            continue
        problems = usage.problems(card, multiplies=multiplies(launch, card.arch))
        lines.append(Line(name, kernel, card_name, usage, tuple(problems)))
    return lines


def row(line: Line) -> str:
    use = line.usage
    numbers = (
        f"{'NA':>9}" * 5
        if use is None
        else f"{use.registers:>9}{use.spilled:>9}{use.shared:>9}{use.tensor_memory:>9}{use.matrix:>9}"
    )
    kernel = line.kernel.removesuffix("_kernel")
    return f"{line.case:<24}{kernel:<16}{line.card:<8}{numbers}  {'; '.join(line.problems) or 'ok'}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="arc kernels aot", description="Compile every kernel for every card."
    )
    parser.add_argument(
        "--card", action="append", choices=list(CARDS), help="only this one; may be given more than once"
    )
    arguments = parser.parse_args()
    if INTERPRETED:
        print("TRITON_INTERPRET is set: an interpreted Triton compiles nothing; unset it", file=sys.stderr)
        return 1
    wanted = [(name, card) for name in CASES for card in arguments.card or CARDS]
    print(
        f"{'case':<24}{'kernel':<16}{'card':<8}{'regs':>9}{'spilled':>9}{'shared':>9}{'tmem':>9}{'matrix':>9}"
    )
    failed = compiled = 0
    with tempfile.TemporaryDirectory(prefix="arc-aot-") as folder:
        knobs.cache.dir = folder  # nothing of an earlier run counts, and nothing stays
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            for lines in pool.map(check, *zip(*wanted, strict=True)):
                for line in lines:
                    print(row(line), flush=True)
                    compiled += 1
                    failed += bool(line.problems)
    print(f"{compiled} compiled, {failed} refused")
    return 1 if failed or not compiled else 0


if __name__ == "__main__":
    sys.exit(main())
