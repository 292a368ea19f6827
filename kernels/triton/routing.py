"""Dispatch: the (token, choice) pairs sorted by expert, each expert's run filled up to whole blocks of rows.

All of it happens in one program on the device, so that the host waits for nothing: it knows a bound on the blocks, and
blocks that are not needed are marked so.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch, power_of_two

_PAIRS_AT_ONCE = 1024


@triton.jit
def _expert_of(indices, pair, inside, TOP_K: tl.constexpr, CHOICES: tl.constexpr, EXPERTS: tl.constexpr):
    """The choices past the gate's are the shared experts', which every token takes."""
    choice = pair % CHOICES
    routed = inside & (choice < TOP_K)
    own = tl.load(indices + (pair // CHOICES).to(tl.int64) * TOP_K + choice, mask=routed, other=0).to(
        tl.int32
    )
    return tl.where(choice < TOP_K, own, EXPERTS + choice - TOP_K)


@triton.jit
def moe_dispatch_kernel(
    indices, order, expert_of_block, cursor, pairs, blocks,
    TOP_K: tl.constexpr, CHOICES: tl.constexpr, EXPERTS: tl.constexpr, BLOCK_EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr, AT_ONCE: tl.constexpr, BLOCKS_AT_ONCE: tl.constexpr,
):  # fmt: skip
    step = tl.arange(0, AT_ONCE)
    # A place that no pair takes holds a number past all pairs.
    for start in range(0, blocks * BLOCK_M, AT_ONCE):
        tl.store(order + start + step, pairs, mask=start + step < blocks * BLOCK_M)
    counts = tl.zeros([BLOCK_EXPERTS], tl.int32)
    for start in range(0, pairs, AT_ONCE):
        inside = start + step < pairs
        expert = _expert_of(indices, start + step, inside, TOP_K, CHOICES, EXPERTS)
        counts += tl.histogram(expert, BLOCK_EXPERTS, mask=inside)
    padded = (counts + BLOCK_M - 1) // BLOCK_M * BLOCK_M
    ends = tl.cumsum(padded, axis=0)
    tl.store(cursor + tl.arange(0, BLOCK_EXPERTS), ends - padded)
    total = tl.sum(padded, axis=0)
    for start in range(0, blocks, BLOCKS_AT_ONCE):
        block = start + tl.arange(0, BLOCKS_AT_ONCE)
        before = (ends[None, :] <= block[:, None] * BLOCK_M).to(tl.int32)
        expert = tl.where(block * BLOCK_M < total, tl.sum(before, axis=1), -1)
        tl.store(expert_of_block + block, expert, mask=block < blocks)
    # The cursors and the order's filling are other threads' stores until here.
    tl.debug_barrier()
    for start in range(0, pairs, AT_ONCE):
        inside = start + step < pairs
        expert = _expert_of(indices, start + step, inside, TOP_K, CHOICES, EXPERTS)
        place = tl.atomic_add(cursor + expert, 1, mask=inside)
        tl.store(order + place, start + step, mask=inside)


class Routes(NamedTuple):
    """Pair p is choice p % choices of token p // choices."""

    order: (
        Tensor  # [blocks * rows] int32: pairs by expert, in no order within one; pairs where a place is empty
    )
    expert_of_block: Tensor  # [blocks] int32; -1: the block is not needed
    pairs: int
    blocks: int


def most_blocks(pairs: int, experts: int, rows: int) -> int:
    """Of `rows` rows, whatever the routing: each expert that has a pair fills at most one block in part."""
    used = min(pairs, experts)
    return used + (pairs - used) // rows


def moe_dispatch(indices: Tensor, experts: int, shared: int, rows: int) -> Routes:
    """indices [T, k] int64 of `experts` experts; `shared` more that every token takes; blocks of `rows` rows."""
    tokens, top_k = indices.shape
    choices, total = top_k + shared, experts + shared
    pairs = tokens * choices
    blocks = most_blocks(pairs, total, rows)
    block_experts = power_of_two(total)
    order = torch.empty(blocks * rows, dtype=torch.int32, device=indices.device)
    expert_of_block = torch.empty(blocks, dtype=torch.int32, device=indices.device)
    cursor = torch.empty(block_experts, dtype=torch.int32, device=indices.device)
    launch(
        moe_dispatch_kernel,
        (1 if pairs else 0,),
        {
            "indices": indices,
            "order": order,
            "expert_of_block": expert_of_block,
            "cursor": cursor,
            "pairs": pairs,
            "blocks": blocks,
        },
        {
            "TOP_K": top_k,
            "CHOICES": choices,
            "EXPERTS": experts,
            "BLOCK_EXPERTS": block_experts,
            "BLOCK_M": rows,
            "AT_ONCE": _PAIRS_AT_ONCE,
            "BLOCKS_AT_ONCE": max(1, 4096 // block_experts),
        },
        warps=8,
    )
    return Routes(order, expert_of_block, pairs, blocks)
