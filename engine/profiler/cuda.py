"""The device behind device.py's protocols where it is a CUDA card: the only part of the profiler that needs torch."""

from __future__ import annotations

import torch

from .device import DeviceEvent


class CudaDevice:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._cycles = torch.cuda.clock_rate(device) * 1e6  # a second, at the rate of now

    def event(self) -> DeviceEvent:
        return torch.cuda.Event(enable_timing=True)

    def busy(self, seconds: float) -> None:
        with torch.cuda.device(self._device):
            torch.cuda._sleep(
                int(seconds * self._cycles)
            )  # a kernel that counts cycles and touches no memory

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)
