"""Matrix products with weights in torch, prepacked for oneDNN where that is faster.

Measured on one core with AVX512_BF16: a bf16 product of 1 to 32 rows with a prepacked weight takes 0.45 to 0.9 of the
time of F.linear, which lays its weight out anew at each call; in fp32 it pays from about 128k weights and two rows on
(0.4 to 1.0 of the time), and below that F.linear's own path is faster.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..operations import Buffers
from .placed import silu

_FP32_MIN_WEIGHTS = 1 << 17


def _prepacks(weight: Tensor) -> bool:
    """Whether oneDNN's own layout is there for this weight and faster than torch's."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available() or not weight.numel():
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32 and weight.numel() >= _FP32_MIN_WEIGHTS


def pack_weight(weight: Tensor) -> Tensor:
    """`weight` [N, K] as an opaque oneDNN tensor where that is faster. The layout suits few rows, and serves any."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, 32) if _prepacks(weight) else weight


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, buffers: Buffers) -> Tensor:
    """F.linear for a weight that may be prepacked; oneDNN's product of such a one makes its own result."""
    if weight.is_mkldnn:
        buffers.bypass()
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    out = buffers.take((*x.shape[:-1], weight.shape[0]), x.dtype)
    return F.linear(x, weight, bias) if out is None else torch.ops.aten.linear.out(x, weight, bias, out=out)


class PackedLinear(NamedTuple):
    weight: Tensor
    bias: Tensor | None


class TorchLinear:
    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def pack(self, weight: Tensor, bias: Tensor | None = None, *, kept: bool = False) -> PackedLinear:
        return PackedLinear(weight if kept else pack_weight(weight), bias)

    def __call__(self, x: Tensor, packed: PackedLinear) -> Tensor:
        return packed_linear(x, packed.weight, packed.bias, self._buffers)


class PackedMlp(NamedTuple):
    gate_up: Tensor  # [2I, H]
    down: Tensor  # [H, I]


class TorchGatedMlp:
    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def pack(self, gate_up: Tensor, down: Tensor) -> PackedMlp:
        return PackedMlp(pack_weight(gate_up.flatten(0, 1)), pack_weight(down))

    def __call__(self, x: Tensor, packed: PackedMlp) -> Tensor:
        buffers = self._buffers
        gate, up = packed_linear(x, packed.gate_up, None, buffers).chunk(2, dim=-1)
        return packed_linear(silu(gate, buffers).mul_(up), packed.down, None, buffers)


class PackedKvUp(NamedTuple):
    # Both [h, rank, n] in memory: the layout that is fast at decode, where the same few queries meet it at every step
    # (value_up as [h, v, rank] took 8 times as long in bf16); the prompt's expansion reads either layout equally well.
    key_up: Tensor  # [h, rank, nope]
    value_up: Tensor  # [h, rank, v]


class TorchKvUp:
    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def pack(self, key_up: Tensor, value_up: Tensor) -> PackedKvUp:
        return PackedKvUp(key_up.transpose(1, 2).contiguous(), value_up.transpose(1, 2).contiguous())

    def absorb(self, q_nope: Tensor, packed: PackedKvUp) -> Tensor:
        return self._bmm(q_nope.transpose(0, 1), packed.key_up.transpose(1, 2)).transpose(0, 1)

    def value(self, out: Tensor, packed: PackedKvUp) -> Tensor:
        return self._bmm(out.transpose(0, 1), packed.value_up).transpose(0, 1)

    def expand(self, latents: Tensor, packed: PackedKvUp) -> tuple[Tensor, Tensor]:
        latents = latents.expand(packed.key_up.shape[0], *latents.shape)
        return self._bmm(latents, packed.key_up), self._bmm(latents, packed.value_up)

    def _bmm(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b, out=self._buffers.take((*a.shape[:2], b.shape[2]), a.dtype))
