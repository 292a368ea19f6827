"""Every buffer that a kernel gets from torch is poisoned: what a kernel leaves out shows as NaN or as a huge number."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    torch.manual_seed(7)
    empty, empty_like, new_empty = torch.empty, torch.empty_like, torch.Tensor.new_empty

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(float("nan") if tensor.is_floating_point() else 0x55)

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k)))
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: poison(new_empty(*a, **k)))
