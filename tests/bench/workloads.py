"""The work that a run sends: prompts as token ids and output lengths, fixed by a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    prompt: tuple[int, ...]
    output: int  # tokens, end of sequence ignored
    temperature: float = 0.0


def _prompt(rng: random.Random, vocab: int, length: int) -> tuple[int, ...]:
    # Low ids are special tokens in most vocabularies.
    return tuple(rng.randrange(16, vocab) for _ in range(length))


def uniform(rows: int, vocab: int, seed: int, output: int = 128) -> list[Job]:
    """64 prompt tokens, `output` output tokens each."""
    rng = random.Random(f"uniform {rows} {seed}")
    return [Job(_prompt(rng, vocab, 64), output) for _ in range(rows)]


def mixed(rows: int, vocab: int, seed: int) -> list[Job]:
    """Prompts of 16 to 512 tokens and outputs of 32 to 256, uniformly at random."""
    rng = random.Random(f"mixed {rows} {seed}")
    return [Job(_prompt(rng, vocab, rng.randint(16, 512)), rng.randint(32, 256)) for _ in range(rows)]


def spread(rows: int, vocab: int, seed: int, output: int = 48) -> list[Job]:
    """Every row another KV length, more than 64 tokens apart, all decoding at the same time: what shatters buckets."""
    rng = random.Random(f"spread {rows} {seed}")
    apart = min(128, 1900 // rows) if rows > 1 else 128
    return [Job(_prompt(rng, vocab, 16 + apart * row), output) for row in range(rows)]


def prefill(vocab: int, seed: int, length: int = 1024) -> list[Job]:
    """One prompt of `length` tokens, one output token."""
    rng = random.Random(f"prefill {length} {seed}")
    return [Job(_prompt(rng, vocab, length), 1)]
