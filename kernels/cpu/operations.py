"""Each operation of the contracts by a call of the library. What a tensor must look like is seen to here."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..operations import Expand, RoutingSpec
from .binding import (
    ADD_RMS_NORM,
    DECODE,
    EXPAND,
    EXPERTS,
    GATE,
    GATED_MLP,
    HEADS,
    LATENT_WRITE,
    LINEAR,
    PREFILL,
    RMS_NORM,
    ROPE,
    TYPES,
    AddRmsNormCall,
    DecodeCall,
    ExpandCall,
    ExpertsCall,
    GateCall,
    Gated,
    GatedCall,
    HeadMatrices,
    HeadsCall,
    LatentWriteCall,
    LinearCall,
    PrefillCall,
    RmsNormCall,
    RopeCall,
    Routing,
    Rows,
    Team,
)
from .matrix import PackedGated, PackedKvUp, PackedMatrix, pack_gated, pack_kv_up, pack_matrix

_METHODS = {"greedy": 0, "group_max": 1, "group_top2": 2}


def _rows_apart(x: Tensor) -> Tensor:
    """x, whose last dimension is contiguous in memory; copied where it is not."""
    return x if x.stride(-1) == 1 else x.contiguous()


class Operation:
    """`form`: the format in which weights are packed."""

    def __init__(self, team: Team, form: int) -> None:
        self.team = team
        self.form = form


class NativeRmsNorm(Operation):
    def __call__(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        x = _rows_apart(x)
        tokens, n = x.shape
        out = torch.empty(tokens, n, dtype=dtype)
        call = RmsNormCall(
            x=x.data_ptr(), weight=weight.data_ptr(), out=out.data_ptr(), x_stride=x.stride(0),
            tokens=tokens, n=n, x_type=TYPES[x.dtype], out_type=TYPES[dtype], eps=eps,
        )  # fmt: skip
        self.team.run(RMS_NORM, dtype, call)
        return out


class NativeAddRmsNorm(Operation):
    def __call__(self, residual: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
        update = update.contiguous()
        assert residual.is_contiguous()
        out = torch.empty_like(update)
        call = AddRmsNormCall(
            residual=residual.data_ptr(), update=update.data_ptr(), weight=weight.data_ptr(), out=out.data_ptr(),
            tokens=update.shape[0], n=update.shape[1], eps=eps,
        )  # fmt: skip
        self.team.run(ADD_RMS_NORM, update.dtype, call)
        return out


class NativeRope(Operation):
    def __call__(self, x: Tensor, turns: Tensor) -> None:
        assert x.stride(-1) == 1, "the values of a head stand together"
        turns = turns.contiguous()
        call = RopeCall(
            x=x.data_ptr(), turns=turns.data_ptr(), token_stride=x.stride(0), head_stride=x.stride(1),
            tokens=x.shape[0], heads=x.shape[1], rope=x.shape[2],
        )  # fmt: skip
        self.team.run(ROPE, x.dtype, call)


class NativeLatentWrite(Operation):
    def __call__(
        self, kv: Tensor, cache: Tensor, slots: Tensor, *, weight: Tensor, eps: float, turns: Tensor
    ) -> None:
        kv, turns = _rows_apart(kv), turns.contiguous()
        assert cache.is_contiguous() and slots.is_contiguous()
        call = LatentWriteCall(
            kv=kv.data_ptr(), cache=cache.data_ptr(), slots=slots.data_ptr(), weight=weight.data_ptr(),
            turns=turns.data_ptr(), kv_stride=kv.stride(0), tokens=kv.shape[0],
            rank=weight.shape[0], rope=kv.shape[1] - weight.shape[0], eps=eps,
        )  # fmt: skip
        self.team.run(LATENT_WRITE, kv.dtype, call)


class NativeLinear(Operation):
    def pack(self, weight: Tensor, bias: Tensor | None = None, *, kept: bool = False) -> PackedMatrix:
        """`kept` changes nothing: panels are what the library multiplies by, so a kept weight lies there twice."""
        return pack_matrix(self.team, weight, self.form, bias)

    def __call__(self, x: Tensor, packed: PackedMatrix) -> Tensor:
        x = _rows_apart(x)
        out = torch.empty(x.shape[0], packed.matrix.n, dtype=x.dtype)
        call = LinearCall(
            x=x.data_ptr(), out=out.data_ptr(), x_stride=x.stride(0), tokens=x.shape[0], matrix=packed.matrix
        )
        self.team.run(LINEAR, x.dtype, call)
        return out


class NativeGatedMlp(Operation):
    def pack(self, gate_up: Tensor, down: Tensor) -> PackedGated:
        return pack_gated(self.team, gate_up, down, self.form)

    def __call__(self, x: Tensor, packed: PackedGated) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        call = GatedCall(x=x.data_ptr(), out=out.data_ptr(), tokens=x.shape[0], mlp=packed.mlp)
        workspace = self.team.workspace(GATED_MLP, x.dtype, call)
        call.workspace = workspace.data_ptr()
        self.team.run(GATED_MLP, x.dtype, call)
        return out


class NativeKvUp(Operation):
    def pack(self, key_up: Tensor, value_up: Tensor) -> PackedKvUp:
        return pack_kv_up(self.team, key_up, value_up)

    def absorb(self, q_nope: Tensor, packed: PackedKvUp) -> Tensor:
        return self._by_head(q_nope, packed.up.absorb)

    def value(self, out: Tensor, packed: PackedKvUp) -> Tensor:
        return self._by_head(out, packed.up.value)

    def _by_head(self, x: Tensor, matrices: HeadMatrices) -> Tensor:
        x = _rows_apart(x)
        tokens, heads, _ = x.shape
        out = torch.empty(tokens, heads, matrices.first.n, dtype=x.dtype)
        call = HeadsCall(
            x=x.data_ptr(), out=out.data_ptr(), token_stride=x.stride(0), head_stride=x.stride(1),
            tokens=tokens, heads=heads, matrices=matrices,
        )  # fmt: skip
        self.team.run(HEADS, x.dtype, call)
        return out

    def expand(self, latents: Tensor, packed: PackedKvUp) -> tuple[Tensor, Tensor]:
        latents, up = _rows_apart(latents), packed.up
        tokens = latents.shape[0]
        keys = torch.empty(up.heads, up.nope, tokens, dtype=latents.dtype)
        values = torch.empty(up.heads, tokens, up.v, dtype=latents.dtype)
        call = ExpandCall(
            latents=latents.data_ptr(), keys=keys.data_ptr(), values=values.data_ptr(),
            stride=latents.stride(0), tokens=tokens, up=up,
        )  # fmt: skip
        workspace = self.team.workspace(EXPAND, latents.dtype, call)
        call.workspace = workspace.data_ptr()
        self.team.run(EXPAND, latents.dtype, call)
        return keys.transpose(1, 2), values


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """Rows of attention as the library takes them."""

    rows: Rows
    tables: Tensor  # what rows.tables points to
    lengths: tuple[int, ...]
    counts: tuple[int, ...]


def plan_rows(
    lengths: Sequence[int], counts: Sequence[int], block_tables: Tensor, page_size: int
) -> RowsPlan:
    tables, number = block_tables.contiguous(), len(lengths)
    array = ctypes.c_int32 * number
    rows = Rows(
        lengths=array(*lengths), counts=array(*counts), tables=tables.data_ptr(), stride=tables.shape[1],
        rows=number, page_size=page_size,
    )  # fmt: skip
    return RowsPlan(rows, tables, tuple(lengths), tuple(counts))


class NativeMlaDecode(Operation):
    def plan(
        self, lengths: Sequence[int], counts: Sequence[int], block_tables: Tensor, page_size: int, width: int
    ) -> RowsPlan:
        return plan_rows(lengths, counts, block_tables, page_size)

    def __call__(self, q: Tensor, cache: Tensor, plan: RowsPlan, *, scale: float, rank: int) -> Tensor:
        q = q.contiguous()
        queries, heads, width = q.shape
        out = torch.empty(queries, heads, rank, dtype=q.dtype)
        call = DecodeCall(
            q=q.data_ptr(), cache=cache.data_ptr(), out=out.data_ptr(),
            heads=heads, rank=rank, width=width, scale=scale, rows=plan.rows,
        )  # fmt: skip
        workspace = self.team.workspace(DECODE, q.dtype, call)
        call.workspace = workspace.data_ptr()
        self.team.run(DECODE, q.dtype, call)
        return out


class NativeMlaPrefill(Operation):
    def plan(
        self, lengths: Sequence[int], counts: Sequence[int], block_tables: Tensor, page_size: int, heads: int
    ) -> RowsPlan:
        return plan_rows(lengths, counts, block_tables, page_size)

    def __call__(
        self, q: Tensor, cache: Tensor, plan: RowsPlan, *, scale: float, rank: int, expand: Expand
    ) -> Tensor:
        q = q.contiguous()
        page_size, width = plan.rows.page_size, cache.shape[1]
        paged = cache.view(-1, page_size * width)
        parts: list[Tensor] = []
        start = 0
        for row, (length, count) in enumerate(zip(plan.lengths, plan.counts, strict=True)):
            table = plan.tables[row : row + 1]
            pages = table[0, : -(-length // page_size)]
            latents = paged.index_select(0, pages).view(-1, width)[:length, :rank]
            keys, values = expand(latents)
            own = plan_rows([length], [count], table, page_size)
            parts.append(
                self._row(q[start : start + count], cache, own, keys, values, scale=scale, rank=rank)
            )
            start += count
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _row(
        self,
        q: Tensor,
        cache: Tensor,
        plan: RowsPlan,
        keys: Tensor,
        values: Tensor,
        *,
        scale: float,
        rank: int,
    ) -> Tensor:
        heads, v, nope = q.shape[1], values.shape[2], keys.shape[2]
        out = torch.empty(q.shape[0], heads, v, dtype=q.dtype)
        strides = ctypes.c_int64 * 3
        call = PrefillCall(
            q=q.data_ptr(), cache=cache.data_ptr(), keys=keys.data_ptr(), values=values.data_ptr(),
            out=out.data_ptr(), q_stride=q.stride(0),
            key_strides=strides(*keys.stride()), value_strides=strides(*values.stride()),
            heads=heads, rank=rank, nope=nope, rope=cache.shape[1] - rank, v=v, scale=scale, rows=plan.rows,
        )  # fmt: skip
        workspace = self.team.workspace(PREFILL, q.dtype, call)
        call.workspace = workspace.data_ptr()
        self.team.run(PREFILL, q.dtype, call)
        return out


def routing_of(weight: Tensor, bias: Tensor | None, spec: RoutingSpec) -> Routing:
    """The pointers are the tensors' own: they must outlive it."""
    assert weight.is_contiguous() and (bias is None or bias.is_contiguous())
    return Routing(
        gate=weight.data_ptr(), bias=None if bias is None else bias.data_ptr(),
        experts=spec.experts, top_k=spec.top_k, groups=spec.groups, top_groups=spec.top_groups,
        softmax=spec.scoring == "softmax", method=_METHODS[spec.method],
        normalise=spec.normalise, scale=spec.scale,
    )  # fmt: skip


class NativeMoeGate(Operation):
    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, spec: RoutingSpec
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        weights = torch.empty(x.shape[0], spec.top_k)
        indices = torch.empty(x.shape[0], spec.top_k, dtype=torch.int64)
        call = GateCall(
            x=x.data_ptr(), weights=weights.data_ptr(), indices=indices.data_ptr(),
            tokens=x.shape[0], hidden=x.shape[1], routing=routing_of(weight, bias, spec),
        )  # fmt: skip
        workspace = self.team.workspace(GATE, x.dtype, call)
        call.workspace = workspace.data_ptr()
        self.team.run(GATE, x.dtype, call)
        return weights, indices


@dataclass(frozen=True, slots=True)
class PackedExperts:
    experts: ctypes.Array[Gated]
    shared: Gated  # n = 0: none
    held: tuple[Tensor, ...]


class NativeMoeExperts(Operation):
    def pack(
        self,
        experts: Iterable[tuple[Tensor, Tensor]],
        count: int,
        shared: tuple[Tensor, Tensor] | None,
        top_k: int,
    ) -> PackedExperts:
        array = (Gated * count)()
        held: list[Tensor] = []
        for number, (gate_up, down) in enumerate(experts):
            packed = pack_gated(self.team, gate_up, down, self.form)
            array[number] = packed.mlp
            held += packed.held
        own = Gated()
        if shared is not None:
            packed = pack_gated(self.team, *shared, self.form)
            own = packed.mlp
            held += packed.held
        return PackedExperts(array, own, tuple(held))

    def __call__(self, x: Tensor, weights: Tensor, indices: Tensor, packed: PackedExperts) -> Tensor:
        x, weights, indices = x.contiguous(), weights.contiguous(), indices.contiguous()
        out = torch.empty_like(x)
        call = ExpertsCall(
            x=x.data_ptr(), weights=weights.data_ptr(), indices=indices.data_ptr(), out=out.data_ptr(),
            tokens=x.shape[0], hidden=x.shape[1], count=len(packed.experts), top_k=indices.shape[1],
            experts=packed.experts, shared=packed.shared,
        )  # fmt: skip
        workspace = self.team.workspace(EXPERTS, x.dtype, call)
        call.workspace = workspace.data_ptr()
        self.team.run(EXPERTS, x.dtype, call)
        return out
