r"""Train the small model that the repository carries: `python -m arc.engine.carried.train --out DIR`.

Everything follows from SEED and the settings below: the held-out chapters, the tokenizer, the
initial weights and the order of the text. The number of steps is fixed, not the time: about an hour
on one CPU thread. These settings of the C library save a good part of that, since large buffers are
then kept for the next step and not returned to the system:

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296\
:glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=268435456
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from . import card, corpus, evaluate, export, optimiser
from .network import Network, Shape, head_loss

SEED = 1775  # the year of Jane Austen's birth
HELD_OUT_SHARE = 0.05
STEPS = 4500
TOKENS_PER_STEP = 4096
# Row length in tokens, and the share of the steps at which that length ends. Long rows cost more a
# token and teach little beyond using a long context, so they come last.
PHASES = ((256, 0.60), (512, 0.75), (1024, 0.90), (2048, 1.0))
LEARNING_RATE = 8e-3
WEIGHT_DECAY = 0.1
WARMUP_STEPS = 50
DECAY_FROM = 0.4  # share of the steps after which the learning rate falls, in a line, to zero
DROPOUT = 0.1  # until the learning rate falls: late in training the network underfits with it
# The routers' bias moves fast while the experts still look alike, slowly after, and not at the end.
BIAS_STEPS = ((0.1, 1e-2), (0.9, 1e-3), (1.0, 0.0))
MTP_DEPTHS = 2
MTP_WEIGHT = 0.3  # lambda of DeepSeek-V3, section 4.2
MTP_SHARE = 4  # the MTP layer learns on one row in so many: it is nearly as costly as the rest
BEGIN_SHARE = 0.5  # rows that start with the begin token though they start inside a chapter
REPORT_EVERY = 25
CHECKPOINT_EVERY = 500
WATCHED = 24  # held-out chapters that are scored at every checkpoint


@dataclass(frozen=True)
class Data:
    """The split text and the tokenizer made from its training part."""

    training: list[corpus.Document]
    held_out: list[corpus.Document]
    tokenizer: Tokenizer

    @property
    def training_tokens(self) -> int:
        """Length of the training text in tokens, begin and end tokens included."""
        return sum(len(corpus.encode(self.tokenizer, document)) for document in self.training)


def prepare(work: Path, shape: Shape) -> Data:
    """Fetch, split and tokenize."""
    training, held_out = corpus.split(corpus.fetch(work / "packages"), HELD_OUT_SHARE, SEED)
    return Data(training, held_out, corpus.train_tokenizer(training, shape.vocab_size))


def batches(chapters: Sequence[Tensor], steps: int) -> Iterator[Tensor]:
    """Token rows [B, T + 1] for every step; each pass over the text has its own order and its own cuts."""
    chooser = random.Random(SEED)
    step = 0
    for length, until in PHASES:
        rows: list[Tensor] = []
        while step < round(until * steps):
            size = max(1, TOKENS_PER_STEP // length)
            if len(rows) < size:
                order = chooser.sample(chapters, len(chapters))
                stream = torch.cat(order)[chooser.randrange(length) :]
                rows = list(stream[: len(stream) // length * length].view(-1, length))
                follows = [int(row[0]) for row in rows[1:]]
                rows = [_row(row, nxt, chooser) for row, nxt in zip(rows, follows, strict=False)]
                chooser.shuffle(rows)
            yield torch.stack([rows.pop() for _ in range(size)])
            step += 1


def _row(tokens: Tensor, following: int, chooser: random.Random) -> Tensor:
    """T tokens made T + 1: a begin token before them, or the token that follows after them."""
    if chooser.random() < BEGIN_SHARE:
        return torch.cat((torch.tensor([corpus.BEGIN_ID]), tokens))
    return torch.cat((tokens, torch.tensor([following])))


def learning_rate(step: int, steps: int) -> float:
    """Warm-up, plateau, then a straight line to zero."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    return LEARNING_RATE * min(warmup, (steps - step) / (steps * (1 - DECAY_FROM)))


def loss_of(network: Network, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(loss to minimise, mean nats a token of the main head) for token rows [B, T + 1]."""
    with torch.autocast("cpu", torch.bfloat16):
        inputs = rows[:, :-1]
        hidden = network(inputs)
        main = head_loss(hidden.flatten(0, 1), network.lm_head.weight, rows[:, 1:].flatten())
        few = max(1, len(rows) // MTP_SHARE)
        states = network.mtp(hidden[:few], network.embed_tokens(inputs[:few]), MTP_DEPTHS)
        extra = torch.zeros(())
        for depth, state in enumerate(states, 1):
            targets = rows[:few, 1 + depth :].flatten()
            extra = extra + head_loss(state.flatten(0, 1), network.lm_head.weight, targets)
    return main + MTP_WEIGHT / MTP_DEPTHS * extra, main.detach()


@dataclass
class Progress:
    """How far a run has come, and (step, bits a character) of some held-out chapters on the way."""

    steps: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, float]] = field(default_factory=list)


def fit(network: Network, data: Data, steps: int, checkpoint: Path) -> Progress:
    """Train in place.

    A run that was cut short goes on from its last checkpoint, to the same weights as without the cut:
    the batches of the steps done are drawn again and left, and the random state is restored.
    """
    optimisers = optimiser.build(network, LEARNING_RATE, WEIGHT_DECAY)
    chapters = [torch.tensor(corpus.encode(data.tokenizer, document)) for document in data.training]
    watched = data.held_out[:: max(1, len(data.held_out) // WATCHED)]
    progress = load(checkpoint, network, optimisers) if checkpoint.exists() else Progress()
    started, nats = time.perf_counter() - progress.seconds, 0.0
    for step, rows in enumerate(batches(chapters, steps)):
        if step < progress.steps:
            continue
        main, shares = advance(network, optimisers, rows, step, steps)
        nats += main / REPORT_EVERY
        progress.steps, progress.seconds = step + 1, time.perf_counter() - started
        if progress.steps % REPORT_EVERY == 0:
            speed = progress.steps * TOKENS_PER_STEP / progress.seconds
            load_text = " ".join(f"{share:.2f}" for share in shares)
            print(
                f"step {step + 1}: {nats:.3f} nats, {speed:.0f} tokens/s, top loads {load_text}", flush=True
            )
            nats = 0.0
        if progress.steps % CHECKPOINT_EVERY == 0:
            bits = evaluate.bits_per_character(network, data.tokenizer, watched, PHASES[0][0])
            print(f"step {step + 1}: {bits:.3f} bits a character held out", flush=True)
            progress.curve.append((step + 1, bits))
            save(checkpoint, network, optimisers, progress)
    return progress


def advance(
    network: Network, optimisers: Sequence[torch.optim.Optimizer], rows: Tensor, step: int, steps: int
) -> tuple[float, list[float]]:
    """One step; nats a token of the main head, and each router's largest share of tokens for one expert."""
    for one in optimisers:
        for group in one.param_groups:
            group["lr"] = learning_rate(step, steps)
    network.set_dropout(DROPOUT if step < DECAY_FROM * steps else 0.0)
    loss, main = loss_of(network, rows)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    for one in optimisers:
        one.step()
        one.zero_grad(set_to_none=True)
    bias_step = next(size for until, size in BIAS_STEPS if step < until * steps)
    return float(main), [router.balance(bias_step) for router in network.routers()]


def save(
    path: Path, network: Network, optimisers: Sequence[torch.optim.Optimizer], progress: Progress
) -> None:
    """Write a checkpoint beside the old one, then put it in its place: a crash leaves one that is whole."""
    content = {
        "network": network.state_dict(),
        "optimisers": [one.state_dict() for one in optimisers],
        "rng": torch.get_rng_state(),
        "step": progress.steps,
        "seconds": progress.seconds,
        "curve": progress.curve,
    }
    torch.save(content, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def load(path: Path, network: Network, optimisers: Sequence[torch.optim.Optimizer]) -> Progress:
    """Restore what `save` wrote."""
    content = torch.load(path)
    network.load_state_dict(content["network"])
    for one, state in zip(optimisers, content["optimisers"], strict=True):
        one.load_state_dict(state)
    torch.set_rng_state(content["rng"])
    return Progress(content["step"], content["seconds"], content["curve"])


def main() -> None:
    """Train, measure, and write the model folder."""
    parser = argparse.ArgumentParser(description="Train the small model that the repository carries.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--work", type=Path, default=Path("carried-work"), help="packages and checkpoint")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimiser steps of 4,096 tokens")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    shape = Shape()
    data = prepare(options.work, shape)
    network = Network(shape)
    progress = fit(network, data, options.steps, options.work / "checkpoint.pt")
    export.write(options.out, network, data.tokenizer)
    # What is measured is what was written, rounding included.
    written = export.read(options.out, shape)
    report = card.measure(written, data.tokenizer, data.training, data.held_out)
    tokens = options.steps * TOKENS_PER_STEP
    epochs = tokens / data.training_tokens
    run = card.Run(SEED, options.steps, tokens, epochs, progress.seconds, progress.curve)
    text = card.render(written, run, report)
    (options.out / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
