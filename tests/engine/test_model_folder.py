"""A folder that transformers saved, read as `arc serve` reads it: the same config, the same logits."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from arc.engine.model.checkpoint import Checkpoint
from arc.engine.model.deepseek import DeepseekModel
from arc.engine.model.hf_config import read_config
from arc.kernels import Target, resolve

from .deepseek_cases import CASES, CPU, Runner, assert_close, case_id, expected, tokens_of

# transformers has no moe_layer_freq, and without shared experts it saves matrices of no rows: no folder on the hub has
# such, so neither is a case here.
SAVED = [case for case in CASES if case.moe_layers is None and case.shared]


@pytest.mark.parametrize("case", SAVED, ids=case_id)
def test_a_saved_folder_is_the_same_model(case, tmp_path):
    oracle = case.oracle()
    oracle.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    meant = case.config()
    assert config.softmax_scale == pytest.approx(meant.softmax_scale, rel=1e-12)
    assert described(config) == described(meant)
    source = Checkpoint(tmp_path, config, dtype=torch.float32, device=CPU)
    kernels = resolve("auto", Target(CPU, torch.float32))
    model = DeepseekModel(config, source, dtype=torch.float32, device=CPU, kernels=kernels)
    source.finish()
    tokens = tokens_of(case, 19)
    runner = Runner(model)
    got = [
        runner.step({}, {"a": tokens[:15]})["a"],
        *(runner.step({"a": token})["a"] for token in tokens[15:]),
    ]
    assert_close(torch.cat(got), expected(oracle, tokens))


def described(config):
    """The config without what has several spellings of one meaning, or says nothing of the forward pass."""
    config = dataclasses.replace(config, softmax_scale=0.0, prediction_layers=0)
    if config.routing is None:
        config = dataclasses.replace(config, shared_experts=0, expert_intermediate=0)
    return config
