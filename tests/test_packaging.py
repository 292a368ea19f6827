"""What is shipped: the wheel is complete, and alone it gives a console without torch."""

import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path, PurePath

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("console", "engine", "kernels", "profiles")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COMMIT = "0123abc"


def without_caches(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__" or name.endswith(".so")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Not optimised: whether the C++ kernels are in the wheel is the question here, and that takes a fifth of the time.
    compiler = tmp_path_factory.mktemp("compiler") / "c++"
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')
    compiler.chmod(0o755)
    return built_wheel(tmp_path_factory, str(compiler))


def built_wheel(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> Path:
    """Built from a copy without git, so that nothing gets in only because git tracks it."""
    source = tmp_path_factory.mktemp("source")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=without_caches)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    environ = {
        **os.environ,
        "SETUPTOOLS_SCM_PRETEND_VERSION": f"9.8.7.dev6+g{COMMIT}",
        "CC": compiler,  # setuptools takes one or the other for C++, by its version
        "CXX": compiler,
    }
    subprocess.run([*command, "--wheel-dir", str(out), str(source)], check=True, env=environ)
    (built,) = out.glob("arc_console-*.whl")
    return built


def libraries_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [PurePath(name).name.partition(".")[0] for name in archive.namelist() if name.endswith(".so")]


def test_the_wheel_brings_the_kernels_where_a_compiler_is_and_is_whole_without(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert libraries_in(wheel) == ["_native"]
    without = built_wheel(tmp_path_factory, "false")
    assert libraries_in(without) == []
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(without) as other:
        kept = [{name for name in each.namelist() if name.endswith(".py")} for each in (one, other)]
    assert kept[0] == kept[1]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(requirements: list[str]) -> set[str]:
    """The distributions that an installation without extras brings, all the way down, as installed here."""
    found: set[tuple[str, frozenset[str]]] = set()
    todo = [Requirement(text) for text in requirements]
    while todo:
        requirement = todo.pop()
        key = normal(requirement.name), frozenset(requirement.extras)
        if key in found:
            continue
        found.add(key)
        for text in metadata.requires(requirement.name) or ():
            inner = Requirement(text)
            if inner.marker is None or any(
                inner.marker.evaluate({"extra": extra}) for extra in ("", *key[1])
            ):
                todo.append(inner)
    return {name for name, _ in found}


def requirements_of(wheel: Path) -> list[str]:
    """What the wheel requires without extras, from its own metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        message = email.message_from_bytes(archive.read(name))
    requirements = [Requirement(text) for text in message.get_all("Requires-Dist") or []]
    return [str(each) for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]


def test_every_file_is_in_the_wheel(wheel: Path) -> None:
    """Code, profiles and the carried model alike: a new kind of file needs its line in package-data."""
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith("arc/")}
    files = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()}
    built = {path for path in files if path.parent.name == "__pycache__" or path.suffix == ".so"}
    libraries = {name for name in shipped if name.endswith(".so")}
    assert shipped - libraries == {f"arc/{path.relative_to(ROOT)}" for path in files - built}


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for folder in FOLDERS[:3] for path in (ROOT / folder).rglob("*.py")}
    packages = {f"arc.{'.'.join(folder.relative_to(ROOT).parts)}" for folder in folders}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == packages | {"arc.profiles"}
    assert all((folder / "__init__.py").is_file() for folder in folders)


def test_a_console_only_installation_brings_no_torch(wheel: Path) -> None:
    brought = needs(requirements_of(wheel))
    assert {"click", "tomli", "msgspec", "textual", "prometheus-client"} <= brought
    heavy = {"torch", "triton", "numpy", "transformers", "aiohttp", "safetensors", "tokenizers"}
    assert not heavy & brought


@pytest.fixture(scope="module")
def console_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and what it requires, and nothing else: its `bin` folder.

    The requirements are linked in from this environment, file by file as their records list them, so that the test
    needs no network; which they are comes from the wheel.
    """
    place = tmp_path_factory.mktemp("console-only")
    venv.create(place, with_pip=False, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    for name in needs(requirements_of(wheel)):
        files = metadata.files(name)
        assert files is not None, name
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            target = Path(str(metadata.distribution(name).locate_file(top)))
            if not (site / top).exists():
                (site / top).symlink_to(target)
    python = place / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*command, str(wheel)], check=True)
    return place / "bin"


def run(console_only: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ARC_", "PYTHON"))}
    command = [str(console_only / arguments[0]), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environ, check=False)


def test_the_installed_command_works_without_torch(console_only: Path, tmp_path: Path) -> None:
    assert run(console_only, tmp_path, "python", "-c", "import torch").returncode != 0
    version = run(console_only, tmp_path, "arc", "--version")
    assert (version.returncode, version.stdout) == (0, f"arc 9.8.7.dev6+g{COMMIT} ({COMMIT})\n"), (
        version.stderr
    )
    check = run(console_only, tmp_path, "arc", "check", "--profile", "latency")
    assert (check.returncode, check.stdout) == (0, "profile latency (by --profile)\nok\n"), check.stderr
    profiles = run(console_only, tmp_path, "arc", "profiles")
    shipped = {path.stem for path in (ROOT / "profiles").glob("*.toml")}
    assert {line.split()[0] for line in profiles.stdout.splitlines()} == shipped
    serve = run(console_only, tmp_path, "arc", "serve")
    assert serve.returncode == 1 and "arc-console[engine]" in serve.stderr


def test_every_requirement_is_pinned() -> None:
    """constraints.txt pins all that pyproject.toml names, at versions that it allows."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(
        line.partition("#")[0].strip().split("==") for line in lines if line and not line.startswith("#")
    )
    project = PYPROJECT["project"]
    texts = [*PYPROJECT["build-system"]["requires"], *project["dependencies"]]
    texts += [text for extra in project["optional-dependencies"].values() for text in extra]
    named = [Requirement(text) for text in texts]
    for requirement in named:
        if requirement.name != project["name"]:
            assert requirement.specifier.contains(pins[normal(requirement.name)]), requirement


def test_what_is_installed_here_is_what_is_pinned() -> None:
    """Where the tests run under `make test`, also what the requirements require is pinned."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    project = PYPROJECT["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["engine"]]
    texts += [
        text for text in project["optional-dependencies"]["dev"] if not text.startswith(project["name"])
    ]
    wanted = [text for text in texts if (marker := Requirement(text).marker) is None or marker.evaluate()]
    unpinned = {name for name in needs(wanted) - pinned if not name.startswith(("nvidia-", "cuda-"))}
    assert unpinned == set()
