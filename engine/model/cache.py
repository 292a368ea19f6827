"""The paged latent cache: what attention remembers of a token, and nothing else."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from ...kernels import latents
from .config import ModelConfig


class Latents(Protocol):
    """What the forward pass writes and reads, however it is laid out: for each layer a tensor with a slot a row."""

    @property
    def page_size(self) -> int:
        """Neighbouring slots that one entry of a block table stands for."""
        ...

    @property
    def layers(self) -> list[torch.Tensor]: ...

    @property
    def prediction(self) -> torch.Tensor | None:
        """Of the prediction layer, where it is kept."""
        ...


_ALIGNMENT = 64  # bytes: of a cache line and of the widest vector


class LatentCache:
    """For each layer one tensor [pages * page_size, width]: token slot = page * page_size + offset.

    It starts zeroed and must stay finite: attention reads whole pages and gives the places past a row's length weight
    zero, but zero times NaN is NaN.
    """

    def __init__(
        self,
        layers: int,
        pages: int,
        page_size: int,
        width: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        prediction: bool = False,
    ) -> None:
        """`width` and `dtype`: of a slot, as `slot_of` gives them.

        `prediction`: with a layer for the prediction layer's latents, in the same pages.
        """
        self.pages = pages
        self.page_size = page_size
        self.width = width

        def layer() -> torch.Tensor:
            return zeros(pages * page_size, width, dtype=dtype, device=device)

        self.layers = [layer() for _ in range(layers)]
        self.prediction = layer() if prediction else None

    def zero_pages(self, pages: list[int]) -> None:
        """Make pages whose contents may not be finite fit for their next owner."""
        for layer in self.layers if self.prediction is None else (*self.layers, self.prediction):
            layer.view(self.pages, -1)[pages] = 0


def zeros(slots: int, width: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As torch.zeros; but on the host untouched pages of it take no memory, so that a reserve costs what is used of it.

    torch.zeros writes its zeros; numpy's come from the system, which has zeroed pages on demand.
    """
    if device.type != "cpu":
        return torch.zeros(slots, width, dtype=dtype, device=device)
    size = slots * width * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[start : start + size]).view(dtype).view(slots, width)


def slot_of(config: ModelConfig, dtype: torch.dtype, form: str = "stored") -> tuple[int, torch.dtype]:
    """Elements of a token's slot in one layer, and their dtype. `dtype`: the model's; `form`: as cache.latents."""
    return latents.slot(form, config.kv_lora_rank, config.rope_dim, dtype)


def bytes_per_page(
    config: ModelConfig,
    page_size: int,
    dtype: torch.dtype,
    prediction: bool = False,
    form: str = "stored",
) -> int:
    """What one page of all layers takes, the prediction layer's included where it is kept."""
    width, kind = slot_of(config, dtype, form)
    return (config.layers + prediction) * page_size * width * kind.itemsize
