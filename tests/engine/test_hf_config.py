"""config.json: published files, transformers' own reading of them, and everything that can be wrong with one."""

from __future__ import annotations

import copy
import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from arc.engine.folder import CheckpointError
from arc.engine.model.config import ModelConfig, Rope, Routing
from arc.engine.model.hf_config import read_config, yarn_mscale
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3

from .published_configs import (
    DEEPSEEK_V2,
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    KIMI_K2,
    MOONLIGHT,
    PUBLISHED,
)

if TYPE_CHECKING:
    from pathlib import Path

YARN = DEEPSEEK_V3["rope_scaling"]


def read(folder: Path, config: object) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return read_config(folder)


def refusal(folder: Path, config: object) -> str:
    with pytest.raises(CheckpointError) as refused:
        read(folder, config)
    return str(refused.value)


# Published files


def test_deepseek_v3(tmp_path: Path) -> None:
    config = read(tmp_path, DEEPSEEK_V3)
    assert config == ModelConfig(
        model_type="deepseek_v3",
        vocab_size=129280,
        hidden=7168,
        layers=61,
        heads=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        nope_dim=128,
        rope_dim=64,
        v_dim=128,
        dense_intermediate=18432,
        expert_intermediate=2048,
        shared_experts=1,
        moe_layers=(False,) * 3 + (True,) * 58,
        routing=Routing("sigmoid", 256, 8, 8, 4, "group_top2", bias=True, normalise=True, scale=2.5),
        rope=Rope(10000.0, 64, True, "yarn", 40.0, 4096, 32.0, 1.0, 1.0, 1.0),
        rms_eps=1e-6,
        attention_bias=False,
        tied_embeddings=False,
        max_position=163840,
        prediction_layers=1,
        dtype="bfloat16",
        fp8_block=(128, 128),
        softmax_scale=config.softmax_scale,
    )
    assert config.softmax_scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert config.latent_width == 576


def test_deepseek_v2(tmp_path: Path) -> None:
    lite, large = read(tmp_path, DEEPSEEK_V2_LITE), read(tmp_path, DEEPSEEK_V2)
    assert lite.model_type == "deepseek_v2"
    assert lite.q_lora_rank is None
    assert lite.routing == Routing("softmax", 64, 6, 1, 1, "greedy", bias=False, normalise=False, scale=1.0)
    assert lite.moe_layers == (False,) + (True,) * 26
    assert lite.prediction_layers == 0
    assert lite.fp8_block is None
    assert lite.softmax_scale == pytest.approx(192**-0.5 * (0.0707 * math.log(40) + 1) ** 2)
    assert large.q_lora_rank == 1536
    assert large.routing == Routing("softmax", 160, 6, 8, 3, "group_max", False, False, 16.0)


def test_kimi_k2_and_moonlight_are_deepseek_v3(tmp_path: Path) -> None:
    kimi, moonlight = read(tmp_path, KIMI_K2), read(tmp_path, MOONLIGHT)
    assert kimi.model_type == moonlight.model_type == "deepseek_v3"
    assert kimi.routing == Routing("sigmoid", 384, 8, 1, 1, "group_top2", True, True, 2.827)
    assert kimi.rope == Rope(50000.0, 64, True, "yarn", 32.0, 4096, 1.0, 1.0, 1.0, 1.0)
    assert moonlight.rope == Rope(50000.0, 64, True)
    assert moonlight.q_lora_rank is None
    assert moonlight.rms_eps == 1e-5
    assert moonlight.softmax_scale == pytest.approx(192**-0.5)


def test_kimi_k2_by_another_architecture_is_refused(tmp_path: Path) -> None:
    assert "architectures" in refusal(
        tmp_path, KIMI_K2 | {"architectures": ["KimiK25ForConditionalGeneration"]}
    )


def test_mistral_large_3_is_refused_by_its_format(tmp_path: Path) -> None:
    # It is published as params.json with tensor names of its own, and scales queries by position (llama_4_scaling).
    (tmp_path / "params.json").write_text('{"dim": 7168, "n_layers": 61}')
    with pytest.raises(CheckpointError, match=r"Mistral's own format \(params\.json"):
        read_config(tmp_path)
    converted = DEEPSEEK_V3 | {"llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 8192}}
    assert "llama_4_scaling" in refusal(tmp_path, converted)


@pytest.mark.parametrize("model_type", ["deepseek_v32", "llama", "mistral3", "kimi_k25", "", None, 3])
def test_other_models_are_refused_with_what_is_served(tmp_path: Path, model_type: object) -> None:
    message = refusal(tmp_path, DEEPSEEK_V3 | {"model_type": model_type})
    assert "model_type" in message
    assert "deepseek_v2, deepseek_v3, kimi_k2" in message


# Spellings


def new_spelling(config: dict[str, Any]) -> dict[str, Any]:
    """As transformers 5 writes it: rope_parameters holds theta, `rope_type`, and `dtype`."""
    new = {
        key: value
        for key, value in config.items()
        if key not in ("rope_scaling", "rope_theta", "torch_dtype")
    }
    scaling = dict(config.get("rope_scaling") or {"type": "default"})
    scaling["rope_type"] = scaling.pop("type")
    return new | {
        "rope_parameters": scaling | {"rope_theta": config["rope_theta"]},
        "dtype": config["torch_dtype"],
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_old_and_new_spellings_mean_the_same(tmp_path: Path, name: str) -> None:
    old = PUBLISHED[name]
    new = new_spelling(old)
    both = old | {"rope_parameters": new["rope_parameters"], "dtype": new["dtype"]}
    assert read(tmp_path, old) == read(tmp_path, new) == read(tmp_path, both)


def test_contradicting_spellings_are_refused(tmp_path: Path) -> None:
    new = new_spelling(DEEPSEEK_V3)
    theta = refusal(tmp_path, new | {"rope_theta": 20000.0})
    assert "rope_theta is 20000.0" in theta
    assert "10000" in theta
    factor = refusal(tmp_path, new | {"rope_scaling": YARN | {"factor": 4}})
    assert "rope_scaling.factor" in factor
    assert "rope_scaling.type" in refusal(
        tmp_path, DEEPSEEK_V3 | {"rope_scaling": YARN | {"rope_type": "default"}}
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_transformers_saves_reads_the_same(tmp_path: Path, name: str) -> None:
    published = {key: value for key, value in PUBLISHED[name].items() if key != "quantization_config"}
    published["model_type"] = read(tmp_path, published).model_type  # transformers has no kimi_k2
    kind = DeepseekV2Config if published["model_type"] == "deepseek_v2" else DeepseekV3Config
    kind.from_dict(copy.deepcopy(published)).save_pretrained(tmp_path / "saved")
    assert read_config(tmp_path / "saved") == read(tmp_path, published)


# Meaning, against transformers

ROPES: dict[str, dict[str, Any] | None] = {
    "none": None,
    "both mscales": YARN,
    "equal to V2": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
    "mscales differ": YARN | {"mscale": 1.0, "mscale_all_dim": 0.8},
    "mscale alone": {key: value for key, value in YARN.items() if key != "mscale_all_dim"} | {"mscale": 0.5},
    "mscale_all_dim alone": {key: value for key, value in YARN.items() if key != "mscale"},
    "mscale_all_dim zero": YARN | {"mscale_all_dim": 0.0},
    "neither mscale": {key: value for key, value in YARN.items() if "mscale" not in key},
    "no betas": {key: value for key, value in YARN.items() if "beta" not in key},
    "factor one": YARN | {"factor": 1.0},
}


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_scales_are_those_of_transformers(tmp_path: Path, rope: str, version: str) -> None:
    published = (DEEPSEEK_V2_LITE if version == "v2" else MOONLIGHT) | {"rope_scaling": ROPES[rope]}
    config = read(tmp_path, published)
    theirs = copy.deepcopy(published)  # they write into the dicts they are given
    with torch.device("meta"):
        if version == "v2":
            reference = DeepseekV2Config.from_dict(theirs)
            attention = modeling_deepseek_v2.DeepseekV2Attention(reference, 0)
            rotary = modeling_deepseek_v2.DeepseekV2RotaryEmbedding(reference)
        else:
            reference = DeepseekV3Config.from_dict(theirs)
            attention = modeling_deepseek_v3.DeepseekV3Attention(reference, 0)
            rotary = modeling_deepseek_v3.DeepseekV3RotaryEmbedding(reference)
    assert config.softmax_scale == pytest.approx(attention.scaling, rel=1e-12)
    factor = config.rope.factor
    ratio = yarn_mscale(factor, config.rope.mscale) / yarn_mscale(factor, config.rope.mscale_all_dim)
    assert ratio == pytest.approx(rotary.attention_scaling, rel=1e-12)


def test_rope_interleave(tmp_path: Path) -> None:
    assert read(tmp_path, MOONLIGHT).rope.interleaved
    assert not read(tmp_path, MOONLIGHT | {"rope_interleave": False}).rope.interleaved
    assert read(tmp_path, DEEPSEEK_V2_LITE | {"rope_interleave": True}).rope.interleaved
    assert "rope_interleave" in refusal(tmp_path, DEEPSEEK_V2_LITE | {"rope_interleave": False})


def test_moe_layers(tmp_path: Path) -> None:
    small = MOONLIGHT | {"num_hidden_layers": 6}
    assert read(tmp_path, small | {"moe_layer_freq": 2}).moe_layers == (
        False,
        False,
        True,
        False,
        True,
        False,
    )
    listed = read(tmp_path, small | {"moe_layer_freq": [1, 1, 0, 1, 0, 1]})
    assert listed.moe_layers == (False, True, False, True, False, True)
    dense = read(tmp_path, small | {"first_k_dense_replace": 6})
    assert dense.moe_layers == (False,) * 6
    assert dense.routing is None
    plain = {key: value for key, value in small.items() if "expert" not in key}
    assert read(tmp_path, plain).routing is None
    for wrong in ([1, 0], [1, 1, 0, 1, 0, 2], [True] * 6, 0, "1", 1.5):
        assert "moe_layer_freq" in refusal(tmp_path, small | {"moe_layer_freq": wrong})


def test_prediction_layers(tmp_path: Path) -> None:
    without = {key: value for key, value in MOONLIGHT.items() if key != "num_nextn_predict_layers"}
    assert read(tmp_path, without).prediction_layers == 0
    assert read(tmp_path, without | {"num_mtp_layers": 2}).prediction_layers == 2
    assert read(tmp_path, without | {"num_nextn_predict_layers": 3}).prediction_layers == 3


# Refusals

BAD_VALUES: list[tuple[dict[str, Any], str, object]] = [
    (DEEPSEEK_V3, "num_attention_heads", 0),
    (DEEPSEEK_V3, "num_attention_heads", "128"),
    (DEEPSEEK_V3, "num_attention_heads", True),
    (DEEPSEEK_V3, "num_attention_heads", 128.0),
    (DEEPSEEK_V3, "num_attention_heads", 10**30),
    (DEEPSEEK_V3, "num_key_value_heads", 8),
    (DEEPSEEK_V3, "num_hidden_layers", 10**6),
    (DEEPSEEK_V3, "hidden_size", -1),
    (DEEPSEEK_V3, "vocab_size", None),
    (DEEPSEEK_V3, "qk_rope_head_dim", 63),
    (DEEPSEEK_V3, "q_lora_rank", 0),
    (DEEPSEEK_V3, "hidden_act", "gelu"),
    (DEEPSEEK_V3, "rms_norm_eps", 0),
    (DEEPSEEK_V3, "rms_norm_eps", "1e-6"),
    (DEEPSEEK_V3, "rms_norm_eps", math.inf),
    (DEEPSEEK_V3, "rms_norm_eps", math.nan),
    (DEEPSEEK_V3, "rope_theta", 1),
    (DEEPSEEK_V3, "scoring_func", "softmax"),
    (DEEPSEEK_V3, "scoring_func", "sqrtsoftplus"),
    (DEEPSEEK_V3, "topk_method", "greedy"),
    (DEEPSEEK_V3, "topk_method", "best"),
    (DEEPSEEK_V3, "n_group", 7),
    (DEEPSEEK_V3, "n_group", 256),
    (DEEPSEEK_V3, "n_group", 0),
    (DEEPSEEK_V3, "topk_group", 9),
    (DEEPSEEK_V3, "num_experts_per_tok", 129),
    (DEEPSEEK_V3, "num_experts_per_tok", 257),
    (DEEPSEEK_V3, "norm_topk_prob", 1),
    (DEEPSEEK_V3, "routed_scaling_factor", 0),
    (DEEPSEEK_V3, "tie_word_embeddings", "false"),
    (DEEPSEEK_V3, "torch_dtype", "float64"),
    (DEEPSEEK_V3, "torch_dtype", "float8_e4m3fn"),
    (DEEPSEEK_V3, "num_nextn_predict_layers", -1),
    (DEEPSEEK_V3, "rope_scaling", "yarn"),
    (DEEPSEEK_V3, "quantization_config", [128, 128]),
    (DEEPSEEK_V2, "scoring_func", "sigmoid"),
    (DEEPSEEK_V2, "topk_method", "noaux_tc"),
    (DEEPSEEK_V2, "norm_topk_prob", True),
    (DEEPSEEK_V2, "mlp_bias", True),
    (DEEPSEEK_V2, "num_experts_per_tok", 61),
]


@pytest.mark.parametrize(("config", "key", "value"), BAD_VALUES)
def test_a_bad_value_is_named(tmp_path: Path, config: dict[str, Any], key: str, value: object) -> None:
    message = refusal(tmp_path, config | {key: value})
    assert str(tmp_path / "config.json") in message
    assert f"{key} is" in message


BAD_NESTED: list[tuple[str, str, object]] = [
    ("rope_scaling", "type", "linear"),
    ("rope_scaling", "type", "dynamic"),
    ("rope_scaling", "factor", 0.5),
    ("rope_scaling", "factor", None),
    ("rope_scaling", "original_max_position_embeddings", None),
    ("rope_scaling", "beta_fast", 0.5),
    ("rope_scaling", "beta_slow", 0),
    ("rope_scaling", "mscale", -1),
    ("rope_scaling", "mscale_all_dim", 1e200),
    ("rope_scaling", "attention_factor", 1.2),
    ("rope_scaling", "truncate", False),
    ("rope_scaling", "partial_rotary_factor", 0.5),
    ("quantization_config", "quant_method", "compressed-tensors"),
    ("quantization_config", "quant_method", "gptq"),
    ("quantization_config", "fmt", "e5m2"),
    ("quantization_config", "weight_block_size", None),
    ("quantization_config", "weight_block_size", [128]),
    ("quantization_config", "weight_block_size", [0, 128]),
    ("quantization_config", "weight_block_size", [128, 128.0]),
]


@pytest.mark.parametrize(("outer", "key", "value"), BAD_NESTED)
def test_a_bad_nested_value_is_named_with_its_path(
    tmp_path: Path, outer: str, key: str, value: object
) -> None:
    message = refusal(tmp_path, DEEPSEEK_V3 | {outer: DEEPSEEK_V3[outer] | {key: value}})
    assert f"{outer}.{key} is" in message


OPTIONAL = {
    *("architectures", "attention_bias", "attention_dropout", "bos_token_id", "eos_token_id", "ep_size"),
    *("hidden_act", "initializer_range", "moe_layer_freq", "n_routed_experts", "n_shared_experts"),
    *("num_key_value_heads", "num_nextn_predict_layers", "quantization_config", "rope_scaling", "rope_theta"),
    *("scoring_func", "tie_word_embeddings", "topk_method", "transformers_version", "use_cache"),
}


@pytest.mark.parametrize("key", sorted(DEEPSEEK_V3.keys() - OPTIONAL))
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    message = refusal(tmp_path, {other: value for other, value in DEEPSEEK_V3.items() if other != key})
    assert f"{key} is missing" in message


@pytest.mark.parametrize("key", sorted(OPTIONAL))
def test_an_optional_key_may_be_missing(tmp_path: Path, key: str) -> None:
    read(tmp_path, {other: value for other, value in DEEPSEEK_V3.items() if other != key})


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b'"a"', b"\xff\xfe{}", b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
        b'{"hidden_size": ' + b"1" * 5000 + b"}",
    ],
)
def test_what_is_not_a_json_object_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        read_config(tmp_path)


# Any file: a config or a CheckpointError, nothing else

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 1, 2, 63, 64, 10**12, 10**400])
    | st.floats()
    | st.sampled_from(
        ["yarn", "default", "silu", "greedy", "noaux_tc", "sigmoid", "softmax", "bfloat16", "fp8"]
    )
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted(
    {key for config in PUBLISHED.values() for key in config}
    | {"rope_parameters", "dtype", "rope_interleave", "mlp_bias", "num_mtp_layers", "llama_4_scaling"}
)
NESTED = sorted({*YARN, "rope_type", "rope_theta", "truncate", "quant_method", "fmt", "weight_block_size"})
NESTED_CHANGES = st.dictionaries(st.sampled_from(NESTED), JSON, max_size=3)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    base=st.sampled_from(list(PUBLISHED.values())),
    changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3),
    rope=NESTED_CHANGES,
    quantization=NESTED_CHANGES,
    removed=st.sets(st.sampled_from(KEYS), max_size=2),
)
def test_any_config_is_read_or_refused(
    tmp_path: Path,
    *,
    base: dict[str, Any],
    changes: dict[str, Any],
    rope: dict[str, Any],
    quantization: dict[str, Any],
    removed: set[str],
) -> None:
    config = base | {"rope_scaling": (base.get("rope_scaling") or {}) | rope} | changes
    if quantization:
        config["quantization_config"] = DEEPSEEK_V3["quantization_config"] | quantization
    try:
        model = read(tmp_path, {key: value for key, value in config.items() if key not in removed})
    except CheckpointError as error:
        assert str(tmp_path) in str(error)
        return
    assert math.isfinite(model.softmax_scale)
    assert model.softmax_scale > 0
    assert len(model.moe_layers) == model.layers
    assert (model.routing is not None) == any(model.moe_layers)
    if model.routing is not None:
        assert model.routing.experts % model.routing.groups == 0
        per_group = model.routing.experts // model.routing.groups
        assert model.routing.top_k <= model.routing.top_groups * per_group


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError):
        read_config(tmp_path)
