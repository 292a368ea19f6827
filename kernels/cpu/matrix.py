"""Weights in the library's layout (native/matrix.h): a structure for the call, and the memory that it points to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .binding import BF16, F32, INT4, INT8, PACK, Gated, HeadMatrices, KvUp, Matrix, PackCall, Team

_INNER = 32  # inner columns of gate and of up that stand together in one panel


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    matrix: Matrix
    held: tuple[Tensor, ...]  # what its pointers point to


@dataclass(frozen=True, slots=True)
class PackedGated:
    mlp: Gated
    held: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class PackedKvUp:
    up: KvUp
    held: tuple[Tensor, ...]


def stored(dtype: torch.dtype) -> int:
    """The format that keeps weights as they are."""
    return BF16 if dtype == torch.bfloat16 else F32


def pack_matrix(team: Team, weight: Tensor, form: int, bias: Tensor | None = None) -> PackedMatrix:
    """weight [n, k], possibly strided."""
    n, k = weight.shape
    data = torch.empty(team.matrix_bytes(n, k, form), dtype=torch.uint8)
    return _pack_into(team, weight, form, data, bias)


def _pack_into(
    team: Team, weight: Tensor, form: int, data: Tensor, bias: Tensor | None = None
) -> PackedMatrix:
    n, k = weight.shape
    held = [data]
    matrix = Matrix(data=data.data_ptr(), n=n, k=k, format=form)
    if form in (INT8, INT4):
        scales = torch.ones(team.matrix_scales(n, k, form))
        matrix.scales = scales.data_ptr()
        held.append(scales)
    if bias is not None:
        wide = bias.float().contiguous()
        matrix.bias = wide.data_ptr()
        held.append(wide)
    call = PackCall(
        weight=weight.data_ptr(), row_stride=weight.stride(0), column_stride=weight.stride(1), matrix=matrix
    )
    team.run(PACK, weight.dtype, call)
    return PackedMatrix(matrix, tuple(held))


def pack_gated(team: Team, gate_up: Tensor, down: Tensor, form: int) -> PackedGated:
    """gate_up [2, I, H], down [H, I]. Columns of gate and up alternate, 32 and 32; those past I are zeros."""
    _, inner, hidden = gate_up.shape
    padded = -(-inner // _INNER) * _INNER
    if padded != inner:
        gate_up = torch.nn.functional.pad(gate_up, (0, 0, 0, padded - inner))
    both = gate_up.unflatten(1, (-1, _INNER)).transpose(0, 1).reshape(-1, hidden)
    first, second = pack_matrix(team, both, form), pack_matrix(team, down, form)
    return PackedGated(Gated(gate_up=first.matrix, down=second.matrix), first.held + second.held)


def pack_kv_up(team: Team, key_up: Tensor, value_up: Tensor) -> PackedKvUp:
    """key_up [h, nope, rank], value_up [h, v, rank]; always as stored: they are few, and all goes through them."""
    heads, nope, rank = key_up.shape
    form = stored(key_up.dtype)
    absorb, absorb_held = _pack_heads(team, key_up.transpose(1, 2), form)
    value, value_held = _pack_heads(team, value_up, form)
    key_rows = key_up.contiguous()
    if key_rows.data_ptr() == key_up.data_ptr():
        key_rows = key_up.clone()  # a view would keep the whole of kv_b_proj
    up = KvUp(
        absorb=absorb,
        value=value,
        key_rows=key_rows.data_ptr(),
        heads=heads,
        nope=nope,
        rank=rank,
        v=value_up.shape[1],
    )
    return PackedKvUp(up, (absorb_held, value_held, key_rows))


def _pack_heads(team: Team, weights: Tensor, form: int) -> tuple[HeadMatrices, Tensor]:
    """weights [h, n, k]."""
    heads, n, k = weights.shape
    stride = -(-team.matrix_bytes(n, k, form) // 64) * 64
    data = torch.empty(heads, stride, dtype=torch.uint8)
    packed = [_pack_into(team, weights[head], form, data[head]) for head in range(heads)]
    return HeadMatrices(first=packed[0].matrix, stride=stride), data
