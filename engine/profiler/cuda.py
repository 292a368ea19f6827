"""The device behind device.py's protocols where it is a CUDA card: the only part of the profiler that needs torch."""

from __future__ import annotations

import torch


class CudaEvent:
    """Goes into the stream that this thread works on, of the model's card and not of the process's first one."""

    __slots__ = ("_device", "_event")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event(enable_timing=True)

    def record(self) -> None:
        self._event.record(torch.cuda.current_stream(self._device))

    def query(self) -> bool:
        return self._event.query()

    def elapsed_time(self, end_event: CudaEvent) -> float:
        return self._event.elapsed_time(end_event._event)


class CudaDevice:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cycles = torch.cuda.clock_rate(device) * 1e6  # a second, at the rate of now

    def event(self) -> CudaEvent:
        return CudaEvent(self._device)

    def busy(self, seconds: float) -> None:
        with torch.cuda.device(self._device):
            torch.cuda._sleep(
                int(seconds * self._cycles)
            )  # a kernel that counts cycles and touches no memory

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)
