"""Views 3 and 4 on a real terminal over a real engine that works: what its profiler and its allocator say is there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from arc.console.bench import engines
from arc.console.bench.engines import Started
from arc.console.bench.load import Bounds, Load
from arc.console.bench.work import Lengths, Plan

from tests.peers.make_checkpoint import TINY, write_checkpoint

from ..test_control_commands import run
from .terminal import Terminal


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """On the torch backend, whose operations take buffers, and under load until the test ends."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_checkpoint(tmp_path / "tiny", TINY, seed=0)
    flags = ("kernels.backend=torch", "cpu.threads=1", "profile.enabled=on", "alloc.cap_mib=4")
    with engines.started(str(tmp_path / "tiny"), flags) as started, loaded(started):
        yield started


@contextlib.contextmanager
def loaded(started: Started) -> Iterator[None]:
    over = threading.Event()

    def send() -> None:
        jobs = Plan("mixed", Lengths(8, 300), Lengths(20, 60), 4, 300, 512).jobs(1)
        endless = itertools.takewhile(lambda _: not over.is_set(), jobs)
        asyncio.run(Load(started.site().target, Bounds()).closed(endless, 10**9, 4))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()


@pytest.fixture
def top(engine: Started) -> Iterator[Terminal]:
    terminal = Terminal("top", "-e", engine.socket.stem)
    terminal.read_until("● serving")
    yield terminal
    terminal.write("q")
    status = terminal.wait()
    assert "Traceback" not in terminal.text
    assert status == 0


def drawn(top: Terminal, *words: str, without: str = "\0") -> str:
    """The screen, once all of these stand on it at a time, and that does not."""

    def holds(lines: list[str]) -> bool:
        text = "\n".join(lines)
        return all(word in text for word in words) and without not in text

    return "\n".join(top.shows(holds, 120.0))


NO_DEVICE = "device NA: cpu has no stream apart from the host"


def test_the_tree_of_spans_with_its_proof_and_its_detail_as_it_changes(
    engine: Started, top: Terminal
) -> None:
    name = engine.socket.stem
    top.write("3")
    drawn(
        top, "recording · layer", "proof PASS", "self-test NA", "decode step", "mla_attn", "moe", NO_DEVICE,
        without="kv_down",
    )  # fmt: skip
    run("set", "-e", name, "profile.detail=op")
    drawn(top, "recording · op", "proof PASS", "decode step", "mla_attn", "kv_down", NO_DEVICE)
    run("set", "-e", name, "profile.detail=step")
    drawn(top, "recording · step", "decode step", "model_forward", "publish", NO_DEVICE, without="mla_attn")


def test_the_allocator_with_its_cap_and_why_it_was_not_asked(engine: Started, top: Terminal) -> None:
    # oneDNN's products of prepacked weights, which are there for bf16 where the processor has it.
    own = ["the operation makes its own result"] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else []
    top.write("4")
    text = drawn(
        top, "of 4 MiB", "cap from alloc.cap_mib = 4", "cap not reached", "below 1 MiB", "misses in captures 0", *own
    )  # fmt: skip
    assert "hit rate" not in text, "nothing was taken, so there is none"
    run("set", "-e", engine.socket.stem, "alloc.cap_mib=3")
    drawn(top, "of 3 MiB", "cap from alloc.cap_mib = 3")
