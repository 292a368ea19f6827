"""What the Triton backend refuses, and that asking it needs neither Triton nor a card."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from arc.kernels import KernelError, Refusal, Target, resolve
from arc.kernels.dispatch import OPERATIONS
from arc.kernels.triton import BACKEND

CPU = Target(torch.device("cpu"), torch.bfloat16)


def reason(refusal: Refusal | None) -> str:
    assert refusal is not None
    return refusal.reason


def test_a_device_that_is_no_card_is_refused_by_name(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "cpu" in reason(BACKEND.available(CPU))
    assert "mps" in reason(BACKEND.available(Target(torch.device("mps"), torch.float16)))
    table = {line.operation: line for line in resolve("auto", CPU).table()}
    for operation in OPERATIONS:
        assert dict(table[operation].refused)["triton"] == "the device is cpu, and Triton compiles for cards"
    with pytest.raises(KernelError, match="triton cannot run here: the device is cpu"):
        resolve("triton", CPU)


def test_an_interpreter_runs_where_it_is_asked_for_by_name_and_never_under_auto(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for line in resolve("auto", CPU).table():
        assert line.backend != "triton"
        assert dict(line.refused)["triton"] == "the device is cpu, and Triton compiles for cards"
    assert BACKEND.available(replace(CPU, interpret=True)) is None


def test_an_old_card_and_a_dtype_without_kernels_are_refused(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    card = torch.device("cuda:0")
    assert "sm_75" in reason(BACKEND.available(Target(card, torch.float16)))
    assert "float64" in reason(BACKEND.available(Target(card, torch.float64)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert BACKEND.available(Target(card, torch.bfloat16)) is None


def test_without_triton_it_is_refused_and_everything_else_runs():
    program = """
import sys
from importlib.machinery import PathFinder
class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == "triton" else super().find_spec(name, path, target)
sys.meta_path = [Hidden if finder is PathFinder else finder for finder in sys.meta_path]
import torch
from arc.kernels import Target, resolve
from arc.kernels.triton import BACKEND
print(BACKEND.available(Target(torch.device("cuda:0"), torch.float16)).reason)
print({line.backend for line in resolve("torch", Target(torch.device("cpu"), torch.float32)).table()})
print("triton" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["the package triton is not installed", "{'torch'}", "False"]


def test_asking_on_a_machine_with_triton_does_not_import_it():
    program = """
import sys, torch
from arc.kernels import Target, resolve
resolve("auto", Target(torch.device("cpu"), torch.float32))
print("triton" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
