"""The time of one forward pass of random weights, alone: no server, no scheduler, no sampling.

    python -m tests.bench.step [common | carried] [--backend B[,B]] [--threads N] [--dtype D] [--steps N]

`common` is the checkpoint that engines are compared on (docs/performance.md), `carried` the shape of the model in this
repository. Contexts are spread evenly over 16..768 and every token is drawn at random: repeated tokens would keep their
experts in the processor's cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from arc.engine.folder import CARRIED as CARRIED_FOLDER
from arc.engine.model.batch import ForwardBatch
from arc.engine.model.cache import LatentCache
from arc.engine.model.config import ModelConfig
from arc.engine.model.deepseek import DeepseekModel
from arc.engine.model.hf_config import read_config
from arc.kernels import Target, resolve

from tests.peers.make_checkpoint import COMMON

PAGE_SIZE = 16
CONTEXT = (16, 768)
CPU = torch.device("cpu")

CARRIED: dict[str, Any] = json.loads((CARRIED_FOLDER / "config.json").read_text())
SHAPES = {"common": COMMON, "carried": CARRIED}


def config_of(values: dict[str, Any]) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(values))
        return read_config(Path(folder))


class RandomSource:
    """A checkpoint of any shape: norms of 1, everything else normal."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def get(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        dtype: torch.dtype | None = None,
        rows: slice | None = None,
    ) -> torch.Tensor:
        tensor = torch.ones(shape) if "norm" in name else torch.randn(shape) * shape[-1] ** -0.5
        return (tensor if rows is None else tensor[rows]).to(dtype or self._dtype)

    def has(self, name: str) -> bool:
        return True

    def finish(self) -> None:
        return


def build(config: ModelConfig, dtype: torch.dtype, backend: str = "auto") -> DeepseekModel:
    """`backend`: as kernels.backend, and after a slash kernels.weights: native/int8."""
    torch.manual_seed(0)
    name, _, weights = backend.partition("/")
    kernels = resolve(name, Target(CPU, dtype, weights or "stored"))
    return DeepseekModel(config, RandomSource(dtype), dtype=dtype, device=CPU, kernels=kernels)


def decode_batches(config: ModelConfig, rows: int, steps: int) -> tuple[list[ForwardBatch], int]:
    """Batches of one token a row, each row at its context length, and the pages that they need."""
    low, high = CONTEXT
    lengths = (
        [low + (high - low) * n // max(rows - 1, 1) for n in range(rows)] if rows > 1 else [(low + high) // 2]
    )
    most = -(-high // PAGE_SIZE)
    order = torch.randperm(rows * most).view(rows, most)
    tables = order[torch.randperm(rows)]
    places = torch.tensor(lengths) - 1
    slots = tables.gather(1, (places // PAGE_SIZE).unsqueeze(1)).squeeze(1) * PAGE_SIZE + places % PAGE_SIZE
    batches = [
        ForwardBatch(
            token_ids=torch.randint(0, config.vocab_size, (rows,)),
            positions=places,
            slots=slots,
            block_tables=tables,
            lengths=tuple(lengths),
            query_starts=tuple(range(rows + 1)),
            decode_rows=rows,
            sample_tokens=torch.arange(rows),
        )
        for _ in range(steps)
    ]
    return batches, rows * most


def prompt_batches(config: ModelConfig, tokens: int, chunk: int) -> tuple[list[ForwardBatch], int]:
    """One prompt of `tokens` tokens, `chunk` of them a step."""
    tables = torch.arange(-(-tokens // PAGE_SIZE)).unsqueeze(0)
    batches = [
        ForwardBatch(
            token_ids=torch.randint(0, config.vocab_size, (chunk,)),
            positions=torch.arange(start, start + chunk),
            slots=torch.arange(start, start + chunk),
            block_tables=tables,
            lengths=(start + chunk,),
            query_starts=(0, chunk),
            decode_rows=0,
            sample_tokens=torch.tensor([chunk - 1]),
        )
        for start in range(0, tokens, chunk)
    ]
    return batches, tables.numel()


def milliseconds(model: DeepseekModel, batches: list[ForwardBatch], pages: int) -> list[tuple[float, float]]:
    """(wall, CPU) of each step; the CPU time is this thread's alone, so it means little with more than one."""
    config = model.config
    cache = LatentCache(config.layers, pages, PAGE_SIZE, config.latent_width, dtype=model.dtype, device=CPU)
    for layer in cache.layers:
        layer.normal_()
    times: list[tuple[float, float]] = []
    for batch in batches:
        wall, cpu = time.perf_counter(), time.thread_time()
        model.forward(batch, cache)
        times.append(((time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3))
    return times


def report(what: str, times: list[tuple[float, float]]) -> None:
    wall, cpu = zip(*times, strict=True)
    print(
        f"{what}: wall median {statistics.median(wall):.2f}, best {min(wall):.2f};"
        f" CPU median {statistics.median(cpu):.2f}, best {min(cpu):.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES, default="common", nargs="?")
    parser.add_argument(
        "--backend",
        default="auto",
        help="several, with commas between, take turns; native/int8 is one with int8 weights",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=1, help="how often each backend has its turn")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config, dtype = config_of(SHAPES[args.shape]), getattr(torch, args.dtype)
    models = {name: build(config, dtype, name) for name in args.backend.split(",")}
    for rows in (1, 8, 32):
        batches, pages = decode_batches(config, rows, args.steps)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
        for _, (name, model) in itertools.product(range(args.rounds), models.items()):
            times[name] += milliseconds(model, batches, pages)[args.steps // 5 :]
        for name in models:
            report(f"{name}: decode {rows} rows, ms a step", times[name])
    for chunk in (256, 1024):
        batches, pages = prompt_batches(config, 1024, chunk)
        whole: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
        for _, (name, model) in itertools.product(
            range(args.rounds * max(3, args.steps // 5)), models.items()
        ):
            run = milliseconds(model, batches, pages)
            whole[name].append((sum(wall for wall, _ in run), sum(cpu for _, cpu in run)))
        for name in models:
            report(f"{name}: prefill 1024 tokens, {chunk} a step, ms", whole[name])


if __name__ == "__main__":
    main()
