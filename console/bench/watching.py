"""Consoles that cost what real ones cost, in a process of their own.

python -m arc.console.bench.watching watch SOCKET COUNT HZ    read COUNT streams until stdin ends
python -m arc.console.bench.watching poll SOCKET              ask for snapshots until stdin ends, print the times
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..client import connected

_POLL_PAUSE = 0.02  # seconds


@contextmanager
def beside(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of this module's commands, until the block ends; its output can be read then."""
    command = [sys.executable, "-P", "-m", "arc.console.bench.watching", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()  # it is connected
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(timeout=30)


def watch(path: Path, count: int, hz: str) -> None:
    streams: list[socket.socket] = []
    selector = selectors.DefaultSelector()
    for _ in range(count):
        stream = connected(path)
        stream.sendall(f"GET /v1/stream?hz={hz}&sequences=true HTTP/1.1\r\nHost: arc\r\n\r\n".encode())
        streams.append(stream)
        selector.register(stream, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("connected", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            assert isinstance(key.fileobj, socket.socket)
            if not key.fileobj.recv(1 << 20):
                raise RuntimeError("the engine ended a stream")


def poll(path: Path) -> None:
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    connection = http.client.HTTPConnection("arc")
    connection.sock = connected(path)
    print("connected", flush=True)
    times: list[float] = []
    while not selector.select(_POLL_PAUSE):
        began = time.perf_counter()
        connection.request("GET", "/v1/snapshot")
        connection.getresponse().read()
        times.append(time.perf_counter() - began)
    print(json.dumps(times), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        poll(Path(sys.argv[2]))
