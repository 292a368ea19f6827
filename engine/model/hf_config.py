"""A checkpoint's config.json as a ModelConfig. Torch-free.

The published files differ in age and author: keys have old and new spellings, and some describe what only the
original modelling code reads. The meaning followed here is transformers' (models/deepseek_v2 and
models/deepseek_v3) on every config that it supports; where the original code and transformers give one config
two meanings, it is refused rather than served as a guess. A key that changes the computation is read or
refused; any other is ignored.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, cast

from ..folder import CheckpointError, JsonObject, read_json
from .config import ModelConfig, Rope, Routing

if TYPE_CHECKING:
    from pathlib import Path

ModelType = Literal["deepseek_v2", "deepseek_v3"]
Dtype = Literal["bfloat16", "float16", "float32"]

# kimi_k2 is DeepSeek-V3's architecture under a name of its own: its config.json names DeepseekV3ForCausalLM
SERVED: dict[str, ModelType] = {
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
    "kimi_k2": "deepseek_v3",
}
DTYPES = ("bfloat16", "float16", "float32")
LAYERS_MAX = 1024


def read_config(folder: Path) -> ModelConfig:
    """The model that `folder`/config.json describes.

    Raises CheckpointError when the file is missing or malformed, describes a model that is not served, or
    holds a value that makes no sense; the message names the file, the key, the value and what is allowed.
    """
    path = folder / "config.json"
    if not path.exists() and (folder / "params.json").exists():
        raise CheckpointError(
            f"{folder} is in Mistral's own format (params.json, consolidated weights), which is not served; "
            "convert it to a Hugging Face folder with config.json"
        )
    file = read_json(path)
    model_type = read_model_type(file)
    refuse_other_computation(file, model_type)

    heads = file.integer("num_attention_heads", at_least=1)
    if file.integer("num_key_value_heads", at_least=1, default=heads) != heads:
        raise file.error("num_key_value_heads", f"latent attention has one per attention head, {heads}")
    layers = file.integer("num_hidden_layers", at_least=1, at_most=LAYERS_MAX)
    nope_dim = file.integer("qk_nope_head_dim", at_least=1)
    rope_dim = file.integer("qk_rope_head_dim", at_least=2)
    if rope_dim % 2:
        raise file.error("qk_rope_head_dim", "it must be even: rotation works on pairs")
    max_position = file.integer("max_position_embeddings", at_least=1)
    rope = read_rope(file, rope_dim, model_type)
    moe_layers = read_moe_layers(file, layers)
    has_experts = any(moe_layers)
    return ModelConfig(
        model_type=model_type,
        vocab_size=file.integer("vocab_size", at_least=1),
        hidden=file.integer("hidden_size", at_least=1),
        layers=layers,
        heads=heads,
        q_lora_rank=read_q_lora_rank(file),
        kv_lora_rank=file.integer("kv_lora_rank", at_least=1),
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        v_dim=file.integer("v_head_dim", at_least=1),
        dense_intermediate=file.integer("intermediate_size", at_least=1),
        expert_intermediate=file.integer("moe_intermediate_size", at_least=1) if has_experts else 0,
        shared_experts=file.integer("n_shared_experts", at_least=0, default=0) if has_experts else 0,
        moe_layers=moe_layers,
        routing=read_routing(file, model_type) if has_experts else None,
        rope=rope,
        rms_eps=file.number("rms_norm_eps", above=0),
        attention_bias=file.flag("attention_bias", default=False),
        tied_embeddings=file.flag("tie_word_embeddings", default=False),
        max_position=max_position,
        prediction_layers=read_prediction_layers(file),
        dtype=read_dtype(file),
        fp8_block=read_fp8_block(file),
        softmax_scale=softmax_scale(file, rope, nope_dim + rope_dim),
    )


def read_model_type(file: JsonObject) -> ModelType:
    name = file.choice("model_type", SERVED)
    architectures = file.values.get("architectures")
    if name == "kimi_k2" and architectures != ["DeepseekV3ForCausalLM"]:
        raise file.error("architectures", 'kimi_k2 is served as ["DeepseekV3ForCausalLM"] only')
    return SERVED[name]


def refuse_other_computation(file: JsonObject, model_type: ModelType) -> None:
    """Refuse the keys that say the model computes something else than the served forward pass."""
    file.choice("hidden_act", ("silu",), default="silu")
    if file.flag("mlp_bias", default=False):
        raise file.error("mlp_bias", "only false is served")
    if not file.flag("rope_interleave", default=True) and model_type == "deepseek_v2":
        raise file.error("rope_interleave", "deepseek_v2 always rotates interleaved pairs")
    if file.has("llama_4_scaling"):
        raise file.error("llama_4_scaling", "queries scaled by position are not served")


def read_q_lora_rank(file: JsonObject) -> int | None:
    if "q_lora_rank" not in file.values:  # absent and null differ: the published classes default to 1536
        raise file.error(
            "q_lora_rank", "it must be an integer of at least 1, or null for one full query projection"
        )
    return file.integer("q_lora_rank", at_least=1) if file.has("q_lora_rank") else None


def read_moe_layers(file: JsonObject, layers: int) -> tuple[bool, ...]:
    """Which layers hold experts: from first_k_dense_replace on, each moe_layer_freq-th, or as it lists."""
    if not file.has("n_routed_experts"):
        return (False,) * layers
    first = file.integer("first_k_dense_replace", at_least=0)
    frequency = file.values.get("moe_layer_freq", 1)
    if isinstance(frequency, list):
        if len(frequency) != layers or not all(type(entry) is int and entry in (0, 1) for entry in frequency):
            raise file.error(
                "moe_layer_freq", f"as a list it must hold 0 or 1 for each of the {layers} layers"
            )
        return tuple(layer >= first and entry == 1 for layer, entry in enumerate(frequency))
    every = file.integer("moe_layer_freq", at_least=1, default=1)
    return tuple(layer >= first and layer % every == 0 for layer in range(layers))


def read_routing(file: JsonObject, model_type: ModelType) -> Routing:
    experts = file.integer("n_routed_experts", at_least=1)
    top_k = file.integer("num_experts_per_tok", at_least=1, at_most=experts)
    scale = file.number(
        "routed_scaling_factor", above=0, default=1.0 if model_type == "deepseek_v2" else None
    )
    why = f" for {model_type}"
    if model_type == "deepseek_v2":
        file.choice("scoring_func", ("softmax",), default="softmax", why=why)
        method = file.choice("topk_method", ("greedy", "group_limited_greedy"), default="greedy", why=why)
        if file.flag("norm_topk_prob", default=False):
            # transformers scales without normalising, the original normalises without scaling
            raise file.error(
                "norm_topk_prob", "only false is served for deepseek_v2: implementations disagree on true"
            )
        if method == "greedy":
            return Routing(
                "softmax", experts, top_k, 1, 1, "greedy", bias=False, normalise=False, scale=scale
            )
        groups, top_groups = read_groups(file, experts, top_k, group_at_least=1)
        return Routing("softmax", experts, top_k, groups, top_groups, "group_max", False, False, scale)
    file.choice("scoring_func", ("sigmoid",), default="sigmoid", why=why)
    file.choice("topk_method", ("noaux_tc",), default="noaux_tc", why=why)
    groups, top_groups = read_groups(file, experts, top_k, group_at_least=2)
    normalise = file.flag("norm_topk_prob")
    return Routing("sigmoid", experts, top_k, groups, top_groups, "group_top2", True, normalise, scale)


def read_groups(file: JsonObject, experts: int, top_k: int, *, group_at_least: int) -> tuple[int, int]:
    groups = file.integer("n_group", at_least=1, at_most=experts)
    if experts % groups:
        raise file.error("n_group", f"it must divide n_routed_experts, {experts}")
    if experts // groups < group_at_least:
        raise file.error(
            "n_group", f"a group scores by its {group_at_least} best, and {experts} experts are too few"
        )
    top_groups = file.integer("topk_group", at_least=1, at_most=groups)
    if top_k > top_groups * (experts // groups):
        raise file.error(
            "num_experts_per_tok",
            f"topk_group {top_groups} of n_group {groups} leaves {top_groups * (experts // groups)} experts",
        )
    return groups, top_groups


def rope_object(file: JsonObject) -> JsonObject | None:
    """rope_parameters (new) or rope_scaling (old); both may be there when they agree."""
    new, old = file.object("rope_parameters"), file.object("rope_scaling")
    if new is None or old is None:
        return new or old
    for key, value in old.values.items():
        if key in new.values and new.values[key] != value:
            raise old.error(key, f"rope_parameters.{key} contradicts it")
    return new


def rope_kind(scaling: JsonObject | None) -> Literal["default", "yarn"]:
    if scaling is None:
        return "default"
    spelling = "rope_type" if scaling.has("rope_type") else "type"
    if scaling.has("type") and scaling.values["type"] != scaling.values[spelling]:
        raise scaling.error("type", f"{scaling.prefix}rope_type contradicts it")
    return cast(
        "Literal['default', 'yarn']", scaling.choice(spelling, ("default", "yarn"), default="default")
    )


def rope_theta(file: JsonObject, scaling: JsonObject | None) -> float:
    if scaling is None or not scaling.has("rope_theta"):
        return file.number("rope_theta", above=1, default=10000.0)
    theta = scaling.number("rope_theta", above=1)
    if file.number("rope_theta", above=1, default=theta) != theta:
        raise file.error("rope_theta", f"{scaling.prefix}rope_theta contradicts it with {theta:g}")
    return theta


def read_rope(file: JsonObject, dim: int, model_type: ModelType) -> Rope:
    """The rotary embedding. mscale and mscale_all_dim are given so that
    `yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)` multiplies cosine and sine.
    """
    scaling = rope_object(file)
    theta = rope_theta(file, scaling)
    interleaved = model_type == "deepseek_v2" or file.flag("rope_interleave", default=True)
    if scaling is None or rope_kind(scaling) == "default":
        return Rope(theta, dim, interleaved)
    for key, served in (("attention_factor", None), ("truncate", True), ("partial_rotary_factor", 1)):
        if scaling.values.get(key, served) not in (None, served):
            raise scaling.error(key, "it is not served; leave it out")
    beta_slow = scaling.number("beta_slow", above=0, default=1.0)
    mscale = scaling.number("mscale", at_least=0, default=0.0)
    mscale_all_dim = scaling.number("mscale_all_dim", at_least=0, default=0.0)
    if not (mscale and mscale_all_dim):  # transformers takes the two together or not at all
        mscale, mscale_all_dim = 1.0, 0.0
    return Rope(
        theta,
        dim,
        interleaved,
        kind="yarn",
        factor=scaling.number("factor", at_least=1),
        original_max_position=scaling.integer("original_max_position_embeddings", at_least=1),
        beta_fast=scaling.number("beta_fast", at_least=beta_slow, default=32.0),
        beta_slow=beta_slow,
        mscale=mscale,
        mscale_all_dim=mscale_all_dim,
    )


def yarn_mscale(factor: float, mscale: float) -> float:
    """0.1 mscale ln(factor) + 1 (YaRN, arXiv:2309.00071, section 3.4, with DeepSeek's weight `mscale`)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def softmax_scale(file: JsonObject, rope: Rope, query_width: int) -> float:
    """query_width^-0.5, times yarn_mscale^2 when mscale_all_dim asks for it, with or without mscale."""
    scaling = rope_object(file)
    scale = query_width**-0.5
    if rope.kind == "default" or scaling is None:
        return scale
    return scale * yarn_mscale(rope.factor, scaling.number("mscale_all_dim", at_least=0, default=0.0)) ** 2


def read_prediction_layers(file: JsonObject) -> int:
    """num_nextn_predict_layers, or transformers' num_mtp_layers; 0 when the file says nothing."""
    key = "num_nextn_predict_layers" if file.has("num_nextn_predict_layers") else "num_mtp_layers"
    return file.integer(key, at_least=0, at_most=LAYERS_MAX, default=0)


def read_dtype(file: JsonObject) -> Dtype:
    key = "dtype" if file.has("dtype") else "torch_dtype"
    return cast("Dtype", file.choice(key, DTYPES))


def read_fp8_block(file: JsonObject) -> tuple[int, int] | None:
    quantization = file.object("quantization_config")
    if quantization is None:
        return None
    quantization.choice("quant_method", ("fp8",))
    quantization.choice("fmt", ("e4m3",), default="e4m3")
    block = quantization.values.get("weight_block_size")
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(n) is int and 0 < n <= 2**16 for n in block)
    ):
        raise quantization.error(
            "weight_block_size", "it must be two positive integers, the rows and columns of a block"
        )
    return block[0], block[1]
