"""The kernels' numbers: cases/ in a process of its own, under the interpreter and, where there is one, on a card.

A process of their own, because whether kernels are interpreted is settled when Triton is imported, and an interpreted
Triton compiles nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

CASES = Path(__file__).parent / "cases"
ROOT = Path(__file__).parents[3]
RUNNERS = ["interpreter", *(["card"] if torch.cuda.is_available() else [])]
# Two groups, so that two workers share them.
GROUPS = {
    "attention": [
        "case_pointwise.py",
        "case_latents.py",
        "case_decode.py",
        "case_prefill.py",
        "case_model.py",
    ],
    "experts": ["case_moe.py", "case_sample.py"],
}


def test_every_case_is_in_a_group():
    assert sorted(chain(*GROUPS.values())) == sorted(path.name for path in CASES.glob("case_*.py"))


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("group", GROUPS)
def test_kernels_agree_with_the_reference(runner, group, tmp_path):
    report = tmp_path / "report.xml"
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    if runner == "interpreter":
        environment["TRITON_INTERPRET"] = "1"
    files = [str(CASES / name) for name in GROUPS[group]]
    options = ["-n", "0", "-q", "--timeout=280", "-p", "no:cacheprovider", f"--junitxml={report}"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *files, *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    assert int(suite.get("tests", 0)) > 20
    assert suite.get("skipped") == "0"
