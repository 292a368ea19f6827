"""Every operation in plain torch: the oracle for other backends, and the path where no other one runs."""

from __future__ import annotations

from typing import Any

from ..operations import Refusal, Target
from .decode import TorchMlaDecode
from .experts import TorchMoeExperts, moe_gate
from .linear import TorchGatedMlp, TorchKvUp, TorchLinear
from .pointwise import add_rms_norm, latent_write, rms_norm, rope
from .prefill import TorchMlaPrefill
from .sample import TorchSample


class TorchBackend:
    name = "torch"

    def available(self, target: Target) -> Refusal | None:
        return None

    def offer(self, operation: str, target: Target) -> Any:
        return _OPERATIONS[operation]


_OPERATIONS: dict[str, Any] = {
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "rope": rope,
    "latent_write": latent_write,
    "linear": TorchLinear(),
    "gated_mlp": TorchGatedMlp(),
    "kv_up": TorchKvUp(),
    "mla_decode": TorchMlaDecode(),
    "mla_prefill": TorchMlaPrefill(),
    "moe_gate": moe_gate,
    "moe_experts": TorchMoeExperts(),
    "sample": TorchSample(),
}

BACKEND = TorchBackend()
