"""`arc kernels`: this machine's table, a running engine's, and the commands that become another process."""

from __future__ import annotations

import json

import torch
from arc.kernels import bench
from arc.kernels.dispatch import OPERATIONS

from ..engine.control.conftest import Running, folders, running, start
from .test_control_commands import process, run

__all__ = ["folders", "running", "start"]  # fixtures


def test_the_table_of_this_machine_names_each_operation_and_each_refusal():
    done = process("kernels")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    assert set(OPERATIONS) <= set(lines)
    if not torch.cuda.is_available():
        assert all("triton: the device is cpu" in lines[operation] for operation in OPERATIONS)


def test_a_running_engine_says_who_runs_what(running: Running) -> None:
    lines = run("kernels", "--running").output.splitlines()
    assert lines[0] == "bfloat16 on cpu"
    assert lines[2].split(maxsplit=2) == ["rope", "torch", "triton: the device is cpu"]
    assert lines[-2:] == [
        "graphs of 1, 2 rows; of 1, 2 rows of up to 3 queries: 7 steps replayed; run as ever: 3 prompt rows",
        "no graph of 4 rows: out of memory",
    ]
    answer = json.loads(run("kernels", "--json").output)
    assert answer["operations"] == [
        {"operation": "rope", "backend": "torch", "refused": {"triton": "the device is cpu"}}
    ]


def test_what_cannot_be_measured_is_na_with_its_reason():
    done = process("kernels", "bench")
    assert done.returncode == 0, done.stderr
    if not torch.cuda.is_available():
        lines = done.stdout.splitlines()
        assert lines[-1] == "NA: torch sees no CUDA or ROCm card on this machine"
        assert len(lines) == len(bench.CASES) + 2
        assert all(line.split()[-5:] == ["NA"] * 5 for line in lines[1:-1])


def test_aot_is_handed_its_arguments():
    done = process("kernels", "aot", "--card", "sm_1")
    assert done.returncode == 2
    assert "sm_80" in done.stderr
