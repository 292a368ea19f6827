"""`make bench`: how fast this engine is on this machine, on the carried model and on a 68 M random one.

Every figure is a median over repetitions with its spread. Ratios are taken within one run, alternating the two sides.
The figures go to docs/performance.md by hand, with the machine and the day; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from arc.console.bench import consoles

from . import recorder, workloads
from .load import Run, send
from .server import Server, serve

ROWS = (1, 8, 32)


def spread_of(values: Sequence[float], form: str = ",.0f") -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}..{max(values):{form}})"


def rates(server: Server, vocab: int, repeats: int) -> None:
    for name, make in (("uniform", workloads.uniform), ("mixed", workloads.mixed)):
        for rows in ROWS:
            runs = [send(server.site.target, make(rows, vocab, seed)) for seed in range(repeats)]
            first = statistics.median(outcome.first for run in runs for outcome in run.outcomes)
            rate = spread_of([run.output_rate for run in runs])
            print(
                f"  {name:8} {rows:3} rows  {rate:>28} tok/s   first token {first * 1000:,.0f} ms", flush=True
            )
    prompts = [workloads.prefill(vocab, seed) for seed in range(repeats)]
    prefills = [len(jobs[0].prompt) / send(server.site.target, jobs).seconds for jobs in prompts]
    print(f"  prefill  1,024 tokens {spread_of(prefills):>25} tok/s", flush=True)


def step_split(server: Server, vocab: int) -> None:
    before = server.step_seconds()
    send(server.site.target, workloads.uniform(32, vocab, 99))
    after = server.step_seconds()
    spent = {part: after[part] - before.get(part, 0.0) for part in after}
    whole = sum(spent.values())
    shares = "   ".join(f"{part} {seconds / whole:.1%}" for part, seconds in spent.items())
    print(
        f"  a step at 32 rows: {shares}   rest (all but forward) {1 - spent['forward'] / whole:.1%}",
        flush=True,
    )


def watched(server: Server, repeats: int) -> None:
    passes, times = consoles.measure(
        server.site, rows=32, output=640, hz=4.0, vocab=2048, repeats=repeats, seed=0
    )
    base = statistics.median(each.output_rate for each in passes[0])
    rates = {arm: statistics.median(each.output_rate for each in found) for arm, found in passes.items()}
    line = "   ".join(f"{arm}: {rate:,.0f} tok/s, {rate / base:.3f}" for arm, rate in rates.items())
    p50, p99 = times[len(times) // 2], times[int(0.99 * len(times))]
    print(f"  consoles at 4 Hz, 32 rows: {line}")
    print(f"  control socket under 32 rows: p50 {1e3 * p50:.1f} ms, p99 {1e3 * p99:.1f} ms", flush=True)


def start_up(model: Path | None, vocab: int) -> None:
    with serve(model) as server:
        send(server.site.target, workloads.uniform(1, vocab, 0, output=1))
        seconds = time.perf_counter() - server.engine.began
        print(
            f"  start to first token {seconds:.2f} s   resident {server.engine.peak_mib():,.0f} MiB after it"
        )
        send(server.site.target, workloads.uniform(32, vocab, 0))
        print(f"  resident at most {server.engine.peak_mib():,.0f} MiB with 32 rows", flush=True)


def admission(model: Path | None, vocab: int, repeats: int) -> None:
    """Bucketed over ragged on rows of spread lengths, in time. One run each in turn, medians.

    While losers wait, all rows have their first token before any ends, so the decode part can be told apart. Preempted
    losers are computed again in between: there only the whole time, prefill included, means something.
    """
    arms = {
        "ragged": ("admission.policy=ragged",),
        "wait": ("admission.policy=bucketed", "admission.bucket_losers=wait"),
        "preempt": ("admission.policy=bucketed", "admission.bucket_losers=preempt"),
    }
    for rows in ROWS:
        runs: dict[str, list[Run]] = {arm: [] for arm in arms}
        for arm, flags in arms.items():
            with serve(model, *flags, "cache.prefix=off") as server:
                send(server.site.target, workloads.spread(rows, vocab, 98, output=4))
                for seed in range(repeats):
                    jobs = workloads.spread(rows, vocab, seed, output=64)
                    runs[arm].append(send(server.site.target, jobs))

        def ratio(arm: str, seconds: Callable[[Run], float], of: dict[str, list[Run]] = runs) -> float:
            return statistics.median(map(seconds, of[arm])) / statistics.median(map(seconds, of["ragged"]))

        print(
            f"  {rows:3} rows spread, bucketed over ragged: wait, decode alone {ratio('wait', decode_seconds):.2f}x   "
            f"whole {ratio('wait', whole_seconds):.2f}x   preempt, whole {ratio('preempt', whole_seconds):.2f}x",
            flush=True,
        )


def whole_seconds(run: Run) -> float:
    return run.seconds


def decode_seconds(run: Run) -> float:
    """From the last first token to the end: no prefill in it."""
    return max(outcome.end for outcome in run.outcomes) - max(outcome.first for outcome in run.outcomes)


def against_transformers(model: Path, server: Server, vocab: int, repeats: int, threads: int) -> None:
    for name, make in (("uniform", workloads.uniform), ("mixed", workloads.mixed)):
        for rows in (1, 8, 32):
            ours, theirs = [], []
            for seed in range(repeats):
                ours.append(send(server.site.target, make(rows, vocab, seed)).output_rate)
                command = [sys.executable, "-m", "tests.bench.transformers_baseline", str(model), name]
                command += [str(rows), str(seed), "--threads", str(threads)]
                printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                theirs.append(json.loads(printed.splitlines()[-1])["rate"])
            ratio = statistics.median(ours) / statistics.median(theirs)
            print(
                f"  {name:8} {rows:3} rows: transformers {spread_of(theirs):>20} tok/s   arc {ratio:.2f}x",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=["carried", "common"], help="one of the two models")
    parser.add_argument("--skip-transformers", action="store_true")
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        common = Path(folder) / "dsv3-common"
        models: dict[str, tuple[Path | None, int]] = {"carried": (None, 2048), "common": (common, 4096)}
        if options.only != "carried":
            subprocess.run([sys.executable, "-m", "tests.peers.make_checkpoint", str(common)], check=True)
        for name, (model, vocab) in models.items():
            if options.only not in (None, name):
                continue
            print(f"{name}, {threads} threads, {options.repeats} repetitions, median (least..most)")
            start_up(model, vocab)
            with serve(model) as server:
                send(server.site.target, workloads.uniform(8, vocab, 97))  # warm-up
                rates(server, vocab, options.repeats)
                step_split(server, vocab)
                watched(server, options.repeats)
                if model is not None and not options.skip_transformers:
                    against_transformers(model, server, vocab, options.repeats, threads)
            admission(model, vocab, options.repeats)
    recorder.main()


if __name__ == "__main__":
    main()
