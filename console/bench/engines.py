"""Engines that a bench starts for itself, each with a control socket and an API of its own, and stops again."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...engine.control import paths
from ..client import answers
from ..exits import Failure
from .runner import Site, site

_STARTS_WITHIN = 300.0  # seconds: a large checkpoint is read from a cold disk
_STOPS_WITHIN = 60.0


@dataclass(frozen=True, slots=True)
class Started:
    """A running `arc serve`."""

    pid: int
    url: str
    socket: Path
    began: float  # time.perf_counter() just before the process was made

    def site(self, timeout: float = 600.0) -> Site:
        return site(self.url, self.socket.stem, None, "completions", os.environ.get("ARC_API_KEY"), timeout)

    def peak_mib(self) -> float:
        """Most resident memory so far, MiB (VmHWM)."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def started(model: str | None, flags: Sequence[str]) -> Iterator[Started]:
    """An engine with these settings ("flag=value"), up until the block ends. Raises Failure with what it said when it
    does not come up: a flag that it lacks is named there."""
    if importlib.util.find_spec("torch") is None:
        raise Failure("only the console is installed here, and this starts an engine: arc-console[engine]")
    port = free_port()
    name = f"bench-{port}"
    chosen = [f"http.port={port}", f"control.name={name}", "log.level=warning", *flags]
    command = [sys.executable, "-P", "-m", "arc.engine.serve"]
    for each in chosen if model is None else [*chosen, f"model.path={model}"]:
        command += ["--set", each]
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}  # as of `arc serve`
    path = paths.socket_path(paths.runtime_folder(), name)
    with ended_in_order(), tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            process_group=0,  # Ctrl-C on a terminal is the bench's, which then ends its engine
        )
        try:
            _wait(process, port, path, log)
            yield Started(process.pid, f"http://127.0.0.1:{port}", path, began)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOPS_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does, so that no engine is left behind. Signals are the main thread's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(process: subprocess.Popen[bytes], port: int, path: Path, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN
    while time.monotonic() < deadline:
        if process.poll() is not None:
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip()
            raise Failure(f"the engine did not start ({process.returncode}): {said or 'it said nothing'}")
        # The API comes up last. The control socket is not asked before: it takes 64 connections, and none is in vain.
        if _listens(port) and answers(path):
            return
        time.sleep(0.02)
    raise Failure(f"the engine did not come up within {_STARTS_WITHIN:.0f} s")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
