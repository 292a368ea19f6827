"""`arc up` on a pseudo-terminal with real engines: what it starts, what it leaves alone, what it says of a death."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arc.console.client import Client, answers
from arc.console.exits import Failure
from arc.console.top.app import Console, Options
from arc.console.top.dialogs import Leave
from arc.console.top.store import Store
from arc.engine.control import protocol as p

from tests.peers.make_checkpoint import TINY, write_checkpoint

from .recorded import picture, recorded
from .terminal import ARC, Terminal


class Place:
    """Folders of the test's own, with a tiny model; whatever engine is left in them is stopped at the end."""

    def __init__(self, base: Path) -> None:
        self.base = base
        write_checkpoint(base / "tiny", TINY, seed=0)
        (base / "arc.toml").write_text(f'[model]\npath = "{base}/tiny"\n[http]\nport = 0\n')

    @property
    def socket(self) -> Path:
        return self.base / "run" / "arc" / "main.sock"

    @property
    def log(self) -> Path:
        return self.base / "state" / "arc" / "main.log"

    def pid(self) -> int:
        with Client(self.socket) as client:
            return client.get("/v1/hello", p.Hello).pid


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="arc-t-") as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{base}/run")
        monkeypatch.setenv("XDG_STATE_HOME", f"{base}/state")
        monkeypatch.chdir(base)
        Path(base, "run").mkdir(mode=0o700)
        made = Place(Path(base))
        yield made
        if answers(made.socket):
            os.kill(made.pid(), signal.SIGTERM)
            until(lambda: not answers(made.socket))


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def test_it_starts_an_engine_leaves_it_running_and_comes_back_to_it(place: Place) -> None:
    terminal = Terminal("up")
    terminal.read_until(f"its log is {place.log}")
    terminal.read_until("● serving")
    terminal.write("q")
    terminal.read_until("Stop main as well?")
    terminal.write("\r")  # the focus is on leaving it
    assert terminal.wait() == 0
    assert "main goes on in the background" in terminal.text
    pid = place.pid()
    assert place.log.stat().st_mode & 0o777 == 0o600 and "serves tiny" in place.log.read_text()

    terminal = Terminal("up")
    terminal.read_until("● serving")
    terminal.write("q")  # it did not start this one: nothing is asked
    assert terminal.wait() == 0
    assert "Stop main" not in terminal.text and place.pid() == pid
    refused = Terminal("up", "--sched.max_running", "3")
    assert refused.wait() == 1 and "runs already, with settings of its own" in refused.text

    os.kill(pid, signal.SIGTERM)
    until(lambda: not answers(place.socket))
    terminal = Terminal("up")
    terminal.read_until("● serving")
    terminal.write("\x11")  # Ctrl+Q, Textual's own
    terminal.read_until("Stop main as well?")
    terminal.write("\t\r")
    assert terminal.wait() == 0
    assert "main has ended" in terminal.text and not answers(place.socket)
    assert (place.log.parent / "main.log.prev").exists()


def test_an_engine_that_dies_at_its_start_is_told_with_its_last_words(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        terminal = Terminal("up", "--http.port", str(port))
        assert terminal.wait() == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in terminal.text
    assert "ended at its start with exit code 1" in terminal.text and str(place.log) in terminal.text
    (place.base / "arc.toml").write_text("[sched]\nmax_runing = 3\n")
    terminal = Terminal("up")
    assert terminal.wait() == 1 and "did you mean max_running" in terminal.text.replace("sched.", "")


def test_ctrl_c_while_it_starts_stops_it_again(place: Place) -> None:
    terminal = Terminal("up")
    terminal.read_until("starting main")
    terminal.write("\x03")
    assert terminal.wait() == 130
    assert not answers(place.socket)


def test_without_a_terminal_it_serves_in_the_foreground(place: Place) -> None:
    process = subprocess.Popen(
        [*ARC, "up"], cwd=place.base, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert any(re.search(r"API +http://", line) for line in process.stdout)
    assert place.pid() == process.pid  # it became the engine, as `arc serve` does
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


async def test_leaving_asks_once_and_esc_stays() -> None:
    store = Store()
    store.picture = picture()
    app = Console(
        Options(Path("/nowhere"), greeting="main was started", started="main"), store=store,
        clock=lambda: recorded().time,
    )  # fmt: skip
    async with app.run_test(size=(80, 24)) as pilot:
        assert [note.message for note in app._notifications] == ["main was started"]
        await pilot.press("q", "ctrl+q")
        assert isinstance(app.screen, Leave)
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is app.main and app.is_running
        store.lost("it went away", recorded().time)
        await pilot.press("q")  # there is nothing left to stop
        await pilot.pause()
    assert not app.is_running and not app.stops_engine


def test_only_a_console_is_told_how_to_get_an_engine(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from arc.console import engine_process

    monkeypatch.setattr(engine_process.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Failure, match="only the console is installed"):
        engine_process.require_engine()
