"""What of this engine can be timed, and under which name: the profiler is handed this list and knows nothing else.

A new span is one line here, and a method called by name on its object. The tree comes of who calls whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ..model.attention import Attention
from ..model.deepseek import DeepseekModel
from ..model.mlp import DenseMlp, Experts
from ..profiler.sites import Detail, Role, Site, StepFacts, StepKind
from ..scheduler.types import Step
from .engine import Engine

FORWARD = "model_forward"

_ONE_CALL = (
    "the operation moe_experts takes it in one call; a backend that times its own sections tells it apart"
)
# Where the backend does not time its own sections.
NOT_TIMED: Mapping[str, str] = MappingProxyType(
    {"dispatch": _ONE_CALL, "combine": _ONE_CALL, "shared": _ONE_CALL}
)


def sites_of(engine: Engine) -> list[Site]:
    """In the order of a step."""
    runner = engine.runner

    def facts(step: Step) -> StepFacts:
        return StepFacts(kind_of(step), len(step.rows), step.tokens, engine.steps)

    return [
        Site("step", engine, "step", role=Role.ROOT, device=True),
        Site("scheduler.inbox", engine, "border", role=Role.LEAD),
        Site("scheduler.schedule", engine.scheduler, "schedule"),
        Site("forward", runner, "forward", role=Role.KIND, device=True, facts=facts),
        Site("pipeline.step", runner, "pipeline_step", device=True),
        Site("batch.layout", runner, "lay_out", device=True),
        Site(FORWARD, runner.model, "forward", device=True),
        *_of_model(runner.model),
        Site("sample", runner.sampler, "sample", device=True),
        Site("sample.faults", runner.sampler, "find_faults", role=Role.WAIT),
        Site("sample.fetch", runner.sampler, "fetch", role=Role.WAIT),
        Site("publish", engine, "publish"),
    ]


def kind_of(step: Step) -> StepKind:
    if step.decode_rows == len(step.rows):
        return "decode"
    return "mixed" if step.decode_rows else "prompt"


def _of_model(model: DeepseekModel) -> Iterator[Site]:
    yield Site("embed", model, "embed", Detail.OP, device=True)
    yield Site("plan", model, "plan", Detail.OP, device=True)
    for layer in model.layers:
        yield Site("mla_attn", layer.attention, "forward", Detail.LAYER, device=True, once_per=FORWARD)
        yield from _of_attention(layer.attention)
        if isinstance(layer.mlp, Experts):
            yield Site("moe", layer.mlp, "forward", Detail.LAYER, device=True, once_per=FORWARD)
            yield Site("gate", layer.mlp, "gate", Detail.OP, device=True)
            yield Site("experts", layer.mlp, "experts", Detail.OP, device=True)
        else:
            assert isinstance(layer.mlp, DenseMlp)
            yield Site("dense_mlp", layer.mlp, "forward", Detail.LAYER, device=True, once_per=FORWARD)
    yield Site("lm_head", model, "head", Detail.OP, device=True)


def _of_attention(attention: Attention) -> Iterator[Site]:
    """q_proj and kv_down read the same hidden state in one product where the query has a latent of its own: that
    product is kv_down, and q_proj the query's way up from its latent. The latent's norm and turn are in cache_write."""
    for name, method in (
        ("kv_down", "down"),
        ("q_proj", "query"),
        ("norm_rope", "turn"),
        ("cache_write", "write"),
        ("absorb", "absorb"),
        ("attend", "attend_latents"),
        ("v_up", "value"),
        ("attend", "attend_prompt"),
        ("kv_expand", "expand"),
        ("o_proj", "out"),
    ):
        yield Site(name, attention, method, Detail.OP, device=True)
