"""A real `arc serve` for the time of a measurement."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Server:
    process: subprocess.Popen[bytes]
    base: str
    model: str
    started: float  # time.perf_counter() just before the process was made

    def peak_mib(self) -> float:
        """Most resident memory so far, MiB (VmHWM)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def cpu_seconds(self) -> float:
        """Processor time of all its threads so far: on a shared machine it says more than the clock."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def step_seconds(self) -> dict[str, float]:
        """Seconds spent in each part of all steps so far, from /metrics."""
        with urllib.request.urlopen(f"{self.base}/metrics", timeout=10) as page:
            text = page.read().decode()
        return {
            part: float(value)
            for part, value in re.findall(
                r'^arc:step_seconds_total\{[^}]*part="(\w+)"[^}]*\} (\S+)$', text, re.M
            )
        }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serve(model: Path | None, *flags: str, threads: int | None = None) -> Iterator[Server]:
    """Start `arc serve` (None: the carried model), wait until it is healthy, and stop it with SIGTERM."""
    port = free_port()
    command = [
        sys.executable,
        "-c",
        "from arc.console.main import main; main()",
        "serve",
        "--set",
        f"http.port={port}",
    ]
    command += ["--set", f"control.name=bench-{port}", "--set", "log.level=warning"]
    if model is not None:
        command += ["--model", str(model)]
    if threads is not None:
        command += ["--set", f"cpu.threads={threads}"]
    for flag in flags:
        command += ["--set", flag]
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder)
        base = f"http://127.0.0.1:{port}"
        try:
            yield Server(process, base, _wait(process, base, log), started)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def _wait(process: subprocess.Popen[bytes], base: str, log: object) -> str:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if process.poll() is not None:
            log.seek(0)  # type: ignore[attr-defined]
            raise RuntimeError(f"arc serve ended with {process.returncode}:\n{log.read().decode()}")  # type: ignore[attr-defined]
        try:
            with urllib.request.urlopen(f"{base}/v1/models", timeout=5) as page:
                return json.load(page)["data"][0]["id"]
        except OSError:
            time.sleep(0.02)
    raise RuntimeError("arc serve did not come up within 300 s")
