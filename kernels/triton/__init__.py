"""The operations in Triton, for cards of NVIDIA and AMD.

Triton is imported when the backend is asked for an operation, so that everything else runs without it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import torch

from ..operations import Refusal, Target

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LEAST_CAPABILITY = (8, 0)  # the first that multiplies bfloat16


class TritonBackend:
    name = "triton"

    def available(self, target: Target) -> Refusal | None:
        if target.device.type == "cpu":
            if not target.interpret or os.environ.get("TRITON_INTERPRET") != "1":
                return Refusal("the device is cpu, and Triton compiles for cards")
        elif target.device.type != "cuda":
            return Refusal(
                f"the device is {target.device.type}, and the kernels are written for CUDA and ROCm"
            )
        if importlib.util.find_spec("triton") is None:
            return Refusal("the package triton is not installed")
        if target.dtype not in _DTYPES:
            return Refusal(f"no kernel computes in {str(target.dtype).removeprefix('torch.')}")
        if target.device.type == "cuda" and torch.version.hip is None:
            capability = torch.cuda.get_device_capability(target.device)
            if capability < _LEAST_CAPABILITY:
                return Refusal(
                    f"the card is sm_{capability[0]}{capability[1]}, and the kernels need sm_80 or later"
                )
        return None

    def offer(self, operation: str, target: Target) -> Any:
        if operation in _LEFT_TO_TORCH:
            return Refusal(_LEFT_TO_TORCH[operation])
        if operation == "moe_experts" and target.weights == "int8":
            return Refusal("it keeps experts as stored, in fp8 or in int4, not in int8")
        offered = _operations(target.device, target.dtype, target.weights).get(operation)
        return Refusal(f"it has no {operation}") if offered is None else offered


_LEFT_TO_TORCH: dict[str, str] = dict.fromkeys(
    ("linear", "gated_mlp", "kv_up"), "plain matrix products: torch hands them to the vendor's own library"
)


@functools.cache
def _operations(device: torch.device, dtype: torch.dtype, weights: str) -> dict[str, Any]:
    from . import pointwise
    from .decode import TritonMlaDecode
    from .experts import TritonMoeExperts
    from .gate import moe_gate
    from .latents import latent_write
    from .launch import arch_of
    from .prefill import TritonMlaPrefill
    from .sample import TritonSample

    arch = arch_of(device)
    return {
        "rms_norm": pointwise.rms_norm,
        "add_rms_norm": pointwise.add_rms_norm,
        "rope": pointwise.rope,
        "latent_write": latent_write,
        "mla_decode": TritonMlaDecode(arch),
        "mla_prefill": TritonMlaPrefill(arch, dtype),
        "moe_gate": moe_gate,
        "moe_experts": TritonMoeExperts(arch, weights),
        "sample": TritonSample(),
    }


BACKEND = TritonBackend()
