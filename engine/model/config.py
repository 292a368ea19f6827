"""The shape of a DeepSeek-family model, as the forward pass needs it. Torch-free.

`engine/model/hf_config.py` fills it from a checkpoint's config.json; the forward pass reads nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the rope part, with YaRN when `factor` > 1 (Peng et al. 2023, arXiv:2309.00071, 3)."""

    theta: float
    dim: int  # qk_rope_head_dim
    interleaved: bool  # pairs (0, 1), (2, 3), ... in the checkpoint's layout; else halves
    kind: Literal["default", "yarn"] = "default"
    factor: float = 1.0
    original_max_position: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0


@dataclass(frozen=True, slots=True)
class Routing:
    """How the gate chooses experts (DeepSeek-V2, arXiv:2405.04434, 2.2; DeepSeek-V3, arXiv:2412.19437, 2.1.2)."""

    scoring: Literal["softmax", "sigmoid"]
    experts: int
    top_k: int
    groups: int  # n_group; 1 with no group limit
    top_groups: int  # topk_group
    # greedy: no groups; group_max: a group scores by its best expert (V2's group_limited_greedy);
    # group_top2: a group scores by the sum of its two best, bias added (V3's noaux_tc)
    method: Literal["greedy", "group_max", "group_top2"]
    bias: bool  # e_score_correction_bias chooses, but does not weigh
    normalise: bool  # norm_topk_prob
    scale: float  # routed_scaling_factor


@dataclass(frozen=True, slots=True)
class ModelConfig:
    model_type: Literal["deepseek_v2", "deepseek_v3"]
    vocab_size: int
    hidden: int
    layers: int  # without the prediction layers
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int  # qk_nope_head_dim
    rope_dim: int  # qk_rope_head_dim
    v_dim: int  # v_head_dim
    dense_intermediate: int  # intermediate_size
    expert_intermediate: int  # moe_intermediate_size
    shared_experts: int  # 0: none; they are stored fused as one of n x expert_intermediate
    moe_layers: tuple[
        bool, ...
    ]  # per layer: experts (true) or one dense MLP; first_k_dense_replace and moe_layer_freq
    routing: Routing | None  # None: no layer has experts
    rope: Rope
    rms_eps: float
    attention_bias: bool
    tied_embeddings: bool
    max_position: int
    prediction_layers: int  # num_nextn_predict_layers whose weights the folder may carry
    dtype: Literal["bfloat16", "float16", "float32"]  # as stored; fp8 blocks are dequantised to it
    fp8_block: tuple[int, int] | None  # weight_block_size of an fp8 checkpoint
    softmax_scale: float  # (nope + rope)^-0.5, times mscale^2 under YaRN with mscale_all_dim

    @property
    def latent_width(self) -> int:
        """Values cached a token a layer: the latent and the rope part, nothing else."""
        return self.kv_lora_rank + self.rope_dim
