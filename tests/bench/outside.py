"""What a step costs outside its forward pass, part by part.

    python -m tests.bench.outside [FOLDER] [--rows 1,8,32,128] [--sampling greedy,top_k] [--steps 150] [--threads 1]

The engine runs in this process, without HTTP: decode steps of sequences that all keep going. Each part's time is that
of one method and of what it calls; what the step's parts do not name is `rest`. FOLDER None: the carried model.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arc.engine.config import load
from arc.engine.core.assembly import Assembly, assemble
from arc.engine.folder import CARRIED
from arc.engine.sequence import FinishReason, Request, SamplingParams

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 0.7},
    "top_k": {"temperature": 0.7, "top_k": 40},
    "top_p": {"temperature": 0.7, "top_p": 0.9},
}
PARTS: tuple[str, ...] = ("form", "layout", "forward", "sample", "publish", "rest")
_SKIPPED = 10  # steps before those that count


class Clock:
    """Wall and CPU time of this thread by part, of the step under way."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.wall = dict.fromkeys(PARTS, 0.0)
        self.cpu = dict.fromkeys(PARTS, 0.0)

    def time(self, owner: object, method: str, part: str, inside_of: str | None = None) -> None:
        """Put a timed method in the place of one. `inside_of`: the part that would count it too."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **named: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return inner(*args, **named)
            finally:
                wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
                self.wall[part] += wall
                self.cpu[part] += cpu
                if inside_of is not None:
                    self.wall[inside_of] -= wall
                    self.cpu[inside_of] -= cpu

        setattr(owner, method, timed)

    def step(self, turn: Callable[[], None]) -> tuple[dict[str, float], dict[str, float]]:
        self._clear()
        wall, cpu = time.perf_counter(), time.thread_time()
        turn()
        self.wall["rest"] = time.perf_counter() - wall - sum(self.wall.values())
        self.cpu["rest"] = time.thread_time() - cpu - sum(self.cpu.values())
        return self.wall, self.cpu


def prepare(model: Path, rows: int, threads: int, folder: Path) -> tuple[Assembly, Clock]:
    overrides = [
        f"model.path={model}",
        f"sched.max_running={rows}",
        f"sched.max_waiting={rows}",
        f"cpu.threads={threads}",
        "model.max_len=1024",
    ]
    assembly = assemble(load(folder=folder, environ={}, overrides=overrides))
    assembly.handle.attach(asyncio.get_running_loop())
    engine, clock = assembly.engine, Clock()
    clock.time(engine.scheduler, "schedule", "form")
    clock.time(engine.runner, "pipeline_step", "layout")
    clock.time(engine.runner, "_through_model", "forward", inside_of="layout")
    clock.time(engine.runner.sampler, "sample", "sample")
    clock.time(engine, "publish", "publish")
    return assembly, clock


def fill(assembly: Assembly, rows: int, sampling: dict[str, Any]) -> None:
    """So many new sequences that decode, with prompts of 16 to 512 tokens."""
    engine, vocabulary = assembly.engine, assembly.info.vocab_size
    engine.end(list(engine.sequences.values()), FinishReason.CANCELLED, "another round")
    for number in range(rows):
        length = 16 + (496 * number) // max(1, rows - 1)
        prompt = tuple((7 + 31 * number + 13 * place) % vocabulary for place in range(length))
        params = SamplingParams(max_tokens=500, ignore_eos=True, seed=number, **sampling)
        name = f"r{number}-{time.monotonic_ns()}"
        engine.inbox.submit(Request(id=name, prompt=prompt, params=params, arrival=time.monotonic()))
    while engine.counters.running < rows or engine.counters.effective_batch < rows:
        turn(assembly)


def turn(assembly: Assembly) -> None:
    assembly.engine.border()
    assert assembly.engine.step()


async def measure(assembly: Assembly, clock: Clock, steps: int) -> dict[str, list[tuple[float, float]]]:
    """(wall, CPU) of each part in each step, microseconds."""
    taken: dict[str, list[tuple[float, float]]] = {part: [] for part in PARTS}
    for number in range(steps + _SKIPPED):
        wall, cpu = clock.step(lambda: turn(assembly))
        await asyncio.sleep(0)  # what was delivered is taken and freed, as it is where somebody listens
        if number >= _SKIPPED:
            for part in PARTS:
                taken[part].append((wall[part] * 1e6, cpu[part] * 1e6))
    return taken


def report(what: str, taken: dict[str, list[tuple[float, float]]]) -> None:
    cells: list[str] = []
    medians: dict[str, float] = {}
    for part in PARTS:
        cpu = [each for _, each in taken[part]]
        medians[part] = statistics.median(cpu)
        cells.append(f"{part} {medians[part]:.0f} ({min(cpu):.0f})")
    whole = [sum(taken[part][step][1] for part in PARTS) for step in range(len(taken["form"]))]
    outside = [each - taken["forward"][step][1] for step, each in enumerate(whole)]
    shares = [part / all_of for part, all_of in zip(outside, whole, strict=True)]
    print(
        f"{what}: CPU us, median (best): {', '.join(cells)}; step {statistics.median(whole):.0f} ({min(whole):.0f}), "
        f"outside {statistics.median(outside):.0f} ({min(outside):.0f}), {statistics.median(shares):.1%}",
        flush=True,
    )


async def run(args: argparse.Namespace, folder: Path) -> None:
    model = args.folder or CARRIED
    for rows in map(int, args.rows.split(",")):
        assembly, clock = prepare(model, rows, args.threads, folder)
        for name in args.sampling.split(","):
            fill(assembly, rows, SAMPLINGS[name])
            report(f"{model.name}, {rows} rows, {name}", await measure(assembly, clock, args.steps))
        assembly.engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rows", default="1,8,32,128")
    parser.add_argument("--sampling", default="greedy,top_k", help=f"of {', '.join(SAMPLINGS)}")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(args, Path(folder)))


if __name__ == "__main__":
    main()
