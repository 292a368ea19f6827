"""Compare this engine with others over HTTP: the same checkpoint, the same requests, alternating.

    make bench-peers
    python -m tests.peers [--engines arc,llama-server] [--repeat N] [--cores 2,1] [--busy] [--out FILE]

Installs the peers under build/peers at first use (gigabytes, and llama.cpp is compiled); then each repetition starts
each engine, sends every workload, and stops it, so a slow spell of the machine meets all of them. Figures are ratios
within this run: the machine, and what else runs on it, decide the rest.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from . import agreement, report
from .engines import ENGINES
from .installs import ROOT, InstallError
from .make_checkpoint import COMMON, write_checkpoint
from .measure import EngineError, Visit, busy_core, visit


def checkpoint() -> Path:
    folder = ROOT / "dsv3-common"
    if not (folder / "tokenizer_config.json").is_file():
        write_checkpoint(folder, COMMON, seed=0)
    return folder


def compare(
    names: list[str],
    model: Path,
    cores: tuple[int, ...],
    repeat: int,
    busy: bool,
    keep: Callable[[list[Visit]], None],
) -> list[Visit]:
    """`keep` gets all visits so far, after each: an hour's figures must not be lost with the last of them."""
    visits: list[Visit] = []
    for turn in range(repeat):
        for name in names:
            print(f"repetition {turn + 1} of {repeat}: {name}", file=sys.stderr, flush=True)
            with busy_core(cores[-1]) if busy else nullcontext():
                try:
                    visits.append(visit(ENGINES[name], model, COMMON["vocab_size"], turn, cores))
                except (EngineError, InstallError) as error:
                    print(f"{name}: {error}", file=sys.stderr, flush=True)
            keep(visits)
    return visits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--cores", default="2,1", help="how many cores the engines get, one table each")
    parser.add_argument(
        "--busy", action="store_true", help="keep one of these cores busy with something else"
    )
    parser.add_argument("--out", type=Path, help="all figures as JSON")
    options = parser.parse_args()
    names = options.engines.split(",")
    if unknown := [name for name in names if name not in ENGINES]:
        parser.error(f"no engine {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    own = sorted(os.sched_getaffinity(0))
    model = checkpoint()
    results: list[dict[str, object]] = []
    firsts: list[Visit] = []
    for count in (int(text) for text in options.cores.split(",")):
        if not 1 <= count <= len(own):
            parser.error(f"--cores {count}: this process has {len(own)}")

        results.append({"cores": count, "busy": options.busy})

        def keep(visits: list[Visit]) -> None:
            results[-1]["visits"] = [dataclasses.asdict(v) for v in visits]
            if options.out:
                options.out.write_text(json.dumps(results))

        visits = compare(names, model, tuple(own[:count]), options.repeat, options.busy, keep)
        title = f"{count} core{'s' if count > 1 else ''}{', one of them busy' if options.busy else ''}"
        print(f"\n## {title}, {options.repeat} repetitions\n\n{report.table(visits)}\n")
        print("\n".join(report.failures(visits)), flush=True)
        firsts = firsts or visits  # each number of cores is sent the same prompts
    print("\n".join(agreement.check(names, model, COMMON["vocab_size"], tuple(own), firsts)))


if __name__ == "__main__":
    main()
