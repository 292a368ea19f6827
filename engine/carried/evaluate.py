"""What is measured on the finished network: bits a character, agreement of the drafts, sample texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from .corpus import BEGIN_ID, END_ID, Document, encode
from .network import Network


@torch.no_grad()
def bits_per_character(
    network: Network, tokenizer: Tokenizer, documents: Sequence[Document], window: int
) -> float:
    """Total surprise of the documents in bits, end tokens included, over their number of characters.

    A long chapter is read in windows that overlap by half, each token scored once: with at least
    window / 2 tokens of context, but for those near the chapter's beginning.
    """
    network.eval()
    nats, characters = 0.0, 0
    for document in documents:
        tokens = torch.tensor(encode(tokenizer, document))
        characters += len(document.text)
        scored = 1
        for start in range(0, len(tokens) - 1, window // 2):
            part = tokens[start : start + window + 1]
            logits = network.lm_head(network(part[None, :-1]))[0]
            losses = F.cross_entropy(logits.float(), part[1:], reduction="none")
            nats += float(losses[scored - start - 1 :].double().sum())
            scored = start + len(part)
            if scored == len(tokens):
                break
    network.train()
    return nats / math.log(2) / characters


@torch.no_grad()
def agreement(network: Network, rows: Sequence[Tensor], depths: int, first: int) -> list[float]:
    """For each depth, the share of drafts that are the token which the network itself ranks first.

    Tokens of each row [T] from index `first` on are drafted. A draft of depth d sees the given tokens
    up to the one before its target, as a draft does whose predecessors were all accepted.
    """
    network.eval()
    hits, drafts = [0] * depths, [0] * depths
    for row in rows:
        hidden = network(row[None])
        own = network.lm_head(hidden)[0].argmax(-1)
        states = network.mtp(hidden, network.embed_tokens(row[None]), depths)
        for index, state in enumerate(states):
            # State j of this depth drafts token j + index + 2, which own[j + index + 1] ranks.
            skipped = max(0, first - index - 2)
            same = (network.lm_head(state)[0].argmax(-1) == own[index + 1 :])[skipped:]
            hits[index] += int(same.sum())
            drafts[index] += len(same)
    network.train()
    return [hit / count for hit, count in zip(hits, drafts, strict=True)]


@dataclass(frozen=True)
class Sampling:
    """Sampling from the `top_k` likeliest tokens at `temperature`, with a seed of its own."""

    temperature: float
    top_k: int
    seed: int


@torch.no_grad()
def continuation(
    network: Network, prompt: list[int], tokens: int, sampling: Sampling | None = None
) -> list[int]:
    """The prompt and up to `tokens` tokens after it, fewer if the text ends; greedy without `sampling`."""
    network.eval()
    generator = torch.Generator().manual_seed(sampling.seed if sampling else 0)
    ids = list(prompt)
    for _ in range(tokens):
        logits = network.lm_head(network(torch.tensor([ids]))[:, -1])[0]
        logits[BEGIN_ID] = -torch.inf  # in training it follows an end only
        if sampling:
            best = logits.topk(sampling.top_k)
            odds = (best.values / sampling.temperature).softmax(-1)
            token = int(best.indices[torch.multinomial(odds, 1, generator=generator)])
        else:
            token = int(logits.argmax())
        if token == END_ID:
            break
        ids.append(token)
    network.train()
    return ids
