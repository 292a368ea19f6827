"""Latent attention (DeepSeek-V2, arXiv:2405.04434, 2.1): one layer's weights and the steps of its forward pass.

Every step is a method of its own, called by name on the instance, so that a profiler can put a timed one in its place
(engine/core/sites.py). `forward` is no `__call__` for the same reason: Python looks that up on the class.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels import KernelSet
from ...kernels.operations import AttentionOperands, Packed, Plan
from .batch import ForwardBatch
from .config import ModelConfig
from .rope import paired_rows
from .weights import WeightSource

# The norms of the two latents take the models' own default and not rms_norm_eps: neither DeepSeek's modeling code nor
# transformers hands the config's value to them.
LATENT_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What all layers share in one step."""

    turns: Tensor  # [T, rope / 2] complex64
    slots: Tensor  # [T]
    decode_tokens: int  # query tokens of the decode rows; they come first
    decode: Plan | None  # None: no decode rows
    prefill: Plan | None  # None: no prompt rows


def plan_step(
    config: ModelConfig,
    kernels: KernelSet,
    batch: ForwardBatch,
    page_size: int,
    turns: Tensor,
    decode: Plan | None = None,
) -> StepPlan:
    rows, decode_rows = len(batch.lengths), batch.decode_rows
    counts = [end - start for start, end in itertools.pairwise(batch.query_starts)]
    prefill = None
    if decode_rows and decode is None:
        decode = kernels.mla_decode.plan(
            batch.lengths[:decode_rows],
            counts[:decode_rows],
            batch.block_tables[:decode_rows],
            page_size,
            config.latent_width,
        )
    if decode_rows < rows:
        prefill = kernels.mla_prefill.plan(
            batch.lengths[decode_rows:],
            counts[decode_rows:],
            batch.block_tables[decode_rows:],
            page_size,
            config.heads,
        )
    return StepPlan(turns, batch.slots, batch.query_starts[decode_rows], decode, prefill)


class Attention:
    def __init__(self, config: ModelConfig, kernels: KernelSet, source: WeightSource, prefix: str) -> None:
        self._kernels = kernels
        self._heads = config.heads
        self._rank = config.kv_lora_rank
        self._nope = config.nope_dim
        self._scale = config.softmax_scale
        self._load_down(config, source, prefix)
        self._load_up(config, source, prefix)
        bias = source.get(f"{prefix}.o_proj.bias", (config.hidden,)) if config.attention_bias else None
        out = source.get(f"{prefix}.o_proj.weight", (config.hidden, config.heads * config.v_dim))
        self._out: Packed = kernels.linear.pack(out, bias)

    def _load_down(self, config: ModelConfig, source: WeightSource, prefix: str) -> None:
        """The projections that read the hidden state are one: q_a_proj, or q_proj without a query latent, and kv_a."""
        order = paired_rows(config.rope)
        head = config.nope_dim + config.rope_dim
        lora = config.q_lora_rank
        if lora is None:
            query = source.get(f"{prefix}.q_proj.weight", (config.heads * head, config.hidden))
            query = _pair_queries(query, config, order)
        else:
            query = source.get(f"{prefix}.q_a_proj.weight", (lora, config.hidden))
        self._query_width = query.shape[0]
        name = f"{prefix}.kv_a_proj_with_mqa"
        latent = source.get(f"{name}.weight", (config.latent_width, config.hidden))
        weight = torch.cat((query, _pair_tail(latent, config.rope_dim, order)))
        bias = None
        if config.attention_bias:
            # q_proj never has a bias.
            of_query = (
                query.new_zeros(query.shape[0])
                if lora is None
                else source.get(f"{prefix}.q_a_proj.bias", (lora,))
            )
            of_latent = source.get(f"{name}.bias", (config.latent_width,))
            bias = torch.cat((of_query, _pair_tail(of_latent, config.rope_dim, order)))
        self._down: Packed = self._kernels.linear.pack(weight, bias)

    def operands(self, norm: Tensor) -> AttentionOperands:
        """What a backend needs that runs whole layers; `norm` [H] fp32 comes before this layer's attention."""
        return AttentionOperands(
            norm=norm,
            down=self._down,
            query_norm=None if self._query_up is None else self._query_norm,
            query_up=self._query_up,
            latent_norm=self._latent_norm,
            kv_up=self._kv_up,
            out=self._out,
        )

    def _load_up(self, config: ModelConfig, source: WeightSource, prefix: str) -> None:
        self._query_up: Packed | None = None
        if config.q_lora_rank is not None:
            lora = config.q_lora_rank
            self._query_norm = source.get(f"{prefix}.q_a_layernorm.weight", (lora,), dtype=torch.float32)
            shape = (config.heads * (config.nope_dim + config.rope_dim), lora)
            weight = source.get(f"{prefix}.q_b_proj.weight", shape)
            self._query_up = self._kernels.linear.pack(
                _pair_queries(weight, config, paired_rows(config.rope))
            )
        rank = config.kv_lora_rank
        self._latent_norm = source.get(f"{prefix}.kv_a_layernorm.weight", (rank,), dtype=torch.float32)
        shape = (config.heads * (config.nope_dim + config.v_dim), rank)
        up = source.get(f"{prefix}.kv_b_proj.weight", shape).view(config.heads, -1, rank)
        self._kv_up: Packed = self._kernels.kv_up.pack(up[:, : config.nope_dim], up[:, config.nope_dim :])

    def forward(self, x: Tensor, cache: Tensor, step: StepPlan) -> Tensor:
        """x [T, H], normalised, and one layer's cache; gives what the layer adds to the residual, [T, H]."""
        query, latent = self.down(x)
        q = self.query(query)
        self.turn(q, step)
        self.write(latent, cache, step)
        return self.out(self.attend(q, cache, step))

    def down(self, x: Tensor) -> tuple[Tensor, Tensor]:
        both = self._kernels.linear(x, self._down)
        return both[:, : self._query_width], both[:, self._query_width :]

    def query(self, query: Tensor) -> Tensor:
        """[T, h, nope + rope], the rope part not yet turned."""
        if self._query_up is not None:
            query = self._kernels.rms_norm(query, self._query_norm, LATENT_NORM_EPS, query.dtype)
            query = self._kernels.linear(query, self._query_up)
        return query.unflatten(-1, (self._heads, -1))

    def turn(self, q: Tensor, step: StepPlan) -> None:
        self._kernels.rope(q[..., self._nope :], step.turns)

    def write(self, latent: Tensor, cache: Tensor, step: StepPlan) -> None:
        self._kernels.latent_write(
            latent, cache, step.slots, weight=self._latent_norm, eps=LATENT_NORM_EPS, turns=step.turns
        )

    def attend(self, q: Tensor, cache: Tensor, step: StepPlan) -> Tensor:
        """[T, h * v]. Decode rows' tokens come first, so the two forms' results only have to be put together."""
        parts: list[Tensor] = []
        if step.decode is not None:
            parts.append(self.attend_decode(q[: step.decode_tokens], cache, step.decode))
        if step.prefill is not None:
            parts.append(self.attend_prompt(q[step.decode_tokens :], cache, step.prefill))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.flatten(1)

    def attend_decode(self, q: Tensor, cache: Tensor, plan: Plan) -> Tensor:
        absorbed = torch.cat((self.absorb(q[..., : self._nope]), q[..., self._nope :]), dim=-1)
        return self.value(self.attend_latents(absorbed, cache, plan))

    def attend_latents(self, absorbed: Tensor, cache: Tensor, plan: Plan) -> Tensor:
        return self._kernels.mla_decode(absorbed, cache, plan, scale=self._scale, rank=self._rank)

    def absorb(self, q_nope: Tensor) -> Tensor:
        return self._kernels.kv_up.absorb(q_nope, self._kv_up)

    def value(self, latent: Tensor) -> Tensor:
        return self._kernels.kv_up.value(latent, self._kv_up)

    def attend_prompt(self, q: Tensor, cache: Tensor, plan: Plan) -> Tensor:
        return self._kernels.mla_prefill(
            q, cache, plan, scale=self._scale, rank=self._rank, expand=self.expand
        )

    def expand(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        return self._kernels.kv_up.expand(latents, self._kv_up)

    def out(self, attended: Tensor) -> Tensor:
        return self._kernels.linear(attended, self._out)


def _pair_tail(weight: Tensor, rope_dim: int, order: Tensor | None) -> Tensor:
    """Reorder the last `rope_dim` rows, which make the rope part, into pairs."""
    if order is None:
        return weight
    split = weight.shape[0] - rope_dim
    return torch.cat((weight[:split], weight[split:][order.to(weight.device)]))


def _pair_queries(weight: Tensor, config: ModelConfig, order: Tensor | None) -> Tensor:
    if order is None:
        return weight
    heads = weight.view(config.heads, config.nope_dim + config.rope_dim, -1)
    split = [config.nope_dim, config.rope_dim]
    nope, rope = heads.split(split, dim=1)
    return torch.cat((nope, rope[:, order.to(weight.device)]), dim=1).view_as(weight)
