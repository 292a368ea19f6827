from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from arc.console import shown
from arc.engine.control.listening import Listening
from arc.engine.control.protocol import NA
from arc.engine.control.server import ControlServer

from tests.engine.control.simulated import SimulatedEngine

from .real import Real


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of day as in UTC and without the date, wherever and whenever the tests run."""
    monkeypatch.setattr(shown, "clock", lambda moment: time.strftime("%H:%M:%S", time.gmtime(moment)))


class Engine:
    """A simulated engine with its real control server, which a test may stop and start again under its name."""

    def __init__(self, name: str = "sim") -> None:
        self._name = name
        self.begin()

    def begin(self) -> None:
        listening = Listening(self._name)
        self.path = listening.path
        self.engine = SimulatedEngine(self._name)
        self.server = ControlServer(self.engine, listening, NA("off in this test"))
        self.engine.start()
        self.server.start()

    def end(self) -> None:
        self.server.stop()
        self.engine.stop()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own, in which engines and consoles find each other."""
    with tempfile.TemporaryDirectory(prefix="arc-t-") as base:  # short: a socket's path has at most 107 bytes
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{base}/run")
        monkeypatch.setenv("XDG_STATE_HOME", f"{base}/state")
        Path(base, "run").mkdir(mode=0o700)
        yield Path(base)


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    running = Engine()
    yield running
    running.end()


@pytest.fixture
def real(folder: Path) -> Iterator[Real]:
    running = Real(folder)
    yield running
    running.end()
