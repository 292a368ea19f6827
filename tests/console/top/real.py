"""Engines in processes of their own, as `arc serve` starts them, on the tiny checkpoint."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from arc.engine.control import paths

from tests.peers.make_checkpoint import TINY, write_checkpoint

from .terminal import ARC


class Real:
    """One engine. With the torch kernels a request lasts long enough to be watched. `broken` is a statement that the
    engine's process begins with."""

    def __init__(self, base: Path, *, name: str = "main", broken: str = "") -> None:
        self.base = base
        if not (base / "tiny").exists():
            write_checkpoint(base / "tiny", TINY, seed=0)
        flags = {
            "model.path": base / "tiny",
            "http.port": 0,
            "control.name": name,
            "kernels.backend": "torch",
        }
        serve = [*ARC, "serve"]
        if broken:  # `arc serve` would replace the process, and the statement's effect with it
            serve = [sys.executable, "-c", f"{broken}\nfrom arc.engine.serve import main\nmain()"]
        self._command = [*serve, *(f"--set={flag}={value}" for flag, value in flags.items())]
        self.socket = paths.socket_path(paths.runtime_folder(), name)
        self.begin()

    def begin(self) -> None:
        self._ended = False
        self.process = subprocess.Popen(
            self._command, cwd=self.base, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        found = next(
            filter(None, (re.search(r"API +(http://\S+)/v1", line) for line in self.process.stdout)), None
        )
        assert found is not None, "the engine did not start"
        self.url = found[1]

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._ended = True
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(60)

    def complete(self, prompt: int, tokens: int) -> None:
        """Ask for a completion, both lengths in tokens, and wait for its end."""
        body = {"model": "tiny", "prompt": [17] * prompt, "max_tokens": tokens, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=120).read()

    @contextmanager
    def asked(self, requests: Sequence[tuple[int, int]]) -> Iterator[None]:
        """A client each, that asks again and again; what is under way at the end is waited for."""
        stop = threading.Event()

        def client(prompt: int, tokens: int) -> None:
            while not stop.is_set():
                try:
                    self.complete(prompt, tokens)
                except OSError:
                    if not self._ended:
                        raise
                    return

        threads = [threading.Thread(target=client, args=each) for each in requests]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()


# Requests whose lengths mostly stand further apart than what bucketed admission runs together, tokens.
APART = [(8 + 100 * client, 60) for client in range(5)]
