"""What the allocator is worth here: `python -m arc.engine.memory.bench`.

Three legs do the same work, each in a process of its own: off (torch's own memory), unbounded, and capped at half of
what the unbounded one held, so that the cap binds. Then what a reused buffer saves by its size.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import torch
from tqdm import tqdm

from ..telemetry.records import AllocatorCounters
from .cap import MIB
from .legs import TENTHS, Leg, Spec, Work
from .pool import HostPool

_SIZES_MIB = (1, 4, 16, 32, 40, 64)
_LEAST_TOKENS = 2600


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """A result of `mib` that is written and dropped, again and again: best seconds each, torch's own and pooled."""

    mib: int
    plain: float
    pooled: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What --json prints. `legs` has each leg as often as it ran, in the order it did; all are of one revision."""

    torch: str
    cores: int
    work: Work
    legs: tuple[Leg, ...]
    sizes: tuple[Size, ...]


class LegFailed(Exception):
    pass


def leg(spec: Spec) -> Leg:
    """Run one leg in a process of its own."""
    command = [sys.executable, "-m", "arc.engine.memory.legs", msgspec.json.encode(spec).decode()]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(spec.work.threads)}
    # In a group of its own: Ctrl-C is the bench's, which then ends its leg.
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False, process_group=0)
    if done.returncode:
        raise LegFailed(f"leg {spec.name} ended with exit code {done.returncode}")
    return msgspec.json.decode(done.stdout, type=Leg)


def legs(
    work: Work, repeats: int, cap_mib: int | None, on_leg: Callable[[], object] = lambda: None
) -> list[Leg]:
    """Off, unbounded and capped in turn, `repeats` times; the legs of a round stand next to each other in time.

    Raises LegFailed.
    """
    done: list[Leg] = []

    def run(spec: Spec) -> Leg:
        ran = leg(spec)
        if done and done[0].build.revision != ran.build.revision:
            raise LegFailed(
                f"the files changed meanwhile: leg {spec.name} ran {ran.build.revision}, those before it "
                f"{done[0].build.revision}"
            )
        done.append(ran)
        on_leg()
        return ran

    for _ in range(repeats):
        run(Spec(name="off", enabled=False, cap_mib=None, work=work))
        unbounded = run(Spec(name="unbounded", enabled=True, cap_mib=0, work=work))
        if cap_mib is None:
            cap_mib = max(1, (unbounded.held or 0) // 2 // MIB)
        run(Spec(name="capped", enabled=True, cap_mib=cap_mib, work=work))
    return done


def sizes() -> list[Size]:
    """The time of an index_select whose result is dropped at once, plain and into a pooled buffer."""
    pool = HostPool(AllocatorCounters(), lambda: 1 << 40)
    pool.configure(True, 0)
    rows = torch.zeros(64, MIB // 64, dtype=torch.uint8)
    found: list[Size] = []
    for mib in _SIZES_MIB:
        index = torch.arange(64 * mib) % 64
        shape = (64 * mib, MIB // 64)
        plain = _best(lambda index=index: torch.index_select(rows, 0, index))
        pooled = _best(
            lambda index=index, shape=shape: torch.index_select(
                rows, 0, index, out=pool.take(shape, torch.uint8)
            )
        )
        found.append(Size(mib=mib, plain=plain, pooled=pooled))
    return found


def _best(run: Callable[[], object], repeats: int = 12) -> float:
    times: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


# -- what is printed --------------------------------------------------------------------------------------------------


def table(report: Report) -> str:
    work = report.work
    by_name: dict[str, list[Leg]] = {}
    for each in report.legs:
        by_name.setdefault(each.name, []).append(each)
    some = report.legs[0]
    lines = [
        f"arc {some.build.version} ({some.build.revision}) on {some.build.device}, {some.build.dtype}, "
        f"torch {report.torch}, {report.cores} cores, {work.threads} threads",
        f"{some.build.model}: {some.tokens:,} tokens out and {some.prompt_tokens:,} in, {work.rows} sequences at a "
        f"time, medians of {len(by_name['off'])} runs a leg",
        "",
        f"{'':10}{'tok/s':>18}{'CPU ms/tok':>12}{'growth':>10}{'2nd half':>16}{'alloc/step':>12}{'free/step':>11}"
        f"{'held':>10}{'hit rate':>10}",
    ]
    lines += [_row(name, runs) for name, runs in by_name.items()]
    lines += [
        "",
        "  growth and held in MiB; 2nd half: slope of the resident memory, MiB per 1,000 tokens; the first tenth has",
        "  what torch and oneDNN load and compile at first use",
        *(f"  {name}: {text}" for name, runs in by_name.items() if (text := _cap(runs[-1]))),
        "",
        f"resident memory since the start, MiB, after each tenth{'':3}"
        + "".join(f"{10 * n:>6} %" for n in range(TENTHS + 1)),
    ]
    for name, runs in by_name.items():
        last = runs[-1]
        grown = ((size - last.resident[0]) / MIB for size in last.resident)
        lines.append(f"  {name:54}" + "".join(f"{each:>8.0f}" for each in grown))
    lines += ["", "a result that is written and dropped, us:   plain    pooled   ratio"]
    lines += [
        f"  {each.mib:3} MiB {each.plain * 1e6:40,.0f} {each.pooled * 1e6:9,.0f} {each.plain / each.pooled:7.1f}"
        for each in report.sizes
    ]
    return "\n".join(lines)


def _row(name: str, runs: Sequence[Leg]) -> str:
    rate = [each.tokens / each.seconds for each in runs]
    spread = f"{statistics.median(rate):,.0f} ({min(rate):,.0f}..{max(rate):,.0f})"
    cpu = statistics.median(each.cpu_seconds / each.tokens for each in runs) * 1e3
    growth = statistics.median(each.resident[-1] - each.resident[0] for each in runs) / MIB
    slope = statistics.median(each.slope for each in runs) * 1000 / MIB
    line = f"{name:10}{spread:>18}{cpu:>12.2f}{growth:>+10.0f}{slope:>+16.2f}"
    last = runs[-1]
    if last.hits is None or last.misses is None or last.allocated is None or last.freed is None:
        return line
    taken = last.hits + last.misses
    # Of nothing taken there is no rate.
    rate_text = f"{last.hits / taken:.4f}" if taken else ""
    return (
        f"{line}{last.allocated / last.steps:>12.2f}{last.freed / last.steps:>11.2f}"
        f"{(last.held or 0) / MIB:>10.0f}{rate_text:>10}"
    )


def _cap(run: Leg) -> str:
    if run.held is None or run.hits is None or run.misses is None or run.bypassed is None:
        return ""
    if run.cap is None:
        cap = "no cap, for comparison only"
    else:
        cap = f"cap {run.cap / MIB:,.0f} MiB, " + (
            f"kept to {run.bound:,} times" if run.bound else "not reached"
        )
    taken = run.hits + run.misses
    return f"{cap}; {taken / run.steps:,.1f} buffers taken a step, {run.bypassed / run.steps:,.1f} bypassed"


def main() -> None:
    # As Ctrl-C: the leg under way is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="arc bench allocator", description=__doc__)
    parser.add_argument("--model", default="carried", help="a model's folder")
    parser.add_argument("--rows", type=int, default=32, help="sequences at a time")
    parser.add_argument(
        "--tokens", type=int, default=6400, help=f"generated in each leg, at least {_LEAST_TOKENS}"
    )
    parser.add_argument("--prompt", type=int, nargs=2, default=(64, 700), metavar=("SHORTEST", "LONGEST"))
    parser.add_argument("--output", type=int, default=100, help="tokens a sequence")
    parser.add_argument("--cap-mib", type=int, help="of the capped leg; half of what the unbounded one held")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print data instead of the table")
    options = parser.parse_args()
    for name in ("rows", "output", "repeats", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: 1 at the least")
    if not 1 <= options.prompt[0] <= options.prompt[1]:
        parser.error(f"--prompt {options.prompt[0]} {options.prompt[1]}: at least 1, and the lower one first")
    if options.tokens < _LEAST_TOKENS:
        parser.error(f"--tokens {options.tokens}: the second half's slope needs {_LEAST_TOKENS} at the least")
    if options.cap_mib is not None and options.cap_mib < 1:
        parser.error(f"--cap-mib {options.cap_mib}: the capped leg has a cap of 1 MiB at the least")
    work = Work(
        model=options.model,
        rows=options.rows,
        tokens=options.tokens,
        shortest=options.prompt[0],
        longest=options.prompt[1],
        output=options.output,
        threads=options.threads,
    )
    torch.set_num_threads(options.threads)
    try:
        with tqdm(total=3 * options.repeats, desc="legs", unit="leg", disable=None) as bar:
            ran = legs(work, options.repeats, options.cap_mib, bar.update)
    except LegFailed as failed:
        sys.exit(str(failed))
    report = Report(
        torch=str(torch.__version__),
        cores=len(os.sched_getaffinity(0)),
        work=work,
        legs=tuple(ran),
        sizes=tuple(sizes()),
    )
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        print(table(report))


if __name__ == "__main__":
    main()
