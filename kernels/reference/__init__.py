"""Every operation in plain torch: the oracle for other backends, and the path where no other one runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..operations import Buffers, Refusal, Target
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
        if operation == "decoder":
            return Refusal("it runs a step operation by operation")
        if target.weights == "int8" and operation in ("linear", "gated_mlp", "moe_experts"):
            return Refusal("it keeps weights as stored, not in int8")
        if operation == "moe_experts":
            return TorchMoeExperts(target.buffers, target.weights)
        make = _WITH_BUFFERS.get(operation)
        return make(target.buffers) if make is not None else _PLAIN[operation]


# The norms and rope have no form that writes into a given place, and the gate's results are small.
_PLAIN: dict[str, Any] = {
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "rope": rope,
    "latent_write": latent_write,
    "moe_gate": moe_gate,
    "sample": TorchSample(),
}

_WITH_BUFFERS: dict[str, Callable[[Buffers], Any]] = {
    "linear": TorchLinear,
    "gated_mlp": TorchGatedMlp,
    "kv_up": TorchKvUp,
    "mla_decode": TorchMlaDecode,
    "mla_prefill": TorchMlaPrefill,
}

BACKEND = TorchBackend()
