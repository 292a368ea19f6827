"""What a kernel takes of a card, compiled ahead of time: no card is needed to know it, and none to refuse too much."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .launch import Arch, Launch

KIB = 1024


@dataclass(frozen=True, slots=True)
class Card:
    """An architecture, and what one program may take of it."""

    arch: Arch
    target: GPUTarget
    registers: int  # of one thread
    matrix: str  # a pattern of its matrix instructions in the assembly
    tensor_memory: int = 0  # columns


# Shared memory: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", less the 1 KiB that the
# system takes; AMD Instinct MI300 CDNA3 ISA: 64 KiB of LDS. An arch's processors are those of A100, H100, B200, MI300X.
CARDS: dict[str, Card] = {
    card.arch.name: card
    for card in (
        Card(Arch("sm_80", 108, 163 * KIB), GPUTarget("cuda", 80, 32), 255, r"\bmma\.sync"),
        Card(
            Arch("sm_90", 132, 227 * KIB), GPUTarget("cuda", 90, 32), 255, r"\b(?:mma\.sync|wgmma\.mma_async)"
        ),
        Card(
            Arch("sm_100", 148, 227 * KIB),
            GPUTarget("cuda", 100, 32),
            255,
            r"\b(?:mma\.sync|tcgen05\.mma)",
            512,
        ),
        Card(Arch("gfx942", 304, 64 * KIB), GPUTarget("hip", "gfx942", 64), 512, r"\bv_mfma_"),
    )
}


@dataclass(frozen=True, slots=True)
class Usage:
    registers: int  # of one thread
    spilled: int  # bytes of a thread's stack on NVIDIA, registers on AMD
    shared: int  # bytes of one program
    tensor_memory: int  # columns
    matrix: int  # matrix instructions in the code

    def problems(self, card: Card, *, multiplies: bool) -> list[str]:
        """Why a kernel must not be built so. An over-large tile compiles without an error, to a kernel that does
        nothing: that is why matrix instructions are counted."""
        found: list[str] = []
        if self.spilled:
            found.append(f"{self.spilled} spilled")
        if self.registers > card.registers:
            found.append(f"{self.registers} registers, {card.registers} are there")
        if self.registers == 0:
            found.append("no registers: the kernel is empty")
        if self.shared > card.arch.shared:
            found.append(f"{self.shared} bytes of shared memory, {card.arch.shared} are there")
        if self.tensor_memory > card.tensor_memory:
            found.append(f"{self.tensor_memory} columns of tensor memory, {card.tensor_memory} are there")
        if multiplies and not self.matrix:
            found.append("no matrix instruction")
        return found


_TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
}


def source_of(launch: Launch) -> ASTSource:
    """What the launch would have compiled: Triton specialises on integers of 1 and on multiples of 16."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for place, name in enumerate(launch.kernel.arg_names):
        if name in launch.constants:
            constants[name], signature[name] = launch.constants[name], "constexpr"
            continue
        value = launch.arguments[name]
        divisible = False
        if isinstance(value, Tensor):
            signature[name] = "*" + _TYPES[value.dtype]
            divisible = value.storage_offset() * value.element_size() % 16 == 0
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1:
            constants[name], signature[name] = 1, "constexpr"
        else:
            signature[name] = "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
            divisible = value % 16 == 0
        if divisible:
            attributes[place,] = [["tt.divisibility", 16]]
    return ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)


def compile_for(launch: Launch, card: Card) -> Usage:
    """Compile for `card` and read what it takes. Raises what the compiler raises."""
    options = {"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": True}
    compiled = triton.compile(source_of(launch), target=card.target, options=options)
    metadata: Any = compiled.metadata
    asm: Mapping[str, Any] = compiled.asm
    text = asm["amdgcn"] if card.arch.amd else asm["ptx"]
    registers, spilled = _amd(text) if card.arch.amd else _nvidia(asm["cubin"])
    return Usage(
        registers=registers,
        spilled=spilled,
        shared=metadata.shared,
        tensor_memory=getattr(metadata, "tmem_size", 0) or 0,
        matrix=len(re.findall(card.matrix, text)),
    )


def _nvidia(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    registers = re.search(r"\bREG:(\d+)", run.stdout)
    stack = re.search(r"\bSTACK:(\d+)", run.stdout)
    local = re.search(r"\bLOCAL:(\d+)", run.stdout)
    if registers is None or stack is None or local is None:
        raise ValueError(f"cuobjdump says nothing of registers: {run.stdout}{run.stderr}")
    return int(registers[1]), int(stack[1]) + int(local[1])


def _amd(text: str) -> tuple[int, int]:
    def of(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        if found is None:
            raise ValueError(f"the assembly names no {name}")
        return int(found[1])

    return of("vgpr_count"), of("vgpr_spill_count") + of("sgpr_spill_count")
