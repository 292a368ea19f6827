"""Every operation in C++ for the processor: bf16 and fp32 models, on the fastest instruction set that is here.

The library is an optional part of the installation (native/, built by setuptools); docs/kernels-cpu.md says how it
works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..operations import Refusal, Target
from . import binding, operations
from .binding import INT4, INT8, TYPES, Team
from .decoder import NativeDecoder
from .matrix import stored
from .sample import NativeSample


class NativeBackend:
    """`level`: an instruction set by name; None: the fastest one on this processor."""

    name = "native"

    def __init__(self, level: str | None = None) -> None:
        self._level = level
        self._team: Team | None = None  # of all operations, so that they share their threads

    def available(self, target: Target) -> Refusal | None:
        if target.device.type != "cpu":
            return Refusal(f"it runs on the CPU, not on {target.device.type}")
        if target.dtype not in TYPES:
            return Refusal(
                f"it computes in bfloat16 and float32, not in {str(target.dtype).removeprefix('torch.')}"
            )
        loaded = binding.load()
        if isinstance(loaded, str):
            return Refusal(loaded)
        if self._level is not None and self._level not in binding.levels(loaded):
            return Refusal(f"this processor does not have {self._level}")
        return None

    def offer(self, operation: str, target: Target) -> Any:
        kind = _OPERATIONS.get(operation)
        if kind is None:
            return Refusal(f"it has no {operation}")
        if target.latents != "stored" and operation in _READ_LATENTS:
            return Refusal(f"it keeps latents as stored, not in {target.latents}")
        if target.weights == "fp8" and operation == "moe_experts":
            return Refusal("it keeps weights as stored, in int8 or in int4, not in fp8")
        return kind(self._threads(), _form(operation, target))

    def _threads(self) -> Team:
        if self._team is None:
            loaded = binding.load()
            assert not isinstance(loaded, str), "asked after `available`"
            self._team = Team(loaded, self._level or binding.levels(loaded)[0])
        return self._team


def _form(operation: str, target: Target) -> int:
    """The format of an operation's weights. A head or a projection in int4 costs more than it saves: it is int8."""
    match target.weights, operation:
        case "int4", "gated_mlp" | "moe_experts":
            return INT4
        case "int4" | "int8", _:
            return INT8
        case _:
            return stored(target.dtype)


_READ_LATENTS = ("latent_write", "mla_decode", "mla_prefill", "decoder")

_OPERATIONS: dict[str, Callable[[Team, int], Any]] = {
    "rms_norm": operations.NativeRmsNorm,
    "add_rms_norm": operations.NativeAddRmsNorm,
    "rope": operations.NativeRope,
    "latent_write": operations.NativeLatentWrite,
    "linear": operations.NativeLinear,
    "gated_mlp": operations.NativeGatedMlp,
    "kv_up": operations.NativeKvUp,
    "mla_decode": operations.NativeMlaDecode,
    "mla_prefill": operations.NativeMlaPrefill,
    "moe_gate": operations.NativeMoeGate,
    "moe_experts": operations.NativeMoeExperts,
    "sample": NativeSample,
    "decoder": NativeDecoder,
}

BACKEND = NativeBackend()
