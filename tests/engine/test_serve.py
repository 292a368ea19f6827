"""`arc serve` as a process: how it starts, what it refuses, how it ends."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ARC = [sys.executable, "-c", "from arc.console.main import main; main()"]


class Place:
    """A folder, a runtime folder and a state folder of a test's own: nothing of the machine's is seen or touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ARC_")} | {
            "XDG_RUNTIME_DIR": str(folder / "run"), "XDG_STATE_HOME": str(folder / "state"),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        (folder / "run").mkdir()
        (folder / "work").mkdir()
        self.started: list[subprocess.Popen[str]] = []

    def arc(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ARC, *arguments], cwd=self.folder / "work", env={**self.environment, **environment},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def serve(self, model: Path, *arguments: str) -> Engine:
        command = [*ARC, "serve", "--model", str(model), "--http.port", "0", *arguments]
        process = subprocess.Popen(
            command, cwd=self.folder / "work", env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=(self.folder / "log").open("a"),
        )  # fmt: skip
        self.started.append(process)
        return Engine(process, self)


class Engine:
    def __init__(self, process: subprocess.Popen[str], place: Place) -> None:
        self.process = process
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("  try "):
                break
        self.banner = "".join(lines)
        found = re.search(r"API +(http://\S+)/v1", self.banner)
        assert found is not None, self.banner + (place.folder / "log").read_text()
        self.base = found[1]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="arc") as folder:  # short: a socket's path has 107 bytes
        place = Place(Path(folder))
        yield place
        for process in place.started:
            process.kill()
            process.wait()


def test_the_printed_addresses_work_and_sigterm_lets_a_stream_end(place: Place, tiny: Path) -> None:
    engine = place.serve(tiny)
    control = re.search(r"control +(\S+)", engine.banner)
    assert control is not None and Path(control[1]).is_socket()
    curl = re.search(r"try +(curl .*)", engine.banner)
    assert curl is not None
    streamed = subprocess.run(curl[1], shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert streamed.stdout.startswith("data: {") and streamed.stdout.rstrip().endswith("data: [DONE]")

    status = place.arc("status")
    assert status.returncode == 0, status.stderr
    assert tiny.name in status.stdout and "running    0" in status.stdout

    answers: list[Any] = []
    body = {"prompt": [5, 6, 7], "max_tokens": 300, "ignore_eos": True}

    def ask() -> threading.Thread:
        client = threading.Thread(target=lambda: answers.append(engine.post("/v1/completions", body)))
        client.start()
        return client

    client = ask()
    while "running    1" not in place.arc("status").stdout:
        client = client if client.is_alive() else ask()  # it was over before it was seen
    assert engine.end(signal.SIGTERM) == 0
    client.join(30)
    assert not client.is_alive()
    assert all(answer["usage"]["completion_tokens"] == 300 for answer in answers)
    assert not Path(control[1]).exists()


def test_ctrl_c_ends_an_idle_engine_with_0(place: Place, tiny: Path) -> None:
    engine = place.serve(tiny)
    assert engine.end(signal.SIGINT) == 0


def test_a_second_signal_cancels_what_the_drain_waits_for(place: Place, tiny: Path) -> None:
    engine = place.serve(tiny, "--set", "sched.paused=on")  # waits for ever by itself
    failures: list[int] = []

    def ask() -> None:
        try:
            engine.post("/v1/completions", {"prompt": [5], "max_tokens": 3})
        except urllib.error.HTTPError as error:
            failures.append(error.code)

    client = threading.Thread(target=ask)
    client.start()
    while "waiting    1   1 paused" not in place.arc("status").stdout:
        assert client.is_alive()
    engine.process.send_signal(signal.SIGTERM)
    while "draining" not in place.arc("status").stdout:
        assert engine.process.poll() is None
    assert engine.end(signal.SIGTERM) == 0
    client.join(10)
    assert failures and failures[0] >= 500


def test_a_killed_engine_is_replaced_on_the_same_socket_and_a_live_one_is_not(
    place: Place, tiny: Path
) -> None:
    first = place.serve(tiny)
    again = place.arc("serve", "--model", str(tiny), "--http.port", "0")
    assert again.returncode == 1
    assert f"already runs here as pid {first.process.pid}" in again.stderr
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second = place.serve(tiny)
    assert place.arc("status").returncode == 0
    post_mortem = place.arc("dump", "--post-mortem", str(place.folder / "state" / "arc" / "main.rec.prev"))
    assert post_mortem.returncode == 0, post_mortem.stderr
    assert second.end(signal.SIGTERM) == 0


def test_a_stopped_process_is_said_to_be_one(place: Place, tiny: Path) -> None:
    engine = place.serve(tiny)
    engine.process.send_signal(signal.SIGSTOP)
    status = place.arc("status")
    assert status.returncode == 3
    assert "may be stopped" in status.stderr and "dump --post-mortem" in status.stderr
    engine.process.send_signal(signal.SIGCONT)
    assert place.arc("status").returncode == 0
    assert engine.end(signal.SIGTERM) == 0


def test_a_stop_while_loading_ends_at_once_with_0(place: Place, tiny: Path) -> None:
    command = [*ARC, "serve", "--model", str(tiny), "--http.port", "0"]
    process = subprocess.Popen(command, cwd=place.folder / "work", env=place.environment, text=True)
    place.started.append(process)
    while not (place.folder / "run" / "arc" / "main.sock").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "/nowhere"), "/nowhere"),
        (("--set", "sched.max_runing=3"), "did you mean sched.max_running"),
        (("--set", "sched.max_running=many"), "1 to 4096"),
        (("--profile", "thruput"), "throughput"),
        (("--http.host", "0.0.0.0"), "ARC_API_KEY"),
        (("--model.device", "cuda:9"), "model.device"),
        (("--model.max_len", "100000"), "model.max_len"),
        (("--cache.memory_mib", "16777216"), "cache.memory_mib"),
    ],
)
def test_what_cannot_start_says_why_in_a_line_and_exits_1(
    place: Place, tiny: Path, arguments: tuple[str, ...], said: str
) -> None:
    given = arguments if "--model" in arguments else ("--model", str(tiny), *arguments)
    done = place.arc("serve", "--http.port", "0", *given)
    assert done.returncode == 1, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_said_before_the_model_is_read(place: Place) -> None:
    broken = place.folder / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = place.arc("serve", "--model", str(broken), "--http.port", str(port))
    assert done.returncode == 1
    assert f"port {port}" in done.stderr and "http.port" in done.stderr


def test_an_engine_beyond_this_machine_wants_its_key(place: Place, tiny: Path) -> None:
    place.environment["ARC_API_KEY"] = "secret"
    engine = place.serve(tiny)
    with pytest.raises(urllib.error.HTTPError) as refusal:
        engine.post("/v1/completions", {"prompt": [5], "max_tokens": 3})
    assert refusal.value.code == 401
    assert "secret" not in engine.banner


def test_a_flood_of_connections_past_the_file_limit_is_one_line_and_the_engine_recovers(
    place: Place, tiny: Path
) -> None:
    engine = place.serve(tiny)
    pid = engine.process.pid
    held = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (held + 8, hard))
    host, port = engine.base.removeprefix("http://").split(":")
    log = place.folder / "log"
    flood = []
    for _ in range(100):
        connection = socket.socket()
        connection.connect((host, int(port)))
        flood.append(connection)
    end = time.monotonic() + 60
    while "no more connections can be taken" not in log.read_text():
        assert time.monotonic() < end, log.read_text()[:2000]
        time.sleep(0.1)
    time.sleep(3)  # three more attempts, a second apart
    text = log.read_text()
    assert text.count("no more connections can be taken") == 1
    assert "Traceback" not in text and len(text.splitlines()) < 10, text[:2000]
    for connection in flood:
        connection.close()
    answer = engine.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2})
    assert answer["usage"]["completion_tokens"] == 2
    assert engine.end(signal.SIGTERM) == 0
