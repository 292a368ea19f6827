"""What the spans cost: a site off and on, and whole steps at each detail against steps without.

    python -m tests.bench.spans [common | carried] [--rows 32] [--steps 20] [--rounds 40]

The engine runs in this process, without HTTP and with one thread, so that nothing else is in the ratio. Off and on take
turns within one run, in blocks of steps over the same sequences, and each pair of neighbours gives one ratio, of wall
and of this thread's CPU time: on a machine that does other things as well, the second is the one that can tell. Off
against off is a ratio too: how well this run can tell.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from arc.engine.config import load
from arc.engine.control.protocol import NA
from arc.engine.core.assembly import Assembly, assemble
from arc.engine.folder import CARRIED
from arc.engine.profiler.profiler import Profiler
from arc.engine.profiler.recording import STEPS_AT_ONCE
from arc.engine.profiler.sites import Detail, Role, Site, StepFacts
from arc.engine.sequence import FinishReason, Request, SamplingParams

_CALLS = 50  # a step, about as many as there are spans at detail `op` in a small model
_STEPS = 400
_TOKENS = 1800  # that a sequence of the second part has to give: more steps would end it


class _Toy:
    """A step with one method in it that does nothing, called often."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def step(self) -> None:
        self.forward(self.calls)

    def forward(self, calls: int) -> None:
        for _ in range(calls):
            self.work()

    def work(self) -> None:
        return

    def sites(self) -> list[Site]:
        return [
            Site("step", self, "step", role=Role.ROOT),
            Site(
                "forward",
                self,
                "forward",
                role=Role.KIND,
                facts=lambda calls: StepFacts("decode", 1, calls, 0),
            ),
            Site("work", self, "work", Detail.OP),
        ]


def site_costs(repeats: int = 7) -> float:
    """CPU ns a call: of a method never touched, of one that was timed and is no longer, and of a timed one. Gives what
    a timed one costs more, in seconds."""
    toy = _Toy(_CALLS)
    profiler = Profiler(toy.sites, stamps=None, device=NA("none"), not_timed={})

    def each() -> float:
        best = []
        for _ in range(repeats):
            began = time.thread_time_ns()
            for _ in range(_STEPS):
                toy.step()
            profiler.flush()
            best.append((time.thread_time_ns() - began) / (_CALLS * _STEPS))
        return min(best)

    function = toy.work.__func__  # pyright: ignore[reportFunctionMemberAccess]
    untouched = each()
    profiler.configure(True, Detail.OP)
    recorded = each()
    profiler.configure(False, Detail.OP)
    off = each()
    same = toy.work.__func__ is function  # pyright: ignore[reportFunctionMemberAccess]
    print(f"a call of a method that does nothing, CPU time, best of {repeats} times {_CALLS * _STEPS:,}:")
    print(f"  never timed      {untouched:7.1f} ns")
    print(f"  turned off again {off:7.1f} ns   the same function object: {'yes' if same else 'NO'}")
    print(f"  timed            {recorded:7.1f} ns   so a site costs {recorded - off:.0f} ns on", flush=True)
    return (recorded - off) * 1e-9


def prepare(model: Path, rows: int, folder: Path) -> Assembly:
    overrides = [
        f"model.path={model}",
        f"sched.max_running={max(64, rows)}",
        "cache.prefix=off",
        "model.max_len=2048",
    ]
    assembly = assemble(load(folder=folder, environ={}, overrides=overrides))
    assembly.handle.attach(asyncio.get_running_loop())
    return assembly


def fill(assembly: Assembly, rows: int) -> None:
    """So many new sequences that decode, with prompts of 16 to 128 tokens."""
    assembly.engine.end(list(assembly.engine.sequences.values()), FinishReason.CANCELLED, "another round")
    vocabulary = assembly.info.vocab_size
    for number in range(rows):
        length = 16 + (112 * number) // max(1, rows - 1)
        prompt = tuple((7 + 31 * number + 13 * place) % vocabulary for place in range(length))
        params = SamplingParams(temperature=0.0, max_tokens=_TOKENS, ignore_eos=True)
        name = f"r{number}-{time.monotonic_ns()}"
        assembly.engine.inbox.submit(Request(id=name, prompt=prompt, params=params, arrival=time.monotonic()))
    while assembly.engine.counters.running < rows or assembly.engine.counters.effective_batch < rows:
        turn(assembly)


def turn(assembly: Assembly) -> None:
    assembly.engine.border()
    assert assembly.engine.step()


class Took(NamedTuple):
    wall: float  # seconds
    cpu: float  # of this thread


def took(assembly: Assembly, steps: int) -> Took:
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(steps):
        turn(assembly)
    return Took(time.perf_counter() - wall, time.thread_time() - cpu)


def ratios(
    assembly: Assembly, profiler: Profiler, detail: Detail | None, steps: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Throughput on over throughput off, one of each round, by wall and by CPU; the two take turns in being first."""
    walls, cpus = [], []
    for number in range(rounds):
        times: dict[bool, Took] = {}
        for on in (False, True) if number % 2 else (True, False):
            profiler.configure(on and detail is not None, detail if detail is not None else profiler.detail)
            turn(assembly)  # the first one makes the tree
            times[on] = took(assembly, steps)
        walls.append(times[False].wall / times[True].wall)
        cpus.append(times[False].cpu / times[True].cpu)
    profiler.configure(False, profiler.detail)
    return walls, cpus


def spread(found: list[float]) -> str:
    """The median, its standard error (as of a normal distribution with these quartiles), and the quartiles."""
    low, middle, high = statistics.quantiles(found, n=4)
    error = 1.253 * (high - low) / 1.349 / len(found) ** 0.5
    return f"{middle:.4f} +-{error:.4f} ({low:.3f}..{high:.3f})"


def folding(assembly: Assembly, profiler: Profiler, detail: Detail) -> float:
    """CPU seconds to fold some steps, which a block of the ratios is too short to have in it."""
    profiler.configure(True, detail)
    costs = []
    for _ in range(5):
        took(assembly, 8)
        began = time.thread_time()
        profiler.flush()
        costs.append(time.thread_time() - began)
    profiler.configure(False, detail)
    return statistics.median(costs)


def reckoned(assembly: Assembly, detail: Detail | None, site: float, alone: Took) -> str:
    """What the ratio should be by the cost of a site alone, where it is too near to 1 for this run to tell,
    and the share of a step that folding takes beside."""
    report = assembly.port.spans(900.0)
    if detail is None or isinstance(report, NA):
        return ""
    decode = next(kind for kind in report.kinds if kind.kind == "decode")
    calls = sum(row.calls for row in decode.spans) / decode.steps
    fold = folding(assembly, assembly.port._profiler, detail)
    steps = min(STEPS_AT_ONCE, max(1.0, 1.0 / alone.cpu))  # between two folds where nothing else runs
    share = fold / (alone.cpu * steps)
    return (
        f"\n           and folding, {1e6 * fold:.0f} us at a time: {share:.4f}; "
        f"reckoned by {calls:.0f} calls a step: {alone.cpu / (alone.cpu + calls * site):.4f}"
    )


async def step_costs(model: Path, rows: int, steps: int, rounds: int, site: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assembly = prepare(model, rows, Path(folder))
        profiler = assembly.port._profiler
        fill(assembly, rows)
        torch.set_num_threads(1)
        took(assembly, steps)  # warm
        alone = Took(*(value / steps for value in took(assembly, steps)))
        print(
            f"{rows} rows, {1000 * alone.wall:.2f} ms a step, {1000 * alone.cpu:.2f} of it CPU; "
            f"{rounds} pairs of {steps} steps; throughput on / off:"
        )
        for detail in (None, Detail.STEP, Detail.LAYER, Detail.OP):
            fill(assembly, rows)
            walls, cpus = ratios(assembly, profiler, detail, steps, rounds)
            name = "off/off" if detail is None else detail.name.lower()
            print(
                f"  {name:8} CPU {spread(cpus)}   wall {spread(walls)}{reckoned(assembly, detail, site, alone)}"
            )
            sys.stdout.flush()
        assert assembly.engine.counters.effective_batch == rows, "sequences ended: fewer steps or rounds"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=("carried", "common"), default="carried", nargs="?")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    if 2 * options.rounds * (options.steps + 1) > _TOKENS - 100:
        parser.error("so many rounds and steps would end the sequences: take fewer of either")
    site = site_costs()
    with tempfile.TemporaryDirectory() as folder:
        model = CARRIED
        if options.shape == "common":
            model = Path(folder) / "dsv3-common"
            subprocess.run([sys.executable, "-m", "tests.peers.make_checkpoint", str(model)], check=True)
        asyncio.run(step_costs(model, options.rows, options.steps, options.rounds, site))


if __name__ == "__main__":
    main()
