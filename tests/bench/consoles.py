"""What consoles cost the engine, and how fast the control socket answers while the engine is busy.

python -m tests.bench.consoles watch SOCKET COUNT HZ    read COUNT streams until stdin ends
python -m tests.bench.consoles poll SOCKET              ask for snapshots until stdin ends, print the times
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from arc.engine.control import paths
from arc.engine.control.recorder import Recorder
from arc.engine.core.interface import EngineInfo
from arc.engine.flags import DEFAULTS
from arc.engine.telemetry.records import StepRecord

from . import workloads
from .load import send
from .server import Server

ARMS = (0, 1, 8)
ROWS = 32
HZ = 4
OUTPUT = 640  # tokens a row
_POLL_PAUSE = 0.02


def socket_of(server: Server) -> Path:
    return paths.socket_path(paths.runtime_folder(), f"bench-{urlsplit(server.base).port}")


def consoles(server: Server, vocab: int, repeats: int) -> None:
    """Output tokens a second with no console, one and eight at 4 Hz; the arms alternate."""
    rates: dict[int, list[float]] = {arm: [] for arm in ARMS}
    for seed in range(repeats):
        for arm in ARMS if seed % 2 else reversed(ARMS):
            with beside("watch", str(socket_of(server)), str(arm), str(HZ)):
                # Seeds apart: no run finds another's prefixes in the cache. Long: attaching is not what is measured.
                jobs = workloads.uniform(ROWS, vocab, 1000 * arm + seed, output=OUTPUT)
                rates[arm].append(send(server.base, server.model, jobs).output_rate)
    base = statistics.median(rates[0])
    line = "   ".join(f"{arm}: {statistics.median(rates[arm]):,.0f} tok/s" for arm in ARMS)
    ratios = "   ".join(f"{arm}/0 {statistics.median(rates[arm]) / base:.3f}" for arm in ARMS[1:])
    print(f"  consoles at {HZ} Hz, {ROWS} rows: {line}   {ratios}", flush=True)


def answers(server: Server, vocab: int, repeats: int) -> None:
    """The time of GET /v1/snapshot while the engine and its API are busy."""
    with beside("poll", str(socket_of(server))) as poller:
        for seed in range(repeats):
            send(server.base, server.model, workloads.uniform(ROWS, vocab, seed))
    times = sorted(json.loads(poller.stdout.read() if poller.stdout else "[]"))
    p50, p99 = times[len(times) // 2], times[int(0.99 * len(times))]
    print(
        f"  control socket under {ROWS} rows: p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms, "
        f"longest {1000 * times[-1]:.1f} ms of {len(times):,}",
        flush=True,
    )


def recorder(steps: int = 20_000) -> None:
    """What one step's two records cost, in a process that does nothing else."""
    numbers = {field.name: 1 if field.type is int else 0.5 for field in msgspec.structs.fields(StepRecord)}
    records = [StepRecord(**(numbers | {"index": index})) for index in range(steps)]  # pyright: ignore[reportArgumentType]
    info = msgspec.convert(dict.fromkeys(_TEXTS, "") | dict.fromkeys(_NUMBERS, 1), EngineInfo)
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        written = Recorder(Path(folder) / "bench.rec", info, DEFAULTS)
        for record in records:
            began = time.perf_counter()
            written.opened(record.index, record.rows)
            written.closed(record)
            times.append(time.perf_counter() - began)
    times.sort()
    print(
        f"  flight recorder: {1e6 * times[steps // 2]:.1f} us a step, p99 {1e6 * times[int(0.99 * steps)]:.1f} us"
    )


_TEXTS = [field.name for field in msgspec.structs.fields(EngineInfo) if field.type is str]
_NUMBERS = [field.name for field in msgspec.structs.fields(EngineInfo) if field.type is not str]


@contextmanager
def beside(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of this module's commands in a process of its own, until the block ends."""
    command = [sys.executable, "-m", "tests.bench.consoles", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()  # it is connected
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(timeout=30)


def watch(path: str, count: int, hz: str) -> None:
    streams: list[socket.socket] = []
    selector = selectors.DefaultSelector()
    for _ in range(count):
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(path)
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


def poll(path: str) -> None:
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    connection = http.client.HTTPConnection("arc")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
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
        watch(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        poll(sys.argv[2])
