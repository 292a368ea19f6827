"""What int8 and int4 weights cost: the carried model's loss and its choices, against the weights as stored.

    python -m tests.bench.weights [--tokens N]

The text is the model's own at temperature 0.7, drawn with the weights as stored from an empty context, so that all see
the same tokens and nothing needs to be fetched. Loss is in nats a token; a changed choice is another most likely token.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from arc.engine.folder import CARRIED
from arc.engine.model.batch import ForwardBatch
from arc.engine.model.cache import LatentCache
from arc.engine.model.checkpoint import Checkpoint
from arc.engine.model.deepseek import DeepseekModel
from arc.engine.model.hf_config import read_config
from arc.kernels import Target, resolve

CPU = torch.device("cpu")
PAGE = 16
ROWS = 16


def load(weights: str) -> DeepseekModel:
    config = read_config(CARRIED)
    source = Checkpoint(CARRIED, config, dtype=torch.bfloat16, device=CPU)
    kernels = resolve("native", Target(CPU, torch.bfloat16, weights))
    return DeepseekModel(config, source, dtype=torch.bfloat16, device=CPU, kernels=kernels)


class Rows:
    """ROWS sequences that grow together."""

    def __init__(self, model: DeepseekModel, tokens: int) -> None:
        pages = -(-tokens // PAGE)
        config = model.config
        self.model = model
        self.cache = LatentCache(
            config.layers, ROWS * pages, PAGE, config.latent_width, dtype=model.dtype, device=CPU
        )
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
    runs = {name: Rows(load(name), args.tokens) for name in ("stored", "int8", "int4")}
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
