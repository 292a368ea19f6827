"""The machine under the engine: its process's CPU time and memory from /proc, and the card through NVML.

What cannot be read is NA with the reason: an engine in another container has no /proc entry here.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.control.protocol import NA

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Card:
    """One accelerator as NVML shows it; what the card does not support is NA."""

    name: str
    utilisation: int | NA  # percent of the last sampling period with a kernel running
    used: int | NA  # bytes
    total: int | NA
    watts: float | NA
    celsius: int | NA
    throttled: str | NA  # reasons, "" when none


@dataclass(frozen=True, slots=True)
class Host:
    """`cpu` is cores in use by the engine's process, over `seconds`."""

    cpu: float | NA
    seconds: float
    cores: int
    memory_used: int | NA
    memory_total: int | NA
    card: Card | NA


class HostReader:
    """Differences between two readings; one reader for one engine."""

    def __init__(self, pid: int, device: str) -> None:
        self._pid = pid
        self._before: tuple[float, float] | None = None
        self._card = _CardReader(device)

    def read(self) -> Host:
        now = time.monotonic()
        used = self._cpu_seconds()
        before, self._before = self._before, None if isinstance(used, NA) else (now, used)
        seconds = now - before[0] if before else 0.0
        cpu: float | NA
        if isinstance(used, NA):
            cpu = used
        elif before is None or seconds <= 0:
            cpu = NA("needs a second reading")
        else:
            cpu = (used - before[1]) / seconds
        taken, total = _memory()
        return Host(cpu, seconds, os.cpu_count() or 1, taken, total, self._card.read())

    def _cpu_seconds(self) -> float | NA:
        try:
            text = Path(f"/proc/{self._pid}/stat").read_text()
        except OSError:
            return NA(f"process {self._pid} cannot be seen from here")
        fields = text.rpartition(")")[2].split()  # the command's name before it may hold anything
        return (int(fields[11]) + int(fields[12])) / _TICKS  # utime, stime: proc(5), fields 14 and 15


def _memory() -> tuple[int | NA, int | NA]:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        return total - free, total
    except (OSError, KeyError) as error:
        unknown = NA(f"/proc/meminfo cannot be read: {error}")
        return unknown, unknown


class _CardReader:
    """NVML through pynvml, which is asked only where the engine says that it runs on a card."""

    def __init__(self, device: str) -> None:
        self._why = ""
        if not device.startswith("cuda"):
            self._why = f"the engine runs on {device}"
            return
        try:
            import pynvml  # of the package nvidia-ml-py, which a console-only install does not have
        except ImportError:
            self._why = "pynvml is not installed (pip install nvidia-ml-py)"
            return
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(int(device.partition(":")[2] or 0))
        except pynvml.NVMLError as error:
            self._why = f"NVML: {error}"

    def read(self) -> Card | NA:
        if self._why:
            return NA(self._why)
        nvml, handle = self._nvml, self._handle
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        rates = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return Card(
            name=str(self._ask(lambda: nvml.nvmlDeviceGetName(handle))),
            utilisation=rates if isinstance(rates, NA) else rates.gpu,
            used=memory if isinstance(memory, NA) else memory.used,
            total=memory if isinstance(memory, NA) else memory.total,
            watts=power if isinstance(power, NA) else power / 1000,
            celsius=self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            throttled=reasons if isinstance(reasons, NA) else _throttle_words(reasons),
        )

    def _ask(self, question: Any) -> Any:
        try:
            return question()
        except self._nvml.NVMLError as error:
            return NA(f"NVML: {error}")


# nvml.h, nvmlClocksEventReason*: an idle card and clocks set by the user are no trouble and are left out.
_THROTTLE = {0x04: "power cap", 0x08: "hardware slowdown", 0x20: "thermal, software", 0x40: "thermal, hardware",
             0x80: "power brake"}  # fmt: skip


def _throttle_words(bits: int) -> str:
    return ", ".join(word for bit, word in _THROTTLE.items() if bits & bit)
