"""The console on a real terminal, and over a real engine: a policy is changed, its effect seen, and it is put back."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arc.console.top.app import Console, Options
from arc.console.top.apply import Apply
from arc.console.top.canvas import Canvas
from arc.console.top.dialogs import Choose
from arc.engine.control import protocol as p
from textual.pilot import Pilot

from tests.peers.make_checkpoint import TINY, write_checkpoint

from .conftest import Engine

ARC = [sys.executable, "-c", "from arc.console.main import main; main()"]


class Terminal:
    """`arc` in a pseudo-terminal of 80x24."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.output = b""
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            signal.signal(
                signal.SIGINT, signal.SIG_DFL
            )  # a shell's background job, as this may be, ignores it
            os.execve(ARC[0], [*ARC, *arguments], {**os.environ, "TERM": "xterm-256color", **environment})
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def write(self, keys: str) -> None:
        os.write(self._file, keys.encode())

    def read_until(self, text: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < end, self.text
            self.read_more()

    def read_more(self) -> None:
        """What is there, or comes within a moment."""
        if select.select([self._file], [], [], 0.1)[0]:
            self.output += os.read(self._file, 65536)

    @property
    def text(self) -> str:
        """What was written, without what only moves and colours."""
        return re.sub(
            r"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b[()][A-Z0-9]", "", self.output.decode("utf-8", "replace")
        )

    def wait(self) -> int:
        """The exit status, once what it still writes is read."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                self.read_more()
            except OSError:  # the other end is closed
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_on_a_terminal_it_draws_takes_keys_and_leaves_it_as_it_was(engine: Engine) -> None:
    engine.engine.submit(1_000_000, "long")
    terminal = Terminal("top")
    terminal.read_until("1 Overview")
    terminal.read_until("● serving")
    terminal.write("2")
    terminal.read_until("● running")
    terminal.write("q")
    assert terminal.wait() == 0
    assert terminal.output.rfind(b"\x1b[?1049l") > terminal.output.rfind(
        b"\x1b[?1049h"
    )  # back from the other screen
    assert b"Traceback" not in terminal.output


def test_what_a_killed_console_recorded_is_replayed(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "seen.top"
    engine.engine.submit(1_000_000, "long")
    terminal = Terminal("top", "--record", str(path))
    terminal.read_until("● rec")
    terminal.read_until("● serving")
    os.kill(terminal.pid, signal.SIGKILL)
    assert terminal.wait() == -signal.SIGKILL
    terminal = Terminal("replay", str(path))
    terminal.read_until("◀ replaying")
    terminal.read_until("THE FILE IS NOT WHOLE")
    terminal.write("2>>>>")
    terminal.read_until("● running")
    terminal.write("q")
    assert terminal.wait() == 0


def test_without_a_terminal_it_says_what_to_use(engine: Engine) -> None:
    done = subprocess.run(
        [*ARC, "top"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 2 and "--once" in done.stderr
    done = subprocess.run([*ARC, "top", "--once"], capture_output=True, text=True, check=True)
    assert "1 Overview" in done.stdout and "● serving" in done.stdout


def test_the_console_needs_no_torch_and_once_no_textual(engine: Engine) -> None:
    code = """
import sys
sys.modules["torch"] = None
from arc.console.commands.top import top
top(["--once"], standalone_mode=False)
assert "textual" not in sys.modules
import arc.console.top.app
assert "numpy" not in sys.modules and "aiohttp" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# -- a real engine ------------------------------------------------------------------------------------------------


class Real:
    """`arc serve` on a tiny checkpoint, in folders of the test's own."""

    def __init__(self, base: Path) -> None:
        self.base = base
        write_checkpoint(base / "tiny", TINY, seed=0)
        command = [*ARC, "serve", "--model", str(base / "tiny"), "--http.port", "0"]
        self.process = subprocess.Popen(command, cwd=base, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = next(
            filter(None, (re.search(r"API +(http://\S+)/v1", line) for line in self.process.stdout)), None
        )
        assert found is not None, "the engine did not start"
        self.url = found[1]

    @property
    def socket(self) -> Path:
        return self.base / "run" / "arc" / "main.sock"

    def complete(self, words: int, tokens: int) -> None:
        body = {"model": "tiny", "prompt": "the " * words, "max_tokens": tokens, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=120).read()


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Iterator[Real]:
    with tempfile.TemporaryDirectory(prefix="arc-t-") as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{base}/run")
        monkeypatch.setenv("XDG_STATE_HOME", f"{base}/state")
        Path(base, "run").mkdir()
        engine = Real(Path(base))
        yield engine
        engine.process.send_signal(signal.SIGTERM)
        engine.process.wait(60)


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    for _ in range(600):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("it did not come about")


async def change_policy(pilot: Pilot[None], app: Console, policy: str) -> None:
    """As an operator does it: view 5, the flag, its value, apply."""
    app.main.changes.choose_flag("admission.policy")
    await until(pilot, lambda: isinstance(app.screen, Choose))
    await pilot.press("down" if policy == "bucketed" else "up", "enter")
    await until(pilot, lambda: app.screen is app.main)
    assert app.main.flags.edits == {"admission.policy": policy}
    await pilot.press("a")
    await until(pilot, lambda: isinstance(app.screen, Apply))
    await pilot.pause()
    await pilot.click("#yes")
    await until(pilot, lambda: app.screen is app.main)


async def test_a_policy_is_changed_seen_and_put_back(real: Real) -> None:
    stop = threading.Event()

    def load(words: int) -> None:
        while not stop.is_set():
            real.complete(words, 60)

    threads = [threading.Thread(target=load, args=(4 + 9 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    app = Console(Options(real.socket, hz=5.0))
    try:
        async with app.run_test(size=(120, 40)) as pilot:

            def body() -> list[str]:
                return app.main.query_one("#body", Canvas).text

            def policy() -> object:
                row = app.main.flags.find("admission.policy")
                return row and row.value

            def rows(name: str) -> float | None:
                """Rows a step, or admitted sequences, in samples whose steps all ran under one policy."""
                events = [
                    each
                    for each in app.store.picture.events
                    if isinstance(each, p.Event) and each.kind == "flags"
                ]
                since = events[-1].time + 1.1 if events else 0.0
                samples = [each for each in app.store.picture.samples if each.time > since and each.steps]
                steps = sum(each.steps or 0 for each in samples)
                return sum(getattr(each, name) for each in samples) / steps if len(samples) >= 2 else None

            await until(pilot, lambda: (rows("rows") or 0) > 2)
            await change_policy(pilot, app, "bucketed")
            await until(pilot, lambda: policy() == "bucketed")
            await until(pilot, lambda: rows("rows"))
            effective, admitted = rows("rows"), rows("admitted")
            assert effective is not None and admitted is not None and effective < 0.8 * admitted
            await pilot.press("1")
            await until(pilot, lambda: any("bucketed" in line for line in body()[:4]))
            assert any("policy ragged→bucketed" in line for line in body())
            await pilot.press("6")
            await until(pilot, lambda: any("admission.policy ragged→bucketed" in line for line in body()))
            await change_policy(pilot, app, "ragged")
            await until(pilot, lambda: policy() == "ragged")
            await until(pilot, lambda: (rows("rows") or 0) > 0.8 * (rows("admitted") or 100))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
