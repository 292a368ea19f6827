"""Writes the trained network as a Hugging Face folder, with the names of DeepSeek-V3's checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import BEGIN, BEGIN_ID, END, END_ID
from .network import Block, DenseMLP, MoE, Network, Shape

# A conversation is read as one piece of prose. What the model said goes on where the text before it
# stopped; anything else begins a paragraph. Nothing marks a role, because training knew none, and the
# text is left open at its end, to be continued, whatever add_generation_prompt says.
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}{%- for part in content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{- text(message.content) -}}
{%- else -%}
{%- if not loop.first -%}{{- '\\n\\n' -}}{%- endif -%}
{{- text(message.content).rstrip() -}}
{%- endif -%}
{%- endfor -%}
"""


def tensors(network: Network) -> dict[str, Tensor]:
    """Every tensor under its checkpoint name, as a view of the network's own storage.

    The MTP layer stands after the last layer. Its embedding and output head are the main model's
    and are not stored a second time.
    """
    found: dict[str, Tensor] = {
        "model.embed_tokens.weight": network.embed_tokens.weight,
        "model.norm.weight": network.norm.weight,
        "lm_head.weight": network.lm_head.weight,
    }
    for index, layer in enumerate(network.layers):
        assert isinstance(layer, Block)
        found |= {f"model.layers.{index}.{name}": tensor for name, tensor in _block(layer)}
    mtp, prefix = network.mtp, f"model.layers.{network.shape.num_hidden_layers}"
    found |= {f"{prefix}.{name}": tensor for name, tensor in _block(mtp.block)}
    found |= {
        f"{prefix}.enorm.weight": mtp.enorm.weight,
        f"{prefix}.hnorm.weight": mtp.hnorm.weight,
        f"{prefix}.eh_proj.weight": mtp.eh_proj.weight,
        f"{prefix}.shared_head.norm.weight": mtp.norm.weight,
    }
    return {name: tensor.detach() for name, tensor in found.items()}


def _dtype(name: str) -> torch.dtype:
    """What a tensor is stored as: a selection bias moves in steps of 1e-3, too fine for bf16."""
    return torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16


def _block(block: Block) -> Iterator[tuple[str, Tensor]]:
    """Names within a layer, and tensors."""
    for part in ("input_layernorm", "post_attention_layernorm", "self_attn"):
        yield from getattr(block, part).named_parameters(prefix=part)
    if isinstance(block.mlp, DenseMLP):
        yield from _swiglu("mlp", block.mlp.gate_up_proj.weight, block.mlp.down_proj.weight)
        return
    moe = block.mlp
    assert isinstance(moe, MoE)
    yield "mlp.gate.weight", moe.gate
    yield "mlp.gate.e_score_correction_bias", moe.e_score_correction_bias
    for index, (gate_up, down) in enumerate(zip(moe.gate_up, moe.down, strict=True)):
        yield from _swiglu(f"mlp.experts.{index}", gate_up, down)
    shared = moe.shared_experts
    yield from _swiglu("mlp.shared_experts", shared.gate_up_proj.weight, shared.down_proj.weight)


def _swiglu(prefix: str, gate_up: Tensor, down: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The three projections of one feed-forward network."""
    gate, up = gate_up.chunk(2)
    yield f"{prefix}.gate_proj.weight", gate
    yield f"{prefix}.up_proj.weight", up
    yield f"{prefix}.down_proj.weight", down


def config(shape: Shape) -> dict[str, Any]:
    """`config.json`."""
    sizes = asdict(shape)
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        **sizes,
        "num_key_value_heads": shape.num_attention_heads,
        "qk_head_dim": shape.qk_head_dim,
        "head_dim": shape.qk_rope_head_dim,
        "num_nextn_predict_layers": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "ep_size": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_interleave": True,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
    }


def tokenizer_config(shape: Shape) -> dict[str, Any]:
    """`tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": END,
        "model_max_length": shape.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def write(folder: Path, network: Network, tokenizer: Tokenizer) -> None:
    """The model folder, but for its card."""
    folder.mkdir(parents=True, exist_ok=True)
    generation = {
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
        "pad_token_id": END_ID,
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 40,
    }
    weights = {name: tensor.to(_dtype(name)).contiguous() for name, tensor in tensors(network).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    _json(folder / "config.json", config(network.shape))
    _json(folder / "tokenizer_config.json", tokenizer_config(network.shape))
    _json(folder / "generation_config.json", generation)


def read(folder: Path, shape: Shape) -> Network:
    """The network of a written folder, in fp32, with its weights rounded as they were stored."""
    network = Network(shape)
    stored = load_file(folder / "model.safetensors")
    for name, tensor in tensors(network).items():
        tensor.copy_(stored[name])
    return network


def _json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
