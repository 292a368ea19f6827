"""The engine as a process of its own: how it is called, and one that runs in the background of a console."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from ..engine.control import paths
from . import shown
from .client import connected
from .exits import Failure

_LOOK = 0.2  # seconds between two looks at an engine that starts
_LAST_LINES = 15  # of the log of an engine that died


def require_engine() -> None:
    """Raises Failure where only the console is installed."""
    if importlib.util.find_spec("torch") is None:  # looks, without importing it
        raise Failure(
            "only the console is installed here; the engine is arc-console[engine]: `make up` in a checkout, "
            "or pip install with that extra from where this came from"
        )


def engine_command(profile: str | None, overrides: tuple[str, ...]) -> list[str]:
    arguments = [] if profile is None else ["--profile", profile]
    for override in overrides:
        arguments += ["--set", override]
    # -P: the engine runs in the operator's folder, and no file there may pose as a module.
    return [sys.executable, "-P", "-m", "arc.engine.serve", *arguments]


def engine_environment() -> dict[str, str]:
    """A thread that waits must not spin: on a shared machine spinning costs far more than waking (docs/design.md).
    torch's OpenMP reads this when it is loaded, so it has to stand before the engine's first import."""
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}


class BackgroundEngine:
    """An engine in a session of its own: it outlives this process, the terminal and its Ctrl-C."""

    def __init__(self, name: str, command: list[str]) -> None:
        """Starts it. What it writes goes into a new log; the one before is kept beside it. Raises Failure."""
        self.name = name
        self.log = paths.log_path(name)
        self._socket = paths.socket_path(paths.runtime_folder(), name)
        try:
            paths.private_folder(paths.state_folder())
            if self.log.exists():
                self.log.replace(self.log.with_name(self.log.name + ".prev"))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            log = os.open(self.log, flags, 0o600)
        except paths.PathError as error:
            raise Failure(str(error)) from None
        except OSError as error:
            raise Failure(f"the engine's log {self.log} cannot be written: {error.strerror}") from None
        try:
            self._process = subprocess.Popen(
                command, env=engine_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_it_answers(self, waiting: Callable[[float], None]) -> None:
        """`waiting` is called with the seconds so far. Raises Failure, with the log's last lines, when it dies.

        It asks once and waits for the answer: while the model loads, the socket takes connections that nobody serves.
        """
        began = time.monotonic()
        while True:
            with contextlib.suppress(OSError), connected(self._socket) as asked:
                asked.sendall(b"GET /v1/hello HTTP/1.1\r\nHost: arc\r\n\r\n")
                while not (heard := _heard(asked)) and self.alive:
                    waiting(time.monotonic() - began)
                if heard and asked.recv(1):
                    return
            if not self.alive:
                raise Failure(self._died())
            waiting(time.monotonic() - began)
            time.sleep(_LOOK)

    def _died(self) -> str:
        status = self._process.returncode
        how = f"exit code {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        said = "\n".join(f"  {shown.plain(line)}" for line in lines) or "  (nothing)"
        return f"the engine {self.name} ended at its start with {how}; its log {self.log} ends so:\n{said}"

    def stop(self) -> None:
        """Let it drain, as Ctrl-C does under `arc serve`; a second call cancels what still runs."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self._process.wait()


def _heard(asked: socket.socket) -> bool:
    return bool(select.select([asked], [], [], _LOOK)[0])
