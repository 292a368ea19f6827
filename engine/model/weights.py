"""Weights by name and by slice, wherever they come from.

The forward pass asks for what it needs, and packs it as its kernels like; the source counts what was asked for, so a
missing, an extra or a misshapen tensor is one error that names it. Slices are part of the interface so that a rank of a
tensor-parallel engine can read its share alone.
"""

from __future__ import annotations

from typing import Protocol

import torch

from ..folder import CheckpointError


class WeightError(CheckpointError):
    """A checkpoint does not hold what its config.json says. The message names every tensor concerned."""


class WeightSource(Protocol):
    def get(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        dtype: torch.dtype | None = None,
        rows: slice | None = None,
    ) -> torch.Tensor:
        """The tensor `name`, of the full shape `shape`, in `dtype` (None: the model's), on the model's device.

        `rows` cuts the first dimension before anything is copied. fp8 blocks come dequantised.
        Raises WeightError when the tensor is missing or has another shape.
        """
        ...

    def has(self, name: str) -> bool: ...

    def finish(self) -> None:
        """Raise WeightError, naming every tensor of the checkpoint that nobody asked for."""
        ...
