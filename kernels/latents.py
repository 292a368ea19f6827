"""How a token's latent lies in its slot of the cache.

`stored`: the latent part and the rope part, in the model's dtype. `fp8`: a slot of bytes, which holds the latent part
as 8-bit floats (e4m3), the token's scale in fp32, and the rope part in the model's dtype; the rope part begins at a
multiple of 16, and so does the next slot. With a rank of 512 and 64 of rope in bf16 a slot has 656 bytes and not 1,152.

One scale a token: the norm before the cache has brought a token's values near each other, and 8-bit floats keep their
relative precision over a range of 2^15 below the largest. Finer scales would have little left to mend, and one scale
stays outside the products of attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

FORMS = ("stored", "fp8")
_ALIGNMENT = 16  # bytes: the widest load of a thread
_SCALE = torch.float32
MOST = 448.0  # the largest e4m3


def slot(form: str, rank: int, rope: int, dtype: torch.dtype) -> tuple[int, torch.dtype]:
    """How many elements a token's slot has, and of which dtype. `dtype`: the model's."""
    if form == "stored":
        return rank + rope, dtype
    return _aligned(_rope_at(rank) + rope * dtype.itemsize, _ALIGNMENT), torch.uint8


def in_fp8(cache: Tensor) -> bool:
    return cache.dtype == torch.uint8


def scales(slots: Tensor, rank: int) -> Tensor:
    """A view [S, 1] fp32 of slots [S, bytes] in fp8."""
    start = _aligned(rank, _SCALE.itemsize)
    return slots[:, start : start + _SCALE.itemsize].view(_SCALE)


def rope_part(slots: Tensor, rank: int, rope: int, dtype: torch.dtype) -> Tensor:
    """A view [S, rope] of slots in either form."""
    if not in_fp8(slots):
        return slots[:, rank:]
    start = _rope_at(rank)
    return slots[:, start : start + rope * dtype.itemsize].view(dtype)


def latent_part(slots: Tensor, rank: int, dtype: torch.dtype) -> Tensor:
    """[S, rank] of `dtype`: a view of stored slots, new for those in fp8."""
    if not in_fp8(slots):
        return slots[:, :rank]
    bits = slots[:, :rank].contiguous()
    return bits.view(torch.float8_e4m3fn).to(_SCALE).mul_(scales(slots, rank)).to(dtype)


def values(slots: Tensor, rank: int, rope: int, dtype: torch.dtype) -> Tensor:
    """[S, rank + rope] of `dtype`: the slots themselves where they are stored so."""
    if not in_fp8(slots):
        return slots
    return torch.cat((latent_part(slots, rank, dtype), rope_part(slots, rank, rope, dtype)), dim=1)


def write(cache: Tensor, slots: Tensor, latent: Tensor, rope: Tensor) -> None:
    """latent [T, rank] fp32 and rope [T, rope] go to `slots` [T] int64 of a cache in fp8."""
    rank = latent.shape[1]
    rows = cache.new_zeros(len(slots), cache.shape[1])
    scale = (latent.abs().amax(dim=1, keepdim=True) / MOST).clamp(min=torch.finfo(_SCALE).tiny)
    rows[:, :rank] = (latent / scale).to(torch.float8_e4m3fn).view(torch.uint8)
    scales(rows, rank).copy_(scale)
    rope_part(rows, rank, rope.shape[1], rope.dtype).copy_(rope)
    cache.index_copy_(0, slots, rows)


def _rope_at(rank: int) -> int:
    return _aligned(_aligned(rank, _SCALE.itemsize) + _SCALE.itemsize, _ALIGNMENT)


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to
