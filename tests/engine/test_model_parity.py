"""The forward pass against transformers, in fp32, over a grid of checkpoint shapes and ways to run a sequence."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers
from arc.engine.model.deepseek import DeepseekModel

from .deepseek_cases import (
    CASES,
    Case,
    Runner,
    assert_close,
    build,
    case_id,
    expected,
    hub_tensors,
    tokens_of,
)

PROMPT = 23  # five whole pages and a part


@cache
def pair(name: str) -> tuple[Case, transformers.PreTrainedModel, DeepseekModel]:
    """`name`: the backend and the case. The reference runs layer by layer, the C++ kernels a step in one call."""
    backend, _, case_name = name.partition(": ")
    case = next(case for case in CASES if case_id(case) == case_name)
    oracle = case.oracle()
    return case, oracle, build(case, hub_tensors(oracle), backend=backend)


every_case = pytest.mark.parametrize(
    "name", [f"{backend}: {case_id(case)}" for backend in ("torch", "native") for case in CASES]
)


@every_case
def test_a_whole_prompt(name):
    case, oracle, model = pair(name)
    tokens = tokens_of(case, PROMPT)
    assert_close(Runner(model).step({}, {"a": tokens})["a"], expected(oracle, tokens))


@every_case
def test_a_prompt_cut_at_every_place(name):
    case, oracle, model = pair(name)
    tokens = tokens_of(case, PROMPT, seed=1)
    want = expected(oracle, tokens)
    for cut in range(1, PROMPT):
        runner = Runner(model, seed=cut)
        parts = [runner.step({}, {"a": part})["a"] for part in (tokens[:cut], tokens[cut:])]
        assert_close(torch.cat(parts), want)


@every_case
def test_token_by_token_through_both_forms(name):
    case, oracle, model = pair(name)
    tokens = tokens_of(case, PROMPT, seed=2)
    want = expected(oracle, tokens)
    absorbed, expanded = Runner(model, seed=1), Runner(model, seed=2)
    assert_close(torch.cat([absorbed.step({"a": token})["a"] for token in tokens]), want)
    assert_close(torch.cat([expanded.step({}, {"a": [token]})["a"] for token in tokens]), want)


@every_case
def test_every_token_of_a_mixed_batch(name):
    """Decode and prompt rows of spread lengths, some with a prefix of their own, some with another row's pages."""
    case, oracle, model = pair(name)
    runner = Runner(model, pages=128, seed=3)
    texts = {row: tokens_of(case, length, seed=length) for row, length in ROWS.items()}
    texts["shares"] = texts["long"][:16] + tokens_of(case, 9, seed=99)
    texts["shares all but one"] = [*texts["long"][:16], 5]
    runner.step({}, {row: text[:-1] for row, text in texts.items() if row in DECODES and len(text) > 1})
    runner.step({}, {"chunked": texts["chunked"][:6]})
    runner.share("shares", "long", 16)
    runner.share("shares all but one", "long", 16)
    prompts = {row: text[runner.computed.get(row, 0) :] for row, text in texts.items() if row not in DECODES}
    got = runner.step({row: texts[row][-1] for row in DECODES}, prompts)
    assert got.keys() == texts.keys()
    for row, logits in got.items():
        assert_close(logits, expected(oracle, texts[row])[-logits.shape[0] :])


ROWS = {
    "first": 1,
    "short": 3,
    "long": 41,
    "page": 8,
    "near": 40,
    "chunked": 21,
    "new": 30,
    "one": 1,
    "ten": 10,
}
DECODES = ("short", "long", "first", "page", "near")


@every_case
def test_greedy_tokens_over_200_steps(name):
    """Each token is the argmax of transformers' logits for all tokens before it, so its greedy text is the same."""
    case, oracle, model = pair(name)
    tokens = tokens_of(case, 5)
    runner = Runner(model, seed=4)
    logits = runner.step({}, {"a": tokens})["a"]
    for _ in range(200):
        tokens.append(int(logits[-1].argmax()))
        logits = runner.step({"a": tokens[-1]})["a"]
    want = expected(oracle, tokens)
    assert want[4:-1].argmax(-1).tolist() == tokens[5:]
    assert_close(logits, want[-1:])
