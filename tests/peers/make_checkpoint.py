"""Write a checkpoint of random weights as a Hugging Face folder: what engines are compared on, and what tests load.

    python -m tests.peers.make_checkpoint FOLDER [--tiny] [--context N] [--seed N]

The default is DeepSeek-V3's shape at 68.4 million parameters. It comes with a byte-level tokenizer that gives
every id of the vocabulary a text, and a chat template, so that every endpoint works on it. The same seed
gives the same bytes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, processors

COMMON: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 192,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "rope_scaling": None,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    # transformers 5 writes none of these any more, and some engines refuse a folder without them
    "rope_theta": 10000.0,
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 0,
}
TINY: dict[str, Any] = COMMON | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 512,
}
SPECIAL = ("<s>", "</s>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n"
    "{% elif message['role'] == 'user' %}User: {{ message['content'] }}\n"
    "{% elif message['role'] == 'assistant' %}Assistant: {{ message['content'] }}{{ eos_token }}\n"
    "{% else %}{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of the model that `config` describes, by its name on the hub."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    nope, rope, v_dim = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    query = heads * (nope + rope)
    q_lora, kv_lora = config["q_lora_rank"], config["kv_lora_rank"]

    def mlp(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
        return {
            f"{prefix}.gate_proj.weight": (width, hidden),
            f"{prefix}.up_proj.weight": (width, hidden),
            f"{prefix}.down_proj.weight": (hidden, width),
        }

    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        attention = f"{prefix}.self_attn"
        tensors[f"{prefix}.input_layernorm.weight"] = (hidden,)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        if q_lora is None:
            tensors[f"{attention}.q_proj.weight"] = (query, hidden)
        else:
            tensors[f"{attention}.q_a_proj.weight"] = (q_lora, hidden)
            tensors[f"{attention}.q_a_layernorm.weight"] = (q_lora,)
            tensors[f"{attention}.q_b_proj.weight"] = (query, q_lora)
        tensors[f"{attention}.kv_a_proj_with_mqa.weight"] = (kv_lora + rope, hidden)
        tensors[f"{attention}.kv_a_layernorm.weight"] = (kv_lora,)
        tensors[f"{attention}.kv_b_proj.weight"] = (heads * (nope + v_dim), kv_lora)
        tensors[f"{attention}.o_proj.weight"] = (hidden, heads * v_dim)
        if layer < config["first_k_dense_replace"]:
            tensors |= mlp(f"{prefix}.mlp", config["intermediate_size"])
            continue
        width, experts = config["moe_intermediate_size"], config["n_routed_experts"]
        tensors[f"{prefix}.mlp.gate.weight"] = (experts, hidden)
        tensors[f"{prefix}.mlp.gate.e_score_correction_bias"] = (experts,)
        for expert in range(experts):
            tensors |= mlp(f"{prefix}.mlp.experts.{expert}", width)
        if config["n_shared_experts"]:
            tensors |= mlp(f"{prefix}.mlp.shared_experts", width * config["n_shared_experts"])
    tensors["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = (config["vocab_size"], hidden)
    return tensors


def random_weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Random tensors in bfloat16, scaled so that greedy decoding wanders over the vocabulary.

    With the usual 0.02 everywhere the last token alone decides the next one, and greedy text falls into a
    loop of a few tokens, which leaves the experts idle that a benchmark means to exercise. Unit-variance
    projections make every layer matter, and wide queries make attention pick tokens instead of averaging all
    of them.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            tensor = 1 + 0.1 * noise
        elif name.endswith("e_score_correction_bias"):
            tensor = 0.05 * noise
        elif name == "model.embed_tokens.weight":
            tensor = noise
        else:
            tensor = noise * (3.0 if "q_b_proj" in name or "q_proj" in name else 1.0) / math.sqrt(shape[-1])
        weights[name] = tensor.to(torch.bfloat16)
    return weights


def byte_level_tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    """Ids 0 and 1 are the ends of a text, then come the 256 bytes, then pairs and triples of letters."""
    letters = "etaoinshrdlucmfwygpbvkxqjz"
    vocab = {token: id_ for id_, token in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    merges: list[tuple[str, str]] = []
    pairs = list(itertools.product(letters, repeat=2))
    triples = ((first + second, third) for (first, second), third in itertools.product(pairs, letters))
    for left, right in itertools.chain(pairs, triples):
        if len(vocab) == vocab_size:
            break
        vocab[left + right] = len(vocab)
        merges.append((left, right))
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def write_checkpoint(folder: Path, config: dict[str, Any], seed: int) -> int:
    """Write the folder, and return its number of parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = random_weights(config, seed)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    byte_level_tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(tokenizer_config, indent=2) + "\n", encoding="utf-8"
    )
    return sum(tensor.numel() for tensor in weights.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a shape small enough for tests")
    parser.add_argument("--context", type=int, help="tokens that the model takes, instead of the shape's own")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shape = TINY if options.tiny else COMMON
    if options.context is not None:
        shape = shape | {"max_position_embeddings": options.context}
    parameters = write_checkpoint(options.folder, shape, options.seed)
    print(f"{options.folder}: {parameters:,} parameters")


if __name__ == "__main__":
    main()
