"""What the cases share: the device that they run on, bounds by dtype, and how two results are compared.

The cases run in a process of their own (../test_numerics.py): under Triton's interpreter, or on a card.
"""

from __future__ import annotations

import os

import pytest
import torch
from arc.kernels import Target
from arc.kernels.reference import BACKEND as TORCH
from arc.kernels.triton import BACKEND as TRITON
from torch import Tensor

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)

# Of the norm of the difference to that of the exact result. A value of fp16 is within 2^-11 of what it stands for, one
# of bf16 within 2^-8 where the interpreter cuts it off; on top of it come the operands' roundings of products.
BOUNDS = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def offered(operation: str, dtype: torch.dtype, weights: str = "stored"):
    """The operation of this backend and the reference's."""
    target = Target(DEVICE, dtype, weights, interpret=True)
    assert TRITON.available(target) is None
    return TRITON.offer(operation, target), TORCH.offer(operation, target)


def near(got: Tensor, want: Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    """Within the dtype's bound by relative norm, over all and row by row: a wrong row cannot hide among many."""
    assert got.shape == want.shape
    got, want = got.double(), want.double()
    assert bool(got.isfinite().all()), (
        f"{int((~got.isfinite()).sum())} values are not finite, or were not written"
    )
    bound = BOUNDS[dtype] * factor
    error = (got - want).norm() / want.norm()
    assert error <= bound, f"relative norm {error:.2e}, bound {bound:.2e}"
    rows = (got - want).flatten(1).norm(dim=1) / want.flatten(1).norm(dim=1)
    assert rows.max() <= 4 * bound, f"row {int(rows.argmax())}: {rows.max():.2e}, bound {4 * bound:.2e}"


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same on every device."""
    return torch.randn(*shape).to(DEVICE, dtype)
