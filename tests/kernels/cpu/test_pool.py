"""The C++ kernels' threads under the thread sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "kernels" / "cpu" / "native"


def test_phases_wait_for_each_other_on_any_number_of_threads(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    assert compiler is not None, "the kernels' tests need g++"
    program = tmp_path / "stress"
    sources = [str(HERE / "pool_stress.cpp"), str(NATIVE / "pool.cpp")]
    flags = ["-std=gnu++17", "-O1", "-g1", "-fsanitize=thread", "-pthread", f"-I{NATIVE}"]
    subprocess.run([compiler, *flags, *sources, "-o", str(program)], check=True)
    environ = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr
