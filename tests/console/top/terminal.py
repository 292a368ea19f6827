"""`arc` in a pseudo-terminal: what it wrote, what stands on its screen now, and the keys that are typed."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable

ARC = [sys.executable, "-c", "from arc.console.main import main; main()"]

_TOKEN = re.compile(
    r"\x1b\[(?P<arguments>[0-9:;?<>=$ ]*)(?P<call>[@-~])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a title, a clipboard
    r"|\x1b[()][A-Z0-9]|\x1b[=>78]"
    r"|(?P<control>[\r\n\x07\x08])|(?P<text>[^\x1b\r\n\x07\x08]+)"
)
_NO_MOVE = frozenset("mhlupqtnc")  # colours, modes, questions to the terminal


class Screen:
    """What a terminal shows that was sent this. It knows what the console sends; anything else is an error."""

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._clear()

    def _clear(self) -> None:
        self._cells = [[" "] * self._width for _ in range(self._height)]
        self._x = self._y = 0

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._cells]

    def feed(self, data: bytes) -> None:
        text = self._rest + self._decode(data)
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                assert text[at] == "\x1b" and len(text) - at < 4096, f"unknown: {text[at : at + 20]!r}"
                break  # a sequence that has not come whole
            at = token.end()
            if token["text"]:
                self._write(token["text"])
            elif token["control"]:
                self._control(token["control"])
            elif token["call"]:
                self._call(token["call"], token["arguments"])
        self._rest = text[at:]

    def _write(self, text: str) -> None:
        for letter in text:
            if self._x < self._width:
                self._cells[self._y][self._x] = letter
            self._x += 1

    def _control(self, control: str) -> None:
        if control == "\r":
            self._x = 0
        elif control == "\x08":
            self._x = max(0, self._x - 1)
        elif control == "\n" and self._y + 1 < self._height:
            self._y += 1
        elif control == "\n":
            self._cells = [*self._cells[1:], [" "] * self._width]

    def _call(self, call: str, arguments: str) -> None:
        if call == "h" and arguments == "?1049":
            self._clear()
        elif call == "H":
            y, _, x = arguments.partition(";")
            self._y, self._x = min(int(y or 1), self._height) - 1, int(x or 1) - 1
        elif call == "J" and arguments == "2":
            self._clear()
        elif call == "K" and arguments in ("", "0"):
            self._cells[self._y][self._x :] = [" "] * (self._width - self._x)
        else:
            assert call in _NO_MOVE, f"unknown: {arguments!r} {call!r}"


class Terminal:
    """One command of `arc`, as a person runs it."""

    def __init__(self, *arguments: str, size: tuple[int, int] = (80, 24), **environment: str) -> None:
        self.output = b""
        self._screen = Screen(*size)
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            signal.signal(
                signal.SIGINT, signal.SIG_DFL
            )  # a shell's background job, as this may be, ignores it
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
            signal.signal(
                signal.SIGINT, signal.SIG_DFL
            )  # a shell's background job, as this may be, ignores it
            own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
            os.execve(ARC[0], [*ARC, *arguments], {**own, "TERM": "xterm-256color", **environment})

    def write(self, keys: str) -> None:
        os.write(self._file, keys.encode())

    def _read(self) -> bool:
        """Whether anything came within a moment."""
        if not select.select([self._file], [], [], 0.1)[0]:
            return False
        data = os.read(self._file, 65536)
        self.output += data
        self._screen.feed(data)
        return True

    def read_until(self, text: str, seconds: float = 60.0) -> None:
        """Until `text` was written at any time."""
        end = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < end, self.text
            self._read()

    def shows(self, condition: Callable[[list[str]], object] | str, seconds: float = 60.0) -> list[str]:
        """The screen's lines, once they hold this text or fulfil this condition."""
        holds = (lambda lines: condition in "\n".join(lines)) if isinstance(condition, str) else condition
        end = time.monotonic() + seconds
        while not holds(self._screen.lines):
            assert time.monotonic() < end, "\n".join(["the screen did not come to it:", *self._screen.lines])
            self._read()
        # A picture is read in pieces: the caller gets it whole.
        for _ in range(20):
            if not self._read():
                break
        return self._screen.lines

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
                self._read()
            except OSError:  # the other end is closed
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
