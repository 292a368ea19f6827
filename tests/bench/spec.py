"""What speculation is worth on the carried model: output rate and acceptance at each depth.

    python -m tests.bench.spec [--repeats N] [--output TOKENS] [FLAG=VALUE ...]

One engine; spec.depth is changed live, and the depths take turns within each repetition. The prompts are beginnings of
sentences in the style of what the model was trained on, answered greedily and at temperature 0.7: random prompts would
measure nothing, since what follows them cannot be guessed.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import urllib.request
from collections import defaultdict
from urllib.parse import urlsplit

from arc.engine.folder import CARRIED
from tokenizers import Tokenizer

from .load import send
from .server import Server, serve
from .workloads import Job

DEPTHS = (0, 1, 2, 3)
ROWS = (1, 8, 32)
PEOPLE = (
    "Emma",
    "Anne",
    "Elinor",
    "Mr. Knightley",
    "Captain Wentworth",
    "the king",
    "Moses",
    "the children of Israel",
)
OPENINGS = (
    "It was a fine morning, and {} had",
    "In those days {} came unto the city, and",
    "There was not one of the family who could say that {}",
    "And it came to pass, when {} heard these words, that",
)  # fmt: skip


def jobs_of(rows: int, output: int, temperature: float, turn: int) -> list[Job]:
    """`rows` different prompts; another `turn` gives others, so that no run finds its prefixes in the cache."""
    tokenizer = Tokenizer.from_file(str(CARRIED / "tokenizer.json"))
    texts = [f"{turn}. " + OPENINGS[row // 8 % 4].format(PEOPLE[row % 8]) for row in range(rows)]
    return [Job(tuple(tokenizer.encode(text).ids), output, temperature) for text in texts]


def set_depth(server: Server, depth: int) -> None:
    name = f"bench-{urlsplit(server.base).port}"
    arguments = ["set", "--engine", name, f"spec.depth={depth}"]
    command = [sys.executable, "-c", "from arc.console.main import main; main()", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def by_place(server: Server) -> list[float]:
    """Drafts that were right so far, by their place, and rows that carried drafts in the last entry."""
    with urllib.request.urlopen(f"{server.base}/metrics", timeout=10) as page:
        text = page.read().decode()
    right = re.findall(
        r'^vllm:spec_decode_num_accepted_tokens_per_pos_total\{.*position="\d".*\} (\S+)$', text, re.M
    )
    rows = re.findall(r"^vllm:spec_decode_num_drafts_total\{.*\} (\S+)$", text, re.M)
    return [*map(float, right), *map(float, rows)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spec", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--json", action="store_true", help="every run as a line of JSON besides")
    parser.add_argument("flags", nargs="*", metavar="FLAG=VALUE")
    options = parser.parse_args()
    turn = 0
    with serve(None, *options.flags) as server:
        for temperature in (0.0, 0.7):
            for rows in ROWS:
                rates: dict[int, list[float]] = defaultdict(list)
                per_cpu: dict[int, list[float]] = defaultdict(list)
                right: dict[int, list[float]] = {depth: [0.0] * 5 for depth in DEPTHS}
                for repeat in range(options.repeats):
                    for depth in DEPTHS if repeat % 2 else reversed(DEPTHS):
                        turn += 1
                        set_depth(server, depth)
                        before, cpu = by_place(server), server.cpu_seconds()
                        run = send(
                            server.base, server.model, jobs_of(rows, options.output, temperature, turn)
                        )
                        tokens = rows * options.output
                        rates[depth].append(run.output_rate)
                        per_cpu[depth].append(tokens / (server.cpu_seconds() - cpu))
                        change = [now - then for now, then in zip(by_place(server), before, strict=True)]
                        right[depth] = [old + new for old, new in zip(right[depth], change, strict=True)]
                        if options.json:
                            print(json.dumps({
                                "temperature": temperature, "rows": rows, "depth": depth, "rate": run.output_rate,
                                "per_cpu_second": per_cpu[depth][-1], "right": change[:4], "draft_rows": change[4],
                            }), flush=True)  # fmt: skip
                base, cpu_base = statistics.median(rates[0]), statistics.median(per_cpu[0])
                for depth in DEPTHS:
                    rate, work = statistics.median(rates[depth]), statistics.median(per_cpu[depth])
                    *places, carrying = right[depth]
                    shares = (
                        " ".join(f"{place / carrying:.2f}" for place in places[:depth]) if carrying else "-"
                    )
                    print(
                        f"  T {temperature}  {rows:2} rows  depth {depth}  {rate:8,.0f} tok/s ({rate / base:.2f}x)"
                        f"  {work:8,.0f} tok a CPU second ({work / cpu_base:.2f}x)  right by place {shares}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
