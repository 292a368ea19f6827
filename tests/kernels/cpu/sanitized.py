"""The C++ kernels built with the address and undefined-behaviour sanitizers, under the tests of this folder.

    python -m tests.kernels.cpu.sanitized [pytest options]

A process of its own: the sanitizer's library has to be loaded before Python's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SOURCES = ROOT / "kernels" / "cpu" / "native"
FLAGS = ["-std=gnu++17", "-O1", "-g1", "-fPIC", "-Wno-psabi", "-Wno-maybe-uninitialized"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

PROGRAM = """
import sys
from pathlib import Path
from arc.kernels.cpu import binding
binding.path_of_library = lambda: Path(sys.argv[1])
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


def build(folder: Path, compiler: str) -> Path:
    """The library of all sources, sanitized."""

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        subprocess.run([compiler, *FLAGS, *SANITIZERS, "-c", str(source), "-o", str(target)], check=True)
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, sorted(SOURCES.glob("*.cpp"))))
    library = folder / "_native.so"
    subprocess.run([compiler, *SANITIZERS, "-shared", *map(str, objects), "-o", str(library)], check=True)
    return library


def run(library: Path, compiler: str, options: list[str]) -> subprocess.CompletedProcess[str]:
    names = ["libasan.so", "libubsan.so"]
    paths = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout
        for name in names
    ]
    environ = (
        os.environ
        | {
            "LD_PRELOAD": " ".join(path.strip() for path in paths),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python's own are many, and the library allocates for its pool alone
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
    )
    command = [sys.executable, "-c", PROGRAM, str(library), "-n", "0", "-x", *options]
    return subprocess.run(command, env=environ, cwd=ROOT, text=True, capture_output=True, check=False)


def main() -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        sys.exit("the sanitized build needs g++")
    options = sys.argv[1:] or [
        str(HERE / name) for name in ("test_operations.py", "test_step.py", "test_sample.py")
    ]
    with tempfile.TemporaryDirectory() as folder:
        done = run(build(Path(folder), compiler), compiler, options)
    print(done.stdout + done.stderr)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
