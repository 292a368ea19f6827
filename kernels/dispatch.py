"""Which backend runs which operation: chosen once, with every refusal named."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from . import cpu, reference, triton
from .operations import (
    AddRmsNorm,
    Decoder,
    GatedMlp,
    KvUp,
    LatentWrite,
    Linear,
    MlaDecode,
    MlaPrefill,
    MoeExperts,
    MoeGate,
    Refusal,
    RmsNorm,
    Rope,
    Sample,
    Stamps,
    Target,
)


class KernelError(Exception):
    """`kernels.backend` names a backend that is unknown or cannot run here."""


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    def available(self, target: Target) -> Refusal | None:
        """None, or why nothing of this backend runs on the target."""
        ...

    def offer(self, operation: str, target: Target) -> Any:
        """The operation, or a `Refusal`. Beside the operations it is asked for a "decoder"."""
        ...


@dataclass(frozen=True, slots=True)
class Resolution:
    """One line of the table: who runs an operation, and who was asked before and refused."""

    operation: str
    backend: str
    refused: tuple[tuple[str, str], ...]  # (backend, reason)


@dataclass(frozen=True, slots=True)
class KernelSet:
    """The operations of one model on one target. The model calls these and nothing else of this package."""

    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    rope: Rope
    latent_write: LatentWrite
    linear: Linear
    gated_mlp: GatedMlp
    kv_up: KvUp
    mla_decode: MlaDecode
    mla_prefill: MlaPrefill
    moe_gate: MoeGate
    moe_experts: MoeExperts
    sample: Sample
    resolutions: tuple[Resolution, ...]
    stamps: Stamps | None = None  # of a backend that times its own sections
    decoder: Decoder | None = None  # of a backend that runs every operation of the layers, in one call

    def table(self) -> tuple[Resolution, ...]:
        """(operation, backend, refused) in the order of the fields."""
        return self.resolutions


OPERATIONS = tuple(f.name for f in fields(KernelSet) if f.name not in ("resolutions", "stamps", "decoder"))

# In the order of preference; the reference is last, takes every operation and runs everywhere that torch does.
BACKENDS: tuple[Backend, ...] = (triton.BACKEND, cpu.BACKEND, reference.BACKEND)


def resolve(choice: str, target: Target, backends: Sequence[Backend] = BACKENDS) -> KernelSet:
    """The operations for `target` under `kernels.backend` = `choice`: a backend's name, or auto for the best of each.

    A named backend is asked first and the reference takes what it refuses, so the table shows every such case. Raises
    KernelError when the name is unknown or the backend cannot run on the target at all. An interpreter is never taken
    unless its backend is named.
    """
    by_name = {backend.name: backend for backend in backends}
    target = replace(target, interpret=choice != "auto")
    if choice == "auto":
        asked = list(backends)
    else:
        named = _named(choice, by_name, target)
        asked = [named] if named is backends[-1] else [named, backends[-1]]
    chosen: dict[str, Any] = {}
    resolutions: list[Resolution] = []
    for operation in OPERATIONS:
        refused: list[tuple[str, str]] = []
        for backend in asked:
            offer = backend.available(target) or backend.offer(operation, target)
            if isinstance(offer, Refusal):
                refused.append((backend.name, offer.reason))
                continue
            chosen[operation] = offer
            resolutions.append(Resolution(operation, backend.name, tuple(refused)))
            break
        else:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
            raise KernelError(f"no backend runs {operation} on {target.device} in {target.dtype} ({reasons})")
    of_layers = {line.backend for line in resolutions if line.operation != "sample"}
    decoder = _decoder(of_layers, by_name, target)
    return KernelSet(
        **chosen,
        resolutions=tuple(resolutions),
        stamps=None if decoder is None else decoder.stamps,
        decoder=decoder,
    )


def _decoder(chosen: set[str], by_name: Mapping[str, Backend], target: Target) -> Decoder | None:
    """The whole-step form of the one backend that runs all of the layers: it reads weights in its own layout alone."""
    if len(chosen) > 1:
        return None
    offer = by_name[chosen.pop()].offer("decoder", target)
    return None if isinstance(offer, Refusal) else offer


def _named(choice: str, by_name: Mapping[str, Backend], target: Target) -> Backend:
    known = ["auto", *by_name]
    if choice not in by_name:
        near = difflib.get_close_matches(choice, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise KernelError(f"kernels.backend: unknown backend {choice!r} (known: {', '.join(known)}){hint}")
    refusal = by_name[choice].available(target)
    if refusal is not None:
        raise KernelError(f"kernels.backend: {choice} cannot run here: {refusal.reason}")
    return by_name[choice]
