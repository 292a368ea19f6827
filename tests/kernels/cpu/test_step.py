"""A step in one call against the same step operation by operation, on every level and any number of threads."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from arc.engine.model.deepseek import DeepseekModel
from arc.engine.model.layer import LayerStack
from arc.kernels import Target, resolve
from arc.kernels.cpu import NativeBackend, binding
from arc.kernels.dispatch import KernelSet
from arc.kernels.operations import Section
from arc.kernels.reference import BACKEND as TORCH

from tests.engine.deepseek_cases import (
    CASES,
    CPU,
    Case,
    DictSource,
    Runner,
    assert_close,
    case_id,
    expected,
    hub_tensors,
    tokens_of,
)

LOADED = binding.load()
assert not isinstance(LOADED, str), LOADED
LEVELS = binding.levels(LOADED)
WIDE = Case(
    "wide", 3, heads=8, q_lora_rank=48, kv_lora_rank=64, nope=32, rope=16, v=32, hidden=96, experts=12,
    top_k=3, groups=4, top_groups=2, layers=3,
)  # fmt: skip


def kernels(level: str, dtype: torch.dtype) -> KernelSet:
    return resolve("native", Target(CPU, dtype), (NativeBackend(level), TORCH))


def build(
    case: Case, tensors: dict[str, torch.Tensor], kernels: KernelSet, dtype: torch.dtype
) -> DeepseekModel:
    return DeepseekModel(case.config(), DictSource(tensors, dtype), dtype=dtype, device=CPU, kernels=kernels)


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts back how many threads torch, and with it the library, may use."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def mixed_steps(model: DeepseekModel, case: Case) -> list[dict[str, torch.Tensor]]:
    """A prompt step, one of decode rows and prompts together, and one of decode rows, over shuffled pages."""
    runner = Runner(model, pages=400)
    texts = {row: tokens_of(case, length, seed=length) for row, length in LENGTHS.items()}
    return [
        runner.step({}, {row: text[:-2] for row, text in texts.items()}),
        runner.step(
            {row: texts[row][-2] for row in ("a", "b", "c")}, {row: texts[row][-2:] for row in ("d", "e")}
        ),
        runner.step({row: texts[row][-1] for row in ("a", "b", "c")}),
    ]


LENGTHS = {"a": 3, "b": 300, "c": 34, "d": 70, "e": 9}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_mixed_step_on_every_level_against_transformers(case, level):
    oracle = case.oracle()
    model = build(case, hub_tensors(oracle), kernels(level, torch.float32), torch.float32)
    got = mixed_steps(model, case)
    for row, length in LENGTHS.items():
        parts = torch.cat([step[row] for step in got if row in step])
        assert_close(parts, expected(oracle, tokens_of(case, length, seed=length))[: len(parts)])


def logits_of(steps: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    return torch.cat([logits for step in steps for logits in step.values()])


def median_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Of the tokens' errors: where two experts score alike, rounding may choose the other one for a token."""
    return ((got - want).abs().amax(-1) / want.abs().amax(-1)).median().item()


@pytest.mark.parametrize("level", LEVELS)
def test_one_call_does_what_the_operations_do(level):
    tensors = {name: tensor.bfloat16().float() for name, tensor in hub_tensors(WIDE.oracle()).items()}
    runs: dict[tuple[torch.dtype, bool], torch.Tensor] = {}
    for dtype, whole in itertools.product((torch.float32, torch.bfloat16), (True, False)):
        ops = kernels(level, dtype)
        assert ops.decoder is not None
        chosen = ops if whole else dataclasses.replace(ops, decoder=None)
        runs[dtype, whole] = logits_of(mixed_steps(build(WIDE, tensors, chosen, dtype), WIDE))
    assert_close(runs[torch.float32, True], runs[torch.float32, False], 1e-5)
    # In bf16 the one call rounds less often between operations: nearer to fp32, and not farther than torch is.
    torch_ops = resolve("torch", Target(CPU, torch.bfloat16))
    reference = logits_of(mixed_steps(build(WIDE, tensors, torch_ops, torch.bfloat16), WIDE))
    truth = runs[torch.float32, False]
    bound = 1.2 * median_error(reference, truth)
    assert all(median_error(runs[torch.bfloat16, kind], truth) < bound for kind in (True, False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_number_of_threads_gives_the_same_bits(threads, dtype):
    tensors, ops = hub_tensors(WIDE.oracle()), kernels(LEVELS[0], dtype)
    model = build(WIDE, tensors, ops, dtype)
    torch.set_num_threads(1)
    want = mixed_steps(model, WIDE)
    for number, _ in itertools.product((2, 3, 7), range(25)):
        torch.set_num_threads(number)
        for one, other in zip(mixed_steps(model, WIDE), want, strict=True):
            assert all(torch.equal(one[row], logits) for row, logits in other.items())


def test_calls_at_once_do_not_meet(threads):
    """Three threads of Python on one model: whoever comes second runs on its own thread and memory."""
    model = build(WIDE, hub_tensors(WIDE.oracle()), kernels(LEVELS[0], torch.float32), torch.float32)
    torch.set_num_threads(3)
    want, wrong = mixed_steps(model, WIDE), []

    def run() -> None:
        for _ in range(20):
            for one, other in zip(mixed_steps(model, WIDE), want, strict=True):
                wrong.extend(row for row, logits in other.items() if not torch.equal(one[row], logits))

    callers = [threading.Thread(target=run) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


CHILDREN = {
    "mla_attn": {"q_proj", "kv_down", "norm_rope", "cache_write", "absorb", "attend", "v_up", "o_proj"},
    "moe": {"gate", "dispatch", "experts", "combine", "shared"},
    "dense_mlp": set(),
}


def test_sections_cover_the_step_and_nest():
    model = build(WIDE, hub_tensors(WIDE.oracle()), kernels(LEVELS[0], torch.float32), torch.float32)
    stamps = model._kernels.stamps
    assert stamps is not None
    mixed_steps(model, WIDE)
    assert stamps.take() == []  # nothing is recorded that was not asked for
    stamps.record(True)
    began = time.perf_counter_ns()
    runner = Runner(model)
    runner.step({}, {"a": [1, 2, 3]})
    runner.step({"a": 4})
    ended = time.perf_counter_ns()
    stamps.record(False)
    runner.step({"a": 5})
    sections = stamps.take()
    assert stamps.take() == []
    parents: list[tuple[Section, set[str]]] = []
    for section in sections:
        assert began <= section.began <= section.ended <= ended
        if section.name in CHILDREN:
            parents.append((section, set()))
        else:
            parent, children = parents[-1]
            assert parent.layer == section.layer
            assert parent.began <= section.began and section.ended <= parent.ended
            children.add(section.name)
    assert [(parent.name, parent.layer) for parent, _ in parents] == 2 * [
        ("mla_attn", 0), ("dense_mlp", 0), ("mla_attn", 1), ("moe", 1), ("mla_attn", 2), ("moe", 2),
    ]  # fmt: skip
    assert all(children == CHILDREN[parent.name] for parent, children in parents)


def test_a_stack_may_be_any_layers():
    """As a prediction layer needs it: one layer over a cache of its own, its hidden states for all tokens."""
    model = build(WIDE, hub_tensors(WIDE.oracle()), kernels(LEVELS[0], torch.float32), torch.float32)
    runner = Runner(model)
    batch = runner.batch([("a", [1, 2, 3, 4])], 0)
    step = model.plan(batch, runner.page_size)
    assert model._kernels.decoder is not None
    one, other = model.embed(batch.token_ids), model.embed(batch.token_ids)
    stacks = [LayerStack(model.config, model._kernels, [layer], model._final_norm) for layer in model.layers]
    hidden = one.new_empty(0)
    for stack, latents in zip(stacks, runner.cache.layers, strict=True):
        hidden = stack.run(one, [latents], step, torch.float32)
    assert torch.equal(hidden, model.run_layers(other, runner.cache, step))
    assert torch.equal(one, other) and hidden.shape == (4, WIDE.hidden)
