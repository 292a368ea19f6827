"""The work that `make bench` sends, fixed by a seed."""

from __future__ import annotations

import itertools

from arc.console.bench.work import Job, Lengths, Plan, Shape

CONTEXT = 2048


def _jobs(shape: Shape, prompt: Lengths, output: Lengths, rows: int, vocab: int, seed: int) -> list[Job]:
    return list(itertools.islice(Plan(shape, prompt, output, rows, vocab, CONTEXT).jobs(seed), rows))


def uniform(rows: int, vocab: int, seed: int, output: int = 128) -> list[Job]:
    """64 prompt tokens, `output` output tokens each."""
    return _jobs("uniform", Lengths(64, 64), Lengths(output, output), rows, vocab, seed)


def mixed(rows: int, vocab: int, seed: int) -> list[Job]:
    """Prompts of 16 to 512 tokens and outputs of 32 to 256, uniformly at random."""
    return _jobs("mixed", Lengths(16, 512), Lengths(32, 256), rows, vocab, seed)


def spread(rows: int, vocab: int, seed: int, output: int = 48) -> list[Job]:
    """Every row another KV length, far apart, all decoding at the same time: what shatters buckets."""
    return _jobs("spread", Lengths(16, 16), Lengths(output, output), rows, vocab, seed)


def prefill(vocab: int, seed: int, length: int = 1024) -> list[Job]:
    """One prompt of `length` tokens, one output token."""
    return _jobs("uniform", Lengths(length, length), Lengths(1, 1), 1, vocab, seed)
