"""The experts as two grouped products: gate and up with SiLU and their product in one, down with the routing weight.

Rows are pairs of a token and an expert, sorted by expert (routing.py). The shared expert is cut into experts of the
others' size that every token takes, so that it runs in the same launches. A third kernel sums each token's pairs in the
order of its choices, so that the result does not depend on which program was done first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantise import GROUP, HALF, quantise
from .floats import half_of_e4m3
from .launch import Arch, dot_dtype, launch, power_of_two
from .routing import Routes, moe_dispatch

_GROUP: tl.constexpr = tl.constexpr(GROUP)
_HALF: tl.constexpr = tl.constexpr(HALF)
# Programs of this many blocks of rows take turns over the columns, so that an expert's weights stay in the L2 cache.
_SWIZZLE: tl.constexpr = tl.constexpr(8)
FORMS = ("stored", "fp8", "int4")  # how the weights lie; kernels know a form by its place here


@triton.jit
def _share(order, expert_of_block, blocks, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """What this program works on: an expert (below 0: nothing), BLOCK_M of its pairs and BLOCK_N of N columns."""
    COLUMNS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    program = tl.program_id(0)
    turn = program // (_SWIZZLE * COLUMNS)
    rows = tl.minimum(blocks - turn * _SWIZZLE, _SWIZZLE)
    inner = program % (_SWIZZLE * COLUMNS)
    block = turn * _SWIZZLE + inner % rows
    expert = tl.load(expert_of_block + block).to(tl.int64)
    pair = tl.load(order + block * BLOCK_M + tl.arange(0, BLOCK_M))
    return expert, pair, inner // rows * BLOCK_N + tl.arange(0, BLOCK_N)


@triton.jit
def _rows(row, mine, start, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """[BLOCK_M, BLOCK_K] of the left side, zero where there is none."""
    inner = start + tl.arange(0, BLOCK_K)
    mask = mine[:, None] & (inner < K)[None, :] if K % BLOCK_K else mine[:, None]
    return tl.load(row + inner[None, :], mask=mask, other=0.0)


@triton.jit
def _multiply(
    acc, left, weight, scales, start, column,
    K: tl.constexpr, N: tl.constexpr, FORM: tl.constexpr, BLOCK_K: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """acc + left @ W[column, start : start + BLOCK_K].T of one expert's weight W [N, K]."""
    KS: tl.constexpr = (K + _GROUP - 1) // _GROUP
    inside = column < N
    inner = start + tl.arange(0, BLOCK_K)
    if FORM == 2:
        # BLOCK_K is half a group: even steps take the low halves of its bytes, odd ones the high.
        byte = start // _GROUP * _HALF + tl.arange(0, BLOCK_K)
        place = column[None, :].to(tl.int64) * (KS * _HALF) + byte[:, None]
        packed = tl.load(weight + place, mask=inside[None, :], other=0).to(tl.int32)
        right = (((packed >> (start // _HALF % 2 * 4)) & 15) - 8).to(tl.float32).to(DOT)
        scale = tl.load(scales + column * KS + start // _GROUP, mask=inside, other=0.0)
        return acc + tl.dot(left, right, input_precision="ieee") * scale[None, :]
    mask = inside[None, :] & (inner < K)[:, None] if K % BLOCK_K else inside[None, :]
    place = column[None, :].to(tl.int64) * K + inner[:, None]
    if FORM == 1:
        half = half_of_e4m3(tl.load(weight + place, mask=mask, other=0))
        scale = tl.load(scales + column // _GROUP * KS + start // _GROUP, mask=inside, other=0.0) * 256.0
        return acc + tl.dot(left, half.to(DOT), input_precision="ieee") * scale[None, :]
    right = tl.load(weight + place, mask=mask, other=0.0)
    return tl.dot(left, right.to(DOT), acc, input_precision="ieee")


@triton.jit
def moe_gate_up_kernel(
    x, weight, scales, order, expert_of_block, out, pairs, blocks, x_stride, weight_stride, scale_stride,
    CHOICES: tl.constexpr, K: tl.constexpr, N: tl.constexpr, FORM: tl.constexpr, DOT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[pair] = silu(x gate^T) * (x up^T) for a block of pairs of one expert and a block of its N = I columns."""
    share = _share(order, expert_of_block, blocks, N, BLOCK_M, BLOCK_N)
    expert = share[0]
    pair = share[1]
    column = share[2]
    if expert < 0:
        return
    mine = pair < pairs
    row = x + (pair // CHOICES).to(tl.int64)[:, None] * x_stride
    weight += expert * weight_stride * 2
    scales += expert * scale_stride * 2
    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        left = _rows(row, mine, start, K, BLOCK_K).to(DOT)
        gate = _multiply(gate, left, weight, scales, start, column, K, N, FORM, BLOCK_K, DOT)
        up = _multiply(
            up, left, weight + weight_stride, scales + scale_stride, start, column, K, N, FORM, BLOCK_K, DOT
        )
    active = gate / (1.0 + tl.exp(-gate)) * up
    target = out + pair.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(target, active, mask=mine[:, None] & (column < N)[None, :])


@triton.jit
def moe_down_kernel(
    active, weight, scales, routing, order, expert_of_block, out, pairs, blocks, weight_stride, scale_stride,
    CHOICES: tl.constexpr, TOP_K: tl.constexpr, K: tl.constexpr, N: tl.constexpr, FORM: tl.constexpr,
    DOT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[pair] = (active[pair] down^T) * the pair's routing weight, which is 1 for a shared expert."""
    share = _share(order, expert_of_block, blocks, N, BLOCK_M, BLOCK_N)
    expert = share[0]
    pair = share[1]
    column = share[2]
    if expert < 0:
        return
    mine = pair < pairs
    row = active + pair.to(tl.int64)[:, None] * K
    weight += expert * weight_stride
    scales += expert * scale_stride
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        left = _rows(row, mine, start, K, BLOCK_K).to(DOT)
        acc = _multiply(acc, left, weight, scales, start, column, K, N, FORM, BLOCK_K, DOT)
    choice = pair % CHOICES
    routed = mine & (choice < TOP_K)
    acc *= tl.load(routing + (pair // CHOICES).to(tl.int64) * TOP_K + choice, mask=routed, other=1.0)[:, None]
    target = out + pair.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(target, acc, mask=mine[:, None] & (column < N)[None, :])


@triton.jit
def moe_combine_kernel(parts, out, CHOICES: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    acc = tl.zeros([BLOCK], tl.float32)
    for choice in range(CHOICES):
        acc += tl.load(parts + (token * CHOICES + choice) * N + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * N + column, acc, mask=inside)


class Tile(NamedTuple):
    rows: int  # BLOCK_M
    columns: int  # BLOCK_N
    inner: int  # BLOCK_K
    warps: int
    stages: int


class Tiles(NamedTuple):
    """Of the two products; both have the same rows, since they share the routes."""

    gate_up: Tile
    down: Tile


def tiles_of(arch: Arch, dtype: torch.dtype, form: str, pairs: int, experts: int) -> Tiles:
    """By the rows that an expert has on average. Every tile here spills nowhere (`arc kernels aot`)."""
    rows = min(128, power_of_two(-(-pairs // experts), 16))
    if dtype == torch.float32:
        one = Tile(16, 32, 32 if form == "stored" else HALF, warps=4, stages=2)
        return Tiles(one, one)
    if rows <= 32:
        few = Tile(rows, 64, HALF, warps=4, stages=2 if arch.amd or form == "int4" else 3)
        return Tiles(few, few)
    stages = 1 if arch.amd else 3
    if form != "stored":
        # Turning bytes into numbers takes registers: more rows would spill.
        columns = 64 if arch.asynchronous or arch.amd else 32
        return Tiles(
            Tile(64, columns, HALF, warps=8, stages=stages), Tile(64, 128, HALF, warps=8, stages=stages)
        )
    if rows == 64:
        return Tiles(Tile(64, 64, HALF, warps=4, stages=stages), Tile(64, 128, HALF, warps=4, stages=stages))
    if arch.amd:
        return Tiles(Tile(128, 128, 32, warps=8, stages=2), Tile(128, 128, HALF, warps=8, stages=2))
    columns = 128 if arch.asynchronous else 64
    return Tiles(Tile(128, columns, HALF, warps=8, stages=3), Tile(128, 128, HALF, warps=8, stages=3))


class PackedExperts(NamedTuple):
    """`total` experts: the gate's, then the shared one's parts. A form without scales has weights in their place."""

    gate_up: Tensor  # [total, 2, I, H] or bytes
    gate_up_scales: Tensor
    down: Tensor  # [total, H, I] or bytes
    down_scales: Tensor
    experts: int
    shared: int
    inner: int  # I
    form: str


class TritonMoeExperts:
    def __init__(self, arch: Arch, form: str = "stored") -> None:
        self._arch = arch
        self._form = form

    def pack(
        self,
        experts: Iterable[tuple[Tensor, Tensor]],
        count: int,
        shared: tuple[Tensor, Tensor] | None,
        top_k: int,
    ) -> PackedExperts:
        """One expert at a time into the layers' own tensors."""
        iterator = iter(experts)
        first = next(iterator)
        inner = first[1].shape[1]
        parts = 0 if shared is None else shared[1].shape[1] // inner
        gate_ups, downs = _Stack(count + parts, self._form), _Stack(count + parts, self._form)
        gate_ups.add(first[0])
        downs.add(first[1])
        for gate_up, down in iterator:
            gate_ups.add(gate_up)
            downs.add(down)
        if shared is not None:
            for gate_up in shared[0].split(inner, dim=1):
                gate_ups.add(gate_up)
            for down in shared[1].split(inner, dim=1):
                downs.add(down)
        return PackedExperts(
            *gate_ups.packed(), *downs.packed(), experts=count, shared=parts, inner=inner, form=self._form
        )

    def __call__(self, x: Tensor, weights: Tensor, indices: Tensor, packed: PackedExperts) -> Tensor:
        top_k, choices = indices.shape[1], indices.shape[1] + packed.shared
        total = packed.experts + packed.shared
        tiles = tiles_of(self._arch, x.dtype, packed.form, x.shape[0] * choices, total)
        routes = moe_dispatch(indices, packed.experts, packed.shared, tiles.gate_up.rows)
        active = self._gate_up(x, packed, routes, choices, tiles.gate_up)
        parts = self._down(active, weights, packed, routes, choices, top_k, tiles.down, x.shape[1])
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        block = min(1024, power_of_two(x.shape[1]))
        launch(
            moe_combine_kernel,
            (x.shape[0], -(-x.shape[1] // block)),
            {"parts": parts, "out": out},
            {"CHOICES": choices, "N": x.shape[1], "BLOCK": block},
        )
        return out

    @staticmethod
    def _gate_up(x: Tensor, packed: PackedExperts, routes: Routes, choices: int, tile: Tile) -> Tensor:
        active = x.new_empty(routes.pairs, packed.inner)
        launch(
            moe_gate_up_kernel,
            (routes.blocks * -(-packed.inner // tile.columns),),
            {
                "x": x,
                "weight": packed.gate_up,
                "scales": packed.gate_up_scales,
                "order": routes.order,
                "expert_of_block": routes.expert_of_block,
                "out": active,
                "pairs": routes.pairs,
                "blocks": routes.blocks,
                "x_stride": x.stride(0),
                "weight_stride": packed.gate_up.stride(1),
                "scale_stride": packed.gate_up_scales.stride(1),
            },
            {
                "CHOICES": choices,
                "K": x.shape[1],
                "N": packed.inner,
                "FORM": FORMS.index(packed.form),
                "DOT": dot_dtype(x.dtype),
                "BLOCK_M": tile.rows,
                "BLOCK_N": tile.columns,
                "BLOCK_K": tile.inner,
            },
            warps=tile.warps,
            stages=tile.stages,
        )
        return active

    @staticmethod
    def _down(
        active: Tensor,
        weights: Tensor,
        packed: PackedExperts,
        routes: Routes,
        choices: int,
        top_k: int,
        tile: Tile,
        hidden: int,
    ) -> Tensor:
        parts = active.new_empty(routes.pairs, hidden)
        launch(
            moe_down_kernel,
            (routes.blocks * -(-hidden // tile.columns),),
            {
                "active": active,
                "weight": packed.down,
                "scales": packed.down_scales,
                "routing": weights,
                "order": routes.order,
                "expert_of_block": routes.expert_of_block,
                "out": parts,
                "pairs": routes.pairs,
                "blocks": routes.blocks,
                "weight_stride": packed.down.stride(0),
                "scale_stride": packed.down_scales.stride(0),
            },
            {
                "CHOICES": choices,
                "TOP_K": top_k,
                "K": packed.inner,
                "N": hidden,
                "FORM": FORMS.index(packed.form),
                "DOT": dot_dtype(active.dtype),
                "BLOCK_M": tile.rows,
                "BLOCK_N": tile.columns,
                "BLOCK_K": tile.inner,
            },
            warps=tile.warps,
            stages=tile.stages,
        )
        return parts


class _Stack:
    """The experts' weights of one kind, written one by one into one tensor, quantised as they come."""

    def __init__(self, total: int, form: str) -> None:
        self._total = total
        self._form = form
        self._added = 0
        self._tensors: list[Tensor] = []

    def add(self, weight: Tensor) -> None:
        """weight [.., N, K]"""
        parts = (weight,) if self._form == "stored" else quantise(weight, self._form)
        if not self._tensors:
            self._tensors = [part.new_empty(self._total, *part.shape) for part in parts]
        for tensor, part in zip(self._tensors, parts, strict=True):
            tensor[self._added] = part
        self._added += 1

    def packed(self) -> tuple[Tensor, Tensor]:
        assert self._added == self._total, f"{self._added} experts came, {self._total} were announced"
        return self._tensors[0], self._tensors[-1]
