"""The paged latent cache: what attention remembers of a token, and nothing else."""

from __future__ import annotations

import torch

from .config import ModelConfig


class LatentCache:
    """For each layer one tensor [pages * page_size, width]: token slot = page * page_size + offset.

    It starts zeroed and must stay finite: attention reads whole pages and gives the places past a row's length weight
    zero, but zero times NaN is NaN.
    """

    def __init__(
        self, layers: int, pages: int, page_size: int, width: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.pages = pages
        self.page_size = page_size
        self.width = width
        self.layers = [
            torch.zeros(pages * page_size, width, dtype=dtype, device=device) for _ in range(layers)
        ]

    def zero_pages(self, pages: list[int]) -> None:
        """Make pages whose contents may not be finite fit for their next owner."""
        for layer in self.layers:
            layer.view(self.pages, -1)[pages] = 0


def bytes_per_page(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
    """What one page of all layers takes; the prediction layers' caches are not in it."""
    return config.layers * page_size * config.latent_width * dtype.itemsize
