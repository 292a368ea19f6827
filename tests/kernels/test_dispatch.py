"""Which backend runs what: choices, refusals and errors, and what importing the kernels may not need."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import arc.kernels
import pytest
import torch
from arc.kernels import KernelError, KernelSet, Refusal, Target, resolve
from arc.kernels.dispatch import OPERATIONS
from arc.kernels.reference import BACKEND as TORCH

TARGET = Target(torch.device("cpu"), torch.float32)


class Fast:
    """A backend that takes some operations, and that may not run at all."""

    def __init__(self, name: str, takes: tuple[str, ...] = (), unavailable: str | None = None) -> None:
        self.name = name
        self.takes = takes
        self.unavailable = unavailable

    def available(self, target: Target) -> Refusal | None:
        return None if self.unavailable is None else Refusal(self.unavailable)

    def offer(self, operation: str, target: Target) -> Any:
        return (
            f"{self.name} {operation}"
            if operation in self.takes
            else Refusal(f"no {operation} in {target.dtype}")
        )


def row(kernels: KernelSet, operation: str):
    return next(line for line in kernels.table() if line.operation == operation)


def test_the_reference_takes_every_operation():
    kernels = resolve("torch", TARGET)
    assert [line.operation for line in kernels.table()] == list(OPERATIONS)
    assert {line.backend for line in kernels.table()} == {"torch"}
    assert all(line.refused == () for line in kernels.table())
    assert all(getattr(kernels, operation) is not None for operation in OPERATIONS)
    assert kernels.decoder is None


def test_a_backend_runs_whole_steps_only_where_it_runs_everything():
    everything = Fast("native", takes=(*OPERATIONS, "decoder"))
    decoder = SimpleNamespace(stamps="stamps")
    everything.offer = lambda operation, target: decoder if operation == "decoder" else operation
    kernels = resolve("auto", TARGET, (everything, TORCH))
    assert kernels.decoder is decoder and kernels.stamps == "stamps"
    layers = Fast("native")
    layers.offer = lambda operation, target: (
        Refusal("no sampling") if operation == "sample" else everything.offer(operation, target)
    )
    assert resolve("auto", TARGET, (layers, TORCH)).decoder is decoder  # sampling is not of the layers
    almost = Fast("native", takes=("decoder", *(name for name in OPERATIONS if name != "rope")))
    kernels = resolve("auto", TARGET, (almost, TORCH))
    assert kernels.decoder is None and kernels.stamps is None
    assert resolve("auto", TARGET, (Fast("native", takes=OPERATIONS), TORCH)).decoder is None


def test_every_field_of_a_kernel_set_is_an_operation():
    assert {f.name for f in fields(KernelSet)} == {*OPERATIONS, "resolutions", "stamps", "decoder"}


def test_auto_asks_in_order_and_keeps_every_refusal():
    backends = (Fast("gpu", unavailable="no driver"), Fast("native", takes=("linear",)), TORCH)
    kernels = resolve("auto", TARGET, backends)
    assert kernels.linear == "native linear"
    assert row(kernels, "linear").refused == (("gpu", "no driver"),)
    assert row(kernels, "rope").backend == "torch"
    assert row(kernels, "rope").refused == (("gpu", "no driver"), ("native", "no rope in torch.float32"))


def test_a_named_backend_falls_back_in_sight():
    backends = (Fast("gpu", takes=("linear",)), Fast("native", takes=("linear", "rope")), TORCH)
    kernels = resolve("native", TARGET, backends)
    assert kernels.linear == "native linear"
    assert row(kernels, "linear").refused == ()
    assert row(kernels, "moe_gate") == type(row(kernels, "moe_gate"))(
        "moe_gate", "torch", (("native", "no moe_gate in torch.float32"),)
    )
    assert {line.backend for line in resolve("torch", TARGET, backends).table()} == {"torch"}


def test_an_unknown_backend_is_an_error_with_the_nearest_name():
    with pytest.raises(
        KernelError,
        match=r"unknown backend 'troch' \(known: auto, triton, native, torch\); did you mean torch\?",
    ):
        resolve("troch", TARGET)
    with pytest.raises(KernelError, match=r"unknown backend '' \(known: auto, triton, native, torch\)$"):
        resolve("", TARGET)


def test_a_backend_that_cannot_run_is_an_error_and_no_fallback():
    with pytest.raises(KernelError, match="gpu cannot run here: no driver"):
        resolve("gpu", TARGET, (Fast("gpu", unavailable="no driver"), TORCH))


def test_an_operation_that_nobody_runs_is_an_error_with_every_reason():
    with pytest.raises(KernelError, match=r"no backend runs add_rms_norm on cpu .* \(a: no .*; b: broken\)"):
        resolve("auto", TARGET, (Fast("a", takes=("rms_norm",)), Fast("b", unavailable="broken")))


def test_importing_needs_no_triton_no_driver_and_nothing_of_the_project():
    program = """
import sys
sys.modules["triton"] = None  # any import of it fails
import arc.kernels, torch
arc.kernels.resolve("auto", arc.kernels.Target(torch.device("cpu"), torch.float32))
print(torch.cuda.is_initialized(), [m for m in sys.modules if m.startswith(("arc.engine", "arc.console"))])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False []"


def test_no_import_leaves_the_package():
    root = Path(arc.kernels.__file__).parent
    files = list(root.rglob("*.py"))
    assert len(files) > 5
    for file in files:
        depth = len(file.relative_to(root).parts)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= depth, f"{file}: line {node.lineno} imports from above the package"
                assert (node.module or "").split(".")[0] not in ("arc", "engine", "console"), file
            elif isinstance(node, ast.Import):
                assert not any(a.name.split(".")[0] in ("arc", "engine", "console") for a in node.names), file
