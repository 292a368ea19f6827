"""Torch functions that write into a buffer of the step where there is one, and allocate as ever where there is none.

`Buffers.take` gives None for "as ever", and so does torch's own `out=None`: without buffers these are the plain calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..operations import Buffers


def empty(shape: Sequence[int], like: Tensor, buffers: Buffers) -> Tensor:
    out = buffers.take(shape, like.dtype)
    return like.new_empty(shape) if out is None else out


def silu(x: Tensor, buffers: Buffers) -> Tensor:
    out = buffers.take(x.shape, x.dtype)
    return F.silu(x) if out is None else torch.ops.aten.silu.out(x, out=out)


def contiguous(x: Tensor, buffers: Buffers) -> Tensor:
    """As x.contiguous(): `x` itself where it is."""
    if x.is_contiguous():
        return x
    out = buffers.take(x.shape, x.dtype)
    return x.contiguous() if out is None else out.copy_(x)
