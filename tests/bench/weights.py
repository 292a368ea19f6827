"""What weights and latents in fewer bits cost: the carried model's loss and its choices, against both as stored.

    python -m tests.bench.weights [--tokens N]

The text is the model's own at temperature 0.7, drawn with all as stored from an empty context, so that all see
the same tokens and nothing needs to be fetched. Loss is in nats a token; a changed choice is another most likely token.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
import torch.nn.functional as F
from arc.engine.folder import CARRIED
from arc.engine.model.batch import ForwardBatch
from arc.engine.model.cache import LatentCache, slot_of
from arc.engine.model.checkpoint import Checkpoint
from arc.engine.model.deepseek import DeepseekModel
from arc.engine.model.hf_config import read_config
from arc.kernels import Target, resolve

CPU = torch.device("cpu")
PAGE = 16
ROWS = 16


class Kept(NamedTuple):
    backend: str
    weights: str
    latents: str


RUNS = {
    "stored": Kept("native", "stored", "stored"),
    "int8": Kept("native", "int8", "stored"),
    "int4": Kept("native", "int4", "stored"),
    "stored, torch": Kept("torch", "stored", "stored"),
    "experts in int4": Kept("torch", "int4", "stored"),
    "experts in fp8": Kept("torch", "fp8", "stored"),
    "latents in fp8": Kept("torch", "stored", "fp8"),
}


def load(kept: Kept) -> DeepseekModel:
    config = read_config(CARRIED)
    source = Checkpoint(CARRIED, config, dtype=torch.bfloat16, device=CPU)
    kernels = resolve(kept.backend, Target(CPU, torch.bfloat16, kept.weights, latents=kept.latents))
    return DeepseekModel(config, source, dtype=torch.bfloat16, device=CPU, kernels=kernels)


class Rows:
    """ROWS sequences that grow together."""

    def __init__(self, model: DeepseekModel, latents: str, tokens: int) -> None:
        pages = -(-tokens // PAGE)
        config = model.config
        self.model = model
        width, dtype = slot_of(config, model.dtype, latents)
        self.cache = LatentCache(config.layers, ROWS * pages, PAGE, width, dtype=dtype, device=CPU)
        self.tables = torch.arange(ROWS * pages).view(ROWS, pages)

    def logits(self, tokens: torch.Tensor, place: int) -> torch.Tensor:
        """tokens [ROWS] at `place`; gives [ROWS, vocab]."""
        batch = ForwardBatch(
            token_ids=tokens,
            positions=torch.full((ROWS,), place),
            slots=self.tables[:, place // PAGE] * PAGE + place % PAGE,
            block_tables=self.tables,
            lengths=(place + 1,) * ROWS,
            query_starts=tuple(range(ROWS + 1)),
            decode_rows=ROWS,
            sample_tokens=torch.arange(ROWS),
        )
        return self.model.forward(batch, self.cache).logits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=256, help="of each of the sequences")
    args = parser.parse_args()
    torch.manual_seed(0)
    runs = {name: Rows(load(kept), kept.latents, args.tokens) for name, kept in RUNS.items()}
    begin = torch.zeros(ROWS, dtype=torch.int64)
    totals = dict.fromkeys(runs, 0.0)
    changed = dict.fromkeys(runs, 0)
    tokens, count = begin, 0
    for place in range(args.tokens):
        logits = {name: rows.logits(tokens, place) for name, rows in runs.items()}
        tokens = torch.multinomial((logits["stored"] / 0.7).softmax(-1), 1).squeeze(1)
        count += ROWS
        for name, each in logits.items():
            totals[name] += float(F.cross_entropy(each, tokens, reduction="sum"))
            changed[name] += int((each.argmax(-1) != logits["stored"].argmax(-1)).sum())
    for name, rows in runs.items():
        print(
            f"{name}: {totals[name] / count:.4f} nats a token, {changed[name] / count:.2%} of choices changed",
            f"({count} tokens, {rows.model.parameters:,} parameters)",
        )


if __name__ == "__main__":
    main()
