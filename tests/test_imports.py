"""Who may import whom (docs/design.md, "Imports"), read from the source: also what a function imports when it runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("console", "engine", "kernels")

# What the console may use of the engine: message types and settings, which import no torch and start fast.
CONSOLE_MAY = {
    "engine.control.protocol",
    "engine.control.allocator_messages",
    "engine.control.paths",
    "engine.control.span_messages",
    "engine.control.recording",  # the reading side of the flight recorder
    "engine.flags",
    "engine.config",
    "engine.options",
    "engine.preflight",
    "engine.telemetry.records",  # the step record, which messages and recordings carry
    "engine.telemetry.sweeps",  # what is asked of a process that measures, and its answer
    "engine.version",
}

# Part of the engine: the parts it may import, or single modules of them. A part is a folder of engine/ or a file
# directly in it. `core` carries out what the control side declares, so control knows of core only how it is reached.
ENGINE_MAY: dict[str, set[str]] = {
    "sequence": set(),
    "flags": set(),
    "version": set(),
    "folder": set(),
    "accepting": set(),
    "json_errors": set(),
    "environment": set(),
    "config": {"flags"},
    "flags_doc": {"flags"},
    "options": {"flags", "config"},
    "preflight": {"config", "folder", "control.paths"},
    "scheduler": {"sequence"},
    "telemetry": {"sequence"},
    "memory": {"telemetry", "control.allocator_messages", "control.protocol"},
    "model": {"folder"},
    "sampling": {"sequence"},
    "profiler": {"control.protocol", "control.span_messages"},  # messages alone
    "text": {"sequence", "folder"},
    "control": {
        "core.interface",
        "core.inbox",
        "flags",
        "config",
        "telemetry",
        "sequence",
        "version",
        "accepting",
        "json_errors",
    },
    "core": {
        "folder",
        "control",
        "scheduler",
        "memory",
        "model",
        "sampling",
        "profiler",
        "text",
        "telemetry",
        "flags",
        "config",
        "sequence",
        "version",
    },
    "api": {
        "core.interface",
        "model.generation",
        "text",
        "sequence",
        "telemetry",
        "flags",
        "version",
        "json_errors",
    },
    "carried": {"model", "text"},
}
WIRES = {"serve", "service"}  # put all parts together: they may import each
# Modules that are processes of their own and start an engine to measure it: they wire too, and nothing imports them but
# each other.
MEASURES = {"engine.memory.bench", "engine.memory.legs", "engine.core.growth"}
USES_KERNELS = {"memory", "model", "sampling", "core", "profiler", *WIRES}

# Third-party packages that a part may not import, at any time: the console and the scheduler run without them.
WITHOUT: dict[str, set[str]] = {
    "console": {"torch", "numpy", "triton", "transformers"},
    "engine/scheduler": {"torch", "numpy", "triton"},
    "engine/telemetry": {"torch", "triton"},
    "engine/control/protocol.py": {"torch", "numpy", "aiohttp"},
    "engine/control/allocator_messages.py": {"torch", "numpy", "aiohttp"},
    "engine/flags.py": {"torch", "numpy", "click", "msgspec"},
    "engine/config.py": {"torch", "numpy", "click", "msgspec"},
    "engine/options.py": {"torch", "numpy"},
    "engine/preflight.py": {"torch", "numpy"},
    "engine/folder.py": {"torch", "numpy"},
    "engine/sequence.py": {"torch", "numpy"},
    "engine/control/span_messages.py": {"torch", "numpy", "aiohttp"},
}


@dataclass(frozen=True)
class Import:
    """One import statement of one file. `target` is a dotted module of the product, or of another package."""

    file: str  # "engine/core/engine.py"
    line: int
    importer: str  # "engine.core.engine"
    target: str  # "engine.core.interface", "torch"
    own: bool  # of the product
    when_run: bool  # inside a function: happens when it runs
    for_types: bool  # under `if TYPE_CHECKING`: never happens

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


def sources(*parts: str) -> list[Path]:
    return sorted(path for part in parts for path in (ROOT / part).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in sources(*PRODUCT)}


def imports_of(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    importer = module_of(path)
    package = importer.split(".") if path.name == "__init__.py" else importer.split(".")[:-1]

    def visit(node: ast.AST, when_run: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target, own in targets(node, package):
                file = str(path.relative_to(ROOT))
                yield Import(file, node.lineno, importer, target, own, when_run, for_types)
            return
        when_run = when_run or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from visit(child, when_run, True)
            for child in node.orelse:
                yield from visit(child, when_run, for_types)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, when_run, for_types)

    yield from visit(tree, False, False)


def targets(node: ast.Import | ast.ImportFrom, package: list[str]) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield own_or_other(alias.name)
        return
    if node.level == 0:
        assert node.module is not None
        base, own = own_or_other(node.module)
    else:
        own = True
        base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
    for alias in node.names:
        full = f"{base}.{alias.name}" if base else alias.name
        yield (full if own and full in MODULES else base or full), own


def own_or_other(name: str) -> tuple[str, bool]:
    if name == "arc" or name.startswith("arc."):
        return name.removeprefix("arc").lstrip("."), True
    return name, False


ALL = [each for path in sources(*PRODUCT) for each in imports_of(path)]
REAL = [each for each in ALL if not each.for_types]


def broken(rule: Iterable[Import]) -> None:
    lines = [str(each) for each in rule]
    assert not lines, "\n".join(lines)


def test_the_sources_are_read() -> None:
    """The rules below must not hold because nothing was found."""
    assert {"console.main", "engine.flags", "engine.config", "engine.sequence"} <= MODULES
    edges = {(each.importer, each.target) for each in ALL}
    assert ("engine.config", "engine.flags") in edges
    assert ("console.main", "engine.version") in edges  # in a function
    assert ("console.commands.serve", "engine.options") in edges
    assert ("console.main", "click") in edges


def test_the_product_imports_itself_relatively() -> None:
    names = {"arc", *PRODUCT}
    found = []
    for path in sources(*PRODUCT):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            absolute = [node.module] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            absolute += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [f"{path}:{name}" for name in absolute if name and name.split(".")[0] in names]
    assert found == []


def test_every_own_import_names_a_module_that_exists() -> None:
    broken(each for each in ALL if each.own and each.target not in MODULES)


def test_the_console_uses_of_the_engine_only_what_is_light() -> None:
    broken(
        each
        for each in ALL
        if each.own and each.importer.startswith("console") and not each.target.startswith("console")
        if each.target not in CONSOLE_MAY
    )


def test_what_the_console_uses_imports_nothing_heavy_in_turn() -> None:
    """Its closure over module-level imports stays within the engine's light files."""
    at_import = [each for each in REAL if each.own and not each.when_run]
    reached = {name for name in CONSOLE_MAY if name in MODULES}
    while True:
        more = {each.target for each in at_import if each.importer in reached} - reached
        if not more:
            break
        reached |= more
    others = [each for each in REAL if each.importer in reached and not each.own and not each.when_run]
    broken(each for each in others if each.target.split(".")[0] in {"torch", "numpy", "aiohttp", "asyncio"})


def test_kernels_use_nothing_of_the_project() -> None:
    broken(
        each
        for each in ALL
        if each.own and each.importer.startswith("kernels") and not each.target.startswith("kernels")
    )


def test_the_engine_never_uses_the_console() -> None:
    broken(
        each
        for each in ALL
        if each.own and each.importer.startswith("engine") and each.target.startswith("console")
    )


def part_of(module: str) -> str:
    """engine.core.interface -> core"""
    return module.split(".")[1] if "." in module else ""


def test_imports_within_the_engine_run_one_way() -> None:
    def allowed(each: Import) -> bool:
        part, target = part_of(each.importer), part_of(each.target)
        if each.target.startswith("kernels"):
            return part in USES_KERNELS
        if part == target or part in WIRES or each.importer in MEASURES:
            return True
        may = ENGINE_MAY.get(part, set())
        return target in may or each.target.removeprefix("engine.") in may

    broken(each for each in ALL if each.own and each.importer.startswith("engine.") and not allowed(each))


def test_nothing_imports_what_only_measures() -> None:
    broken(each for each in ALL if each.target in MEASURES and each.importer not in MEASURES)


def test_every_part_of_the_engine_has_a_rule() -> None:
    parts = {part_of(module) for module in MODULES if module.startswith("engine.")}
    assert parts - WIRES == set(ENGINE_MAY), "each part of the engine has one line in ENGINE_MAY"


@pytest.mark.parametrize("place", WITHOUT)
def test_parts_that_run_without_heavy_packages(place: str) -> None:
    broken(
        each
        for each in ALL
        if each.file == place or each.file.startswith(f"{place}/")
        if each.target.split(".")[0] in WITHOUT[place]
    )


def strongly_connected(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other (Tarjan 1972, in the path-based form of Gabow 2000)."""
    order: dict[str, int] = {}
    done: set[str] = set()
    path: list[str] = []
    borders: list[str] = []
    groups: list[list[str]] = []

    def walk(module: str) -> None:
        order[module] = len(order)
        path.append(module)
        borders.append(module)
        for target in sorted(edges.get(module, ())):
            if target not in order:
                walk(target)
            elif target not in done:
                while order[borders[-1]] > order[target]:
                    borders.pop()
        if borders[-1] == module:
            borders.pop()
            start = path.index(module)
            group = path[start:]
            del path[start:]
            done.update(group)
            groups.append(group)

    for module in sorted(edges):
        if module not in order:
            walk(module)
    return groups


def edges_of(imports: Iterable[Import]) -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {module: set() for module in MODULES}
    for each in imports:
        if each.own and each.target != each.importer:
            edges[each.importer].add(each.target)
    return edges


def test_cycles_are_found() -> None:
    chain = {"a": {"b"}, "b": {"c"}, "c": set(), "d": {"a"}}
    assert all(len(group) == 1 for group in strongly_connected(chain))
    looped = strongly_connected(chain | {"c": {"a"}})
    assert sorted(sorted(group) for group in looped) == [["a", "b", "c"], ["d"]]


def test_no_cycles_not_even_through_functions() -> None:
    cycles = [group for group in strongly_connected(edges_of(REAL)) if len(group) > 1]
    assert cycles == []


def test_the_command_starts_without_torch() -> None:
    heavy = ["torch", "numpy", "asyncio", "textual", "aiohttp", "msgspec", "tomli"]
    code = f"import sys, arc.console.main; print(*set({heavy!r}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_light_module_imports_where_torch_is_missing() -> None:
    """By running it: what may be imported on a machine with only the console installed."""
    light = sorted(f"arc.{name}" for name in MODULES if name in CONSOLE_MAY or name.startswith("console"))
    light += ["arc.engine.sequence", "arc.engine.scheduler"]
    code = f"""
import importlib, sys
for name in ("torch", "numpy", "triton", "aiohttp"):
    sys.modules[name] = None
for name in {light!r}:
    importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
