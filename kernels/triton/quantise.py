"""Expert weights in fewer bits, and back: 8-bit floating point in blocks of 128 x 128, 4-bit integers in groups of 128.

Both are read by the kernels as bytes and turned into the activations' dtype by shifts, which every card can do: sm_80
knows no 8-bit floats, and AMD's first ones were others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 128  # of fp8 a block's side (DeepSeek-V3, arXiv:2412.19437, 3.3), of int4 a group along the inner dimension
HALF = GROUP // 2
_FP8_MOST = 448.0  # the largest e4m3
_INT4_MOST = 7


class Quantised(NamedTuple):
    """fp8: values [.., N, K] uint8, the bits of e4m3; scales [.., ceil(N / 128), ceil(K / 128)] fp32.
    int4: values [.., N, ceil(K / 128) * 64] uint8; scales [.., N, ceil(K / 128)] fp32."""

    values: Tensor
    scales: Tensor


def quantise_fp8(weight: Tensor) -> Quantised:
    """weight [N, K]; one scale a block, so that its largest value becomes the largest of e4m3."""
    rows, columns = weight.shape
    blocks = _padded(weight.float(), GROUP, GROUP).unflatten(0, (-1, GROUP)).unflatten(2, (-1, GROUP))
    scales = blocks.abs().amax(dim=(1, 3)) / _FP8_MOST
    scaled = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None, :, None]
    values = scaled.flatten(2).flatten(0, 1)[:rows, :columns].contiguous()
    return Quantised(values.to(torch.float8_e4m3fn).view(torch.uint8), scales)


def dequantise_fp8(quantised: Quantised) -> Tensor:
    rows, columns = quantised.values.shape
    scales = quantised.scales.repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)[:rows, :columns]
    return quantised.values.view(torch.float8_e4m3fn).float() * scales


def quantise_int4(weight: Tensor) -> Quantised:
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


def dequantise_int4(quantised: Quantised, columns: int) -> Tensor:
    packed = quantised.values.unflatten(1, (-1, HALF))
    both = torch.cat((packed & 15, packed >> 4), dim=-1).float() - 8
    return (both * quantised.scales.unsqueeze(-1)).flatten(1)[:, :columns]


def _padded(weight: Tensor, rows: int, columns: int) -> Tensor:
    return torch.nn.functional.pad(weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
