"""Every experiment of `arc bench`, from command line to file, on real engines: what is counted, and never how fast."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arc.console.bench import engines
from arc.console.bench.engines import Started
from arc.console.bench.result import Result, read
from arc.console.client import Client
from arc.console.held_flags import HeldFlags, flags_of
from arc.engine.control.protocol import NA

from tests.peers.make_checkpoint import TINY, write_checkpoint

from ..test_control_commands import run, until
from ..top.terminal import ARC, Terminal


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        base = tmp_path_factory.mktemp("x", numbered=True)
        patch.setenv("XDG_RUNTIME_DIR", str(base))
        patch.setenv("XDG_STATE_HOME", str(base))
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, TINY, seed=0)
    return folder


@pytest.fixture(scope="module")
def carried(folders: None) -> Iterator[Started]:
    """The carried model: it has a prediction layer."""
    with engines.started(None, ("sched.max_running=9", "cpu.threads=1")) as running:
        yield running


def assert_provenance(found: Result, kind: str) -> None:
    server = found.server
    assert found.kind == kind and server is not None and found.client.revision
    assert server.version and server.model and server.device == "cpu" and server.profile == "default"
    assert server.dirty == str(server.revision).endswith("-dirty")
    assert server.differs is not None and server.differs["cpu.threads"] == 1
    assert {cell.revision for cell in found.cells} == {server.revision}


def values(engine: Started) -> dict[str, Any]:
    with Client(engine.socket) as client:
        return {name: (flag.value, flag.origin.layer, flag.until) for name, flag in flags_of(client).items()}


def engines_of(parent: int) -> list[int]:
    """The process ids of the engines that a process has started."""
    found: list[int] = []
    for task in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (task / "stat").read_text(), (task / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if int(stat.rpartition(")")[2].split()[1]) == parent and b"arc.engine.serve" in command:
            found.append(int(task.name))
    return found


def test_layouts_counts_the_copies_of_each(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARC_CPU_THREADS", "1")
    out = tmp_path / "a.json"
    text = run(
        "bench", "layouts", "--model", str(tiny), "--rows", "2", "--requests", "4", "--prompt", "8..40",
        "--output", "12..16", "--vocab", "300", "--repeats", "1", "--out", str(out), "--plot",
    ).output  # fmt: skip
    found = read(out)
    assert_provenance(found, "layouts")
    counted = {cell.name: cell.counted for cell in found.cells}
    assert list(counted) == ["paged", "dense, mask", "dense, strip"]
    assert counted["paged"] == {"copies a token": 0, "copies a step": 0}
    strip, mask = counted["dense, strip"]["copies a token"], counted["dense, mask"]["copies a token"]
    assert not isinstance(strip, NA) and not isinstance(mask, NA)
    layers = TINY["num_hidden_layers"]
    # In and out for each layer of a row at each of its steps, the one of its prompt too; out is all that a mask saves.
    assert layers < strip <= 2 * layers * 1.2 and 0 < mask < strip
    assert all(cell.passes[0].finished == 4 and not cell.passes[0].errors for cell in found.cells)
    assert "copies a token" in text and "dense, strip" in text


def test_spec_counts_what_was_accepted_at_each_depth(carried: Started, tmp_path: Path) -> None:
    before, out = values(carried), tmp_path / "a.json"
    text = run(
        "bench", "spec", "-e", carried.socket.stem, "--deepest", "2", "--rows", "2", "--requests", "3",
        "--output", "16", "--repeats", "1", "--out", str(out), "--plot",
    ).output  # fmt: skip
    assert values(carried) == before
    found = read(out)
    assert_provenance(found, "spec")
    assert [cell.flags for cell in found.cells] == [{"spec.depth": depth} for depth in range(3)]
    assert all(cell.passes[0].output_tokens == 3 * 16 for cell in found.cells)
    none, one, two = (cell.counted for cell in found.cells)
    assert list(none) == ["accepted a row"] and isinstance(none["accepted a row"], NA)
    assert list(one) == ["accepted at 1", "accepted a row"]
    assert list(two) == ["accepted at 1", "accepted at 2", "accepted a row"]
    assert all(isinstance(value, float) and 0 < value <= 2 for value in two.values())
    lines = [line for line in text.splitlines() if line.startswith("depth ")]
    assert [line.count(" %") for line in lines] == [0, 1, 2]
    assert "accepted NA (no drafts were verified)" in lines[0]


def test_consoles_leaves_its_file(carried: Started, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    text = run(
        "bench", "consoles", "-e", carried.socket.stem, "--rows", "2", "--output", "40", "--repeats", "1",
        "--out", str(out), "--plot",
    ).output  # fmt: skip
    found = read(out)
    assert_provenance(found, "consoles")
    assert [cell.labels for cell in found.cells] == [{"consoles": arm} for arm in (0, 1, 8)]
    assert all(cell.passes[0].output_tokens == 2 * 40 for cell in found.cells)
    assert "GET /v1/snapshot under 2 rows: p50" in found.notes[0] and found.notes[0] in text


def test_the_allocator_s_legs_do_the_same_work(tiny: Path) -> None:
    arguments = ("--model", str(tiny), "--tokens", "2600", "--rows", "26", "--repeats", "1", "--json")
    done = subprocess.run(
        [*ARC, "bench", "allocator", *arguments, "--prompt", "4", "60", "--cap-mib", "4"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    legs = found["legs"]
    assert [leg["name"] for leg in legs] == ["off", "unbounded", "capped"]
    assert {(leg["tokens"], leg["prompt_tokens"]) for leg in legs} == {(2600, legs[0]["prompt_tokens"])}
    assert [len(leg["resident"]) for leg in legs] == [11] * 3  # the beginning and ten tenths
    assert [leg["build"]["flags"]["alloc.enabled"] for leg in legs[:1]] == [False]
    assert [leg["build"]["flags"].get("alloc.cap_mib") for leg in legs[1:]] == [0, 4]
    for leg in legs:
        build = leg["build"]
        assert build["dirty"] == build["revision"].endswith("-dirty") and build["version"]
        assert (build["device"], build["profile"]) == ("cpu", "default") and build["model"]
    assert [leg["held"] is None for leg in legs] == [True, False, False]
    assert legs[2]["held"] <= 4 << 20
    assert len(found["sizes"]) == 6


def test_a_run_draws_its_curves(carried: Started, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `bench`; without it test_results.py has the refusal")
    picture = tmp_path / "a.png"
    text = run(
        "bench", "run", "-e", carried.socket.stem, "--requests", "4", "--concurrency", "2", "--prompt", "8",
        "--output", "8", "--repeats", "1", "--plot", str(picture),
    ).output  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG\r\n") and "time between tokens, ms" in text
    assert str(picture) in text


def test_ctrl_c_in_an_experiment_that_starts_engines_leaves_none(tiny: Path) -> None:
    terminal = Terminal(
        "bench", "layouts", "--model", str(tiny), "--rows", "1", "--requests", "400", "--prompt", "8",
        "--output", "200", "--vocab", "300", "--repeats", "1",
    )  # fmt: skip
    terminal.read_until("1/1203")  # the bar, with its first request
    (engine,) = engines_of(terminal.pid)
    terminal.write("\x03")
    assert terminal.wait() == 1
    assert not Path(f"/proc/{engine}").exists()
    assert "Traceback" not in terminal.text and "Aborted!" in terminal.text


def test_ctrl_c_in_an_experiment_on_a_running_engine_puts_its_flags_back(carried: Started) -> None:
    before = values(carried)
    terminal = Terminal(
        "bench", "spec", "-e", carried.socket.stem, "--deepest", "2", "--rows", "2", "--requests", "500",
        "--output", "200", "--repeats", "1",
    )  # fmt: skip
    until(lambda: values(carried)["spec.depth"][0] == 2)
    terminal.read_until("/1502")
    terminal.write("\x03")
    assert terminal.wait() == 1
    assert values(carried) == before
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize("arrived", [True, False])
def test_ctrl_c_between_a_change_and_its_answer_gives_the_flag_back(
    carried: Started, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    before = values(carried)
    held = HeldFlags(carried.socket, "interrupted", 60)
    patch = Client.patch

    def interrupted(*arguments: Any) -> Any:
        if arrived:
            patch(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Client, "patch", interrupted)
        held.change({"spec.depth": 2})
    assert (values(carried)["spec.depth"][0] == 2) is arrived
    held.give_back()
    assert values(carried) == before


def test_ctrl_c_in_the_allocator_s_bench_leaves_no_leg(tiny: Path) -> None:
    terminal = Terminal("bench", "allocator", "--model", str(tiny), "--tokens", "500000")
    terminal.read_until("legs")

    def legs() -> list[int]:
        children = Path(f"/proc/{terminal.pid}/task/{terminal.pid}/children").read_text().split()
        return [int(each) for each in children]

    until(lambda: bool(legs()))
    (leg,) = legs()
    terminal.write("\x03")
    assert terminal.wait() == 128 + signal.SIGINT
    until(lambda: not Path(f"/proc/{leg}").exists())  # killed, and soon nobody's
    assert "Traceback" not in terminal.text
