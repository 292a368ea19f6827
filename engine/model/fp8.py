"""Block-quantised fp8 weights, as DeepSeek-V3 publishes them (arXiv:2412.19437, section 3.3)."""

from __future__ import annotations

import torch


def scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, int]:
    """One scale for each block of a [rows, columns] weight; blocks at the lower and right edge may be cut."""
    rows, columns = shape
    return -(-rows // block[0]), -(-columns // block[1])


def dequantise_rows(
    weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int], first_row: int, out: torch.Tensor
) -> None:
    """Write weight x scale into `out`, without a temporary tensor of its size.

    weight: [n, columns] float8_e4m3fn, rows first_row .. first_row + n of the whole matrix.
    scale: [ceil(rows / block[0]), ceil(columns / block[1])] float32 of the whole matrix, the
        `weight_scale_inv` stored next to the weight (despite its name it multiplies).
    out: [n, columns] float32.
    """
    out.copy_(weight)
    start = 0
    while start < len(out):
        block_row = (first_row + start) // block[0]
        stop = min(len(out), (block_row + 1) * block[0] - first_row)
        out[start:stop].mul_(scale[block_row].repeat_interleave(block[1])[: out.shape[1]])
        start = stop
