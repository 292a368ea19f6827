"""Expert weights in fewer bits, and back: 8-bit floating point in blocks of 128 x 128, 4-bit integers in groups of 128.

Kernels read both as bytes and turn them into the activations' dtype by shifts, which every card can do: sm_80 knows no
8-bit floats, and AMD's first ones were others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FORMS = ("fp8", "int4")
GROUP = 128  # of fp8 a block's side (DeepSeek-V3, arXiv:2412.19437, 3.3), of int4 a group along the inner dimension
HALF = GROUP // 2
_FP8_MOST = 448.0  # the largest e4m3
_INT4_MOST = 7


class Quantised(NamedTuple):
    """fp8: values [.., N, K] uint8, the bits of e4m3; scales [.., ceil(N / 128), ceil(K / 128)] fp32.
    int4: values [.., N, ceil(K / 128) * 64] uint8; scales [.., N, ceil(K / 128)] fp32."""

    values: Tensor
    scales: Tensor


def quantise(weight: Tensor, form: str) -> Quantised:
    """weight [.., N, K], each matrix by itself."""
    one = _quantise_fp8 if form == "fp8" else _quantise_int4
    matrices = [one(matrix) for matrix in weight.reshape(-1, *weight.shape[-2:])]
    before = weight.shape[:-2]
    return Quantised(
        *(
            torch.stack(part).unflatten(0, before) if before else part[0]
            for part in zip(*matrices, strict=True)
        )
    )


def dequantise(quantised: Quantised, form: str, columns: int) -> Tensor:
    """[.., N, K] fp32; `columns`: K."""
    values, scales = quantised
    if form == "fp8":
        rows = values.shape[-2]
        scales = scales.repeat_interleave(GROUP, -2).repeat_interleave(GROUP, -1)[..., :rows, :columns]
        return values.view(torch.float8_e4m3fn).float() * scales
    packed = values.unflatten(-1, (-1, HALF))
    both = torch.cat((packed & 15, packed >> 4), dim=-1).float() - 8
    return (both * scales.unsqueeze(-1)).flatten(-2)[..., :columns]


def _quantise_fp8(weight: Tensor) -> Quantised:
    """weight [N, K]; one scale a block, so that its largest value becomes the largest of e4m3."""
    rows, columns = weight.shape
    blocks = _padded(weight.float(), GROUP, GROUP).unflatten(0, (-1, GROUP)).unflatten(2, (-1, GROUP))
    scales = blocks.abs().amax(dim=(1, 3)) / _FP8_MOST
    scaled = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None, :, None]
    values = scaled.flatten(2).flatten(0, 1)[:rows, :columns].contiguous()
    return Quantised(values.to(torch.float8_e4m3fn).view(torch.uint8), scales)


def _quantise_int4(weight: Tensor) -> Quantised:
    """weight [N, K], symmetric, one scale a group of 128 of a row.

    Byte b of a group holds its value b in the low half and its value b + 64 in the high half, so that a kernel
    multiplies two runs of neighbours and never interleaves.
    """
    groups = _padded(weight.float(), 1, GROUP).unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(dim=-1) / _INT4_MOST
    scaled = (groups / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)).round()
    biased = (scaled.clamp(-_INT4_MOST, _INT4_MOST) + 8).to(torch.uint8)
    values = biased[..., :HALF] | biased[..., HALF:] << 4
    return Quantised(values.flatten(1), scales)


def _padded(weight: Tensor, rows: int, columns: int) -> Tensor:
    return torch.nn.functional.pad(weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
