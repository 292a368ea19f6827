"""All layers of a step in one call of the library, and the sections that it times."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..operations import DecoderShape, ExpertOperands, LayerOperands, Section, StepInputs
from .binding import SECTION_NAMES, STEP, TYPES, Gated, Layer, Model, Rows, Stamp, StepCall, Team
from .matrix import PackedGated
from .operations import PackedExperts, RowsPlan, routing_of

_SECTIONS_A_LAYER = 16  # all names at most once a layer, and one to spare
_STAMP = struct.Struct("@iiqq")  # as binding.Stamp: all at once, for taking structures apart costs far more


class NativeStamps:
    def __init__(self) -> None:
        self.on = False
        self._taken: list[Section] = []

    def record(self, on: bool) -> None:
        self.on = on

    def take(self) -> list[Section]:
        taken, self._taken = self._taken, []
        return taken

    def add(self, stamps: ctypes.Array[Stamp], count: int) -> None:
        raw = memoryview(stamps).cast("B")[: count * ctypes.sizeof(Stamp)]
        self._taken += [
            Section(SECTION_NAMES[name], layer, began, ended)
            for name, layer, began, ended in _STAMP.iter_unpack(raw)
        ]


class _Workspace:
    """Memory that one call after the other uses; it grows to the largest step. A call beside another gets its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory = torch.empty(0, dtype=torch.uint8)

    def run(self, team: Team, dtype: torch.dtype, call: StepCall) -> None:
        size = team.workspace_bytes(STEP, dtype, call)
        if not self._lock.acquire(blocking=False):
            memory = torch.empty(size, dtype=torch.uint8)
            call.workspace = memory.data_ptr()
            team.run(STEP, dtype, call)
            return
        try:
            if self._memory.numel() < size:
                self._memory = torch.empty(size, dtype=torch.uint8)
            call.workspace = self._memory.data_ptr()
            team.run(STEP, dtype, call)
        finally:
            self._lock.release()


@dataclass(frozen=True, slots=True)
class PackedStack:
    model: Model
    dtype: torch.dtype
    held: list[object]  # what the structures point to
    workspace: _Workspace = field(default_factory=_Workspace)


class NativeDecoder:
    def __init__(self, team: Team, form: int) -> None:
        self._team = team  # the weights come packed: their format is in them
        self._stamps = NativeStamps()

    @property
    def stamps(self) -> NativeStamps:
        return self._stamps

    def pack(self, layers: Sequence[LayerOperands], final_norm: Tensor, shape: DecoderShape) -> PackedStack:
        array = (Layer * len(layers))()
        for number, layer in enumerate(layers):
            array[number] = _layer(layer)
        dtype = layers[0].attention.kv_up.held[-1].dtype
        model = Model(
            type=TYPES[dtype], layers=len(layers), layer=array, hidden=shape.hidden, heads=shape.heads,
            rank=shape.rank, nope=shape.nope, rope=shape.rope, v=shape.v, eps=shape.eps,
            latent_eps=shape.latent_eps, softmax_scale=shape.softmax_scale, final_norm=final_norm.data_ptr(),
        )  # fmt: skip
        return PackedStack(model, dtype, [array, list(layers), final_norm])

    def __call__(
        self, residual: Tensor, packed: PackedStack, caches: Sequence[Tensor], step: StepInputs
    ) -> Tensor:
        assert residual.is_contiguous() and step.slots.is_contiguous()
        assert len(caches) == packed.model.layers and all(cache.is_contiguous() for cache in caches)
        turns = step.turns.contiguous()
        tokens, hidden = residual.shape
        out = torch.empty(tokens, hidden, dtype=packed.dtype)
        pointers = (ctypes.c_void_p * len(caches))(*(cache.data_ptr() for cache in caches))
        call = StepCall(
            model=packed.model, decode=_rows(step.decode), prompt=_rows(step.prefill),
            slots=step.slots.data_ptr(), turns=turns.data_ptr(), caches=pointers,
            residual=residual.data_ptr(), out=out.data_ptr(), tokens=tokens, decode_tokens=step.decode_tokens,
        )  # fmt: skip
        stamps = None
        if self._stamps.on:
            stamps = (Stamp * (_SECTIONS_A_LAYER * len(caches)))()
            call.sections, call.section_room = stamps, len(stamps)
        packed.workspace.run(self._team, packed.dtype, call)
        if stamps is not None:
            self._stamps.add(stamps, call.section_count)
        return out


def _rows(plan: RowsPlan | None) -> Rows:
    return Rows() if plan is None else plan.rows


def _layer(layer: LayerOperands) -> Layer:
    attention, mlp = layer.attention, layer.mlp
    packed = Layer(
        attention_norm=attention.norm.data_ptr(), down=attention.down.matrix,
        latent_norm=attention.latent_norm.data_ptr(), kv_up=attention.kv_up.up, out=attention.out.matrix,
        mlp_norm=layer.mlp_norm.data_ptr(),
    )  # fmt: skip
    if attention.query_norm is not None and attention.query_up is not None:
        packed.query_norm, packed.query_up = attention.query_norm.data_ptr(), attention.query_up.matrix
    if isinstance(mlp, ExpertOperands):
        experts: PackedExperts = mlp.experts
        packed.routing = routing_of(mlp.gate, mlp.bias, mlp.routing)
        packed.experts = ctypes.cast(experts.experts, ctypes.POINTER(Gated))
        packed.shared = experts.shared
    else:
        dense: PackedGated = mlp
        packed.shared = dense.mlp
    return packed
