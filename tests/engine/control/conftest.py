"""A running control server over a simulated engine, in folders of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arc.engine.control.listening import Listening
from arc.engine.control.protocol import NA
from arc.engine.control.server import ControlServer

from .simulated import SimulatedEngine
from .wire import Wire


class Running:
    """One engine with its control server."""

    def __init__(self, engine: SimulatedEngine, server: ControlServer, path: Path) -> None:
        self.engine = engine
        self.server = server
        self.path = path

    def connect(self) -> Wire:
        return Wire(self.path)


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short paths: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="arc-t-") as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{base}/run")
        monkeypatch.setenv("XDG_STATE_HOME", f"{base}/state")
        yield Path(base)


@pytest.fixture
def start(folders: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def begin(name: str = "sim", step_seconds: float = 0.002) -> Running:
        listening = Listening(name)
        engine = SimulatedEngine(name, step_seconds=step_seconds)
        server = ControlServer(engine, listening, NA("off in this test"))
        engine.start()
        server.start()
        running.append(Running(engine, server, listening.path))
        return running[-1]

    yield begin
    for each in running:
        each.server.stop()
        each.engine.stop()


@pytest.fixture
def running(start: Callable[..., Running]) -> Running:
    return start()
