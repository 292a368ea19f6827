"""How this backend starts a kernel: what it runs on, and one place through which every launch goes.

Because every launch goes through one place, the ahead-of-time compiler records the launches that the operations make on
tensors without data, and compiles those: what is proved is what is launched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton import knobs

# The interpreter runs kernels on the host, value by value. Its bfloat16 arithmetic is wrong without a word (it adds
# the bits), so kernels compute there in float32 what they would give to the matrix units in bfloat16.
INTERPRETED = knobs.runtime.interpret


@dataclass(frozen=True, slots=True)
class Arch:
    """What a kernel's shape depends on."""

    name: str  # sm_80, sm_90, sm_100, gfx942, ..., or interpreter
    processors: int  # streaming multiprocessors or compute units
    shared: int  # bytes of shared memory that one program may take

    @property
    def amd(self) -> bool:
        return self.name.startswith("gfx")

    @property
    def asynchronous(self) -> bool:
        """Whether matrix products read shared memory by themselves, so that operands take no registers."""
        return self.name in ("sm_90", "sm_100", "sm_103")


INTERPRETER = Arch("interpreter", processors=4, shared=1 << 20)


def arch_of(device: torch.device) -> Arch:
    if device.type == "cpu":
        return INTERPRETER
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        name = properties.gcnArchName.split(":")[0]
    else:
        name = f"sm_{properties.major}{properties.minor}"
    return Arch(name, properties.multi_processor_count, properties.shared_memory_per_block_optin)


def dot_dtype(dtype: torch.dtype) -> tl.dtype:
    """What operands of a matrix product are brought to."""
    if dtype == torch.float32 or (INTERPRETED and dtype == torch.bfloat16):
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16


def power_of_two(n: int, least: int = 1) -> int:
    return max(least, 1 << (n - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Launch:
    kernel: Any  # a triton.jit function
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    warps: int
    stages: int


_recorded: list[Launch] | None = None


@contextlib.contextmanager
def recording() -> Iterator[list[Launch]]:
    """Within it, launches are written down and not made."""
    global _recorded
    _recorded = launches = []
    try:
        yield launches
    finally:
        _recorded = None


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: Mapping[str, Any],
    constants: Mapping[str, Any],
    *,
    warps: int = 4,
    stages: int = 2,
) -> None:
    """Start `kernel` on the device of its tensors. An empty grid starts nothing."""
    if 0 in grid:
        return
    if _recorded is not None:
        _recorded.append(Launch(kernel, arguments, constants, warps, stages))
        return
    # Fused multiply-add is said outright, since Triton's default for it is about to change.
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    with _on(next(value for value in arguments.values() if isinstance(value, Tensor)).device):
        kernel[grid](**arguments, **constants, **options)


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensors'."""
    if device.type == "cpu" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)
