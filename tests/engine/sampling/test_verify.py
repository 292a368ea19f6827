"""Verified drafts leave what is drawn as it is: the same tokens from the same seed, and the same distribution."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from arc.engine.sampling.sampler import Sampler
from arc.engine.sampling.verify import verify
from arc.engine.sequence import Sequence
from hypothesis import given, settings
from hypothesis import strategies as st

from .reference import sequence

VOCAB = 6
# A model that looks at the last token alone: row t has the logits of what follows t.
MODEL = torch.from_numpy(np.random.default_rng(5).normal(size=(VOCAB, VOCAB)).astype(np.float32)) * 1.5


def logits_of(sequences: list[Sequence], drafts: list[tuple[int, ...]]) -> torch.Tensor:
    last = [
        token for seq, drafted in zip(sequences, drafts, strict=True) for token in (seq.tokens[-1], *drafted)
    ]
    return MODEL[last].clone()


def likeliest(seq: Sequence, depth: int) -> tuple[int, ...]:
    drafted: list[int] = []
    for _ in range(depth):
        drafted.append(int(MODEL[drafted[-1] if drafted else seq.tokens[-1]].argmax()))
    return tuple(drafted)


def run(sequences: list[Sequence], tokens: int, guess: Any) -> None:
    """Step after step, until each has so many tokens; a row that has them already goes on in vain."""
    sampler = Sampler(VOCAB, "cpu", frozenset())
    while any(seq.output_len < tokens for seq in sequences):
        drafts = [guess(seq) for seq in sequences]
        verified = verify(sampler, logits_of(sequences, drafts), sequences, drafts)
        assert not verified.faults
        for seq, new in zip(sequences, verified.tokens, strict=True):
            seq.tokens.extend(new)


def odds(prefix: list[int], produced: list[int], params: dict[str, Any]) -> np.ndarray:
    """The distribution of the next token, as plainly as can be."""
    logits = MODEL[prefix[-1]].double().numpy().copy()
    for token, times in Counter(produced).items():
        logits[token] -= times * params.get("frequency_penalty", 0.0) + params.get("presence_penalty", 0.0)
    logits /= params.get("temperature", 1.0)
    weights = np.exp(logits - logits.max())
    weights[weights < params.get("min_p", 0.0)] = 0
    if params.get("top_k"):
        weights[np.argsort(-weights)[params["top_k"] :]] = 0
    if params.get("top_p", 1.0) < 1:
        order = np.argsort(-weights)
        before = np.cumsum(weights[order]) - weights[order]
        weights[order[before >= params["top_p"] * weights.sum()]] = 0
    return weights / weights.sum()


WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.3, "top_k": 4},
    {"top_p": 0.8},
    {"min_p": 0.2},
    {"frequency_penalty": 1.5, "presence_penalty": 0.5, "temperature": 0.9},
]


@pytest.mark.parametrize("params", WAYS, ids=str)
@pytest.mark.parametrize("guess", ["the likeliest", "anything"])
def test_three_tokens_have_the_models_own_distribution(params: dict[str, Any], guess: str) -> None:
    """Chi-square over all outcomes of three tokens. Seeds are fixed, so the verdict is, too."""
    count = 4000
    sequences = [sequence(number, prompt=(0, 3), seed=number, **params) for number in range(count)]
    guesses = np.random.default_rng(1)

    def drafts(seq: Sequence) -> tuple[int, ...]:
        if guess == "anything":
            return tuple(guesses.integers(VOCAB, size=guesses.integers(4)).tolist())
        return likeliest(seq, 3)

    run(sequences, 3, drafts)
    seen = Counter(tuple(seq.tokens[2:5]) for seq in sequences)
    expected: dict[tuple[int, ...], float] = {}
    for outcome in itertools.product(range(VOCAB), repeat=3):
        chance = 1.0
        for place in range(3):
            produced = list(outcome[:place])
            chance *= odds([3, *produced], produced, params)[outcome[place]]
        if chance:
            expected[outcome] = count * chance
    assert seen.keys() <= expected.keys()
    cells = [(seen[outcome], mean) for outcome, mean in expected.items() if mean >= 5]
    rest = [(seen[outcome], mean) for outcome, mean in expected.items() if mean < 5]
    if rest:
        cells.append((sum(found for found, _ in rest), sum(mean for _, mean in rest)))
    statistic = sum((found - mean) ** 2 / mean for found, mean in cells)
    freedom = len(cells) - 1
    # the upper 0.1 % point by Wilson and Hilferty's approximation
    bound = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < bound, f"{statistic:.1f} over {freedom} degrees of freedom"


edits = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**32), "temperature": st.sampled_from([0.0, 0.7, 1.0, 1.6])},
    optional={
        "top_k": st.integers(1, VOCAB),
        "top_p": st.floats(0.2, 1.0),
        "min_p": st.floats(0.0, 0.5),
        "frequency_penalty": st.floats(-1.0, 1.0),
        "presence_penalty": st.floats(-1.0, 1.0),
        "repetition_penalty": st.floats(0.5, 2.0),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-3, 3), max_size=3),
        "min_tokens": st.integers(0, 9),
        "stop_token_ids": st.lists(st.integers(0, 2), max_size=2).map(tuple),
        "logprobs": st.integers(0, 3),
    },
)


@settings(max_examples=60, deadline=None)
@given(st.lists(edits, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_drafts_change_no_token_and_no_logprob_whatever_is_asked_for(params, random) -> None:
    def answer(guess: Any) -> list[list[int]]:
        sequences = [sequence(number, prompt=(1, 4), **each) for number, each in enumerate(params)]
        run(sequences, 12, guess)
        return [seq.tokens[:14] for seq in sequences]

    def some(seq: Sequence) -> tuple[int, ...]:
        good = likeliest(seq, random.randrange(5))
        return tuple(token if random.random() < 0.8 else random.randrange(VOCAB) for token in good)

    assert answer(some) == answer(lambda seq: ())


def test_a_row_with_a_fault_at_any_place_is_lost_and_its_neighbours_are_not() -> None:
    sequences = [sequence(number, prompt=(1, 4), temperature=0.0) for number in range(3)]
    drafts = [likeliest(seq, 2) for seq in sequences]
    logits = logits_of(sequences, drafts)
    logits[5] = math.nan  # after the second row's last draft
    verified = verify(Sampler(VOCAB, "cpu", frozenset()), logits, sequences, drafts)
    assert verified.faults.keys() == {1}
    assert verified.tokens[0] == verified.tokens[2] == likeliest(sequences[0], 3)


def test_every_kept_token_has_its_own_logprob() -> None:
    seq = sequence(0, prompt=(1, 4), temperature=0.0, logprobs=2)
    wrong = (*likeliest(seq, 3)[:2], (likeliest(seq, 3)[2] + 1) % VOCAB)
    verified = verify(Sampler(VOCAB, "cpu", frozenset()), logits_of([seq], [wrong]), [seq], [wrong])
    assert verified.tokens == [likeliest(seq, 3)]
    (records,) = verified.logprobs
    assert records is not None
    assert [record.token_id for record in records] == list(likeliest(seq, 3))
    for last, record in zip((4, *wrong), records, strict=False):
        assert record.logprob == pytest.approx(float(MODEL[last].log_softmax(-1)[record.token_id]), abs=1e-5)
        assert len(record.top) == 2
