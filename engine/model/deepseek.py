"""The DeepSeek-V2 and -V3 forward pass over a ragged batch (arXiv:2405.04434, arXiv:2412.19437)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels import KernelSet
from ...kernels.operations import Packed, Plan
from .attention import Attention, StepPlan, plan_step
from .batch import ForwardBatch
from .cache import LatentCache
from .config import ModelConfig
from .mlp import DenseMlp, Experts
from .rope import Rotary
from .weights import WeightSource


class ForwardOutput(NamedTuple):
    """Of the tokens of batch.sample_tokens, in that order."""

    logits: Tensor  # [S, vocab] fp32
    hidden: (
        Tensor  # [S, H], the model's dtype, after the final norm: what lm_head and the prediction layers read
    )


class Layer(NamedTuple):
    attention_norm: Tensor  # [H] fp32
    attention: Attention
    mlp_norm: Tensor  # [H] fp32
    mlp: DenseMlp | Experts


class DeepseekModel:
    """A decoder with its weights packed for `kernels`. It keeps no state between steps; the cache is the caller's.

    Between the layers the residual is fp32 in every dtype: it costs a few microseconds a layer and keeps the sum over
    many layers from being rounded to bf16 each time.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        kernels: KernelSet,
    ) -> None:
        """Ask `source` for every tensor of the model by its name in the checkpoint, one layer at a time.

        The source gives tensors in `dtype` on `device`, unless asked for fp32. Raises the source's WeightError, and
        ValueError when the gate's settings contradict each other.
        """
        counted = _Counted(source)
        self.config = config
        self.dtype = dtype
        self.device = device
        self._kernels = kernels
        self._rotary = Rotary(config.rope, device)
        self._embedding = counted.get("model.embed_tokens.weight", (config.vocab_size, config.hidden))
        self.layers = [_load_layer(config, kernels, counted, number) for number in range(config.layers)]
        self._final_norm = _norm(counted, "model.norm", config)
        self._head = self._load_head(counted)
        self.parameters = counted.parameters
        self.weight_bytes = counted.bytes

    def _load_head(self, source: WeightSource) -> Packed:
        if self.config.tied_embeddings:
            return self._kernels.linear.pack(self._embedding, kept=True)
        shape = (self.config.vocab_size, self.config.hidden)
        return self._kernels.linear.pack(source.get("lm_head.weight", shape))

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: LatentCache, decode: Plan | None = None) -> ForwardOutput:
        """Run the step's tokens, write their latents to `cache`, and give the logits that were asked for.

        All projections and experts run over all T tokens at once; only attention tells decode rows from prompt rows.
        What comes before this step's tokens in their rows must be in the cache already. `decode`: the decode rows'
        plan, where the caller has made it.
        """
        step = self.plan(batch, cache.page_size, decode)
        residual = self.embed(batch.token_ids)
        eps = self.config.rms_eps
        norms = [*(layer.attention_norm for layer in self.layers[1:]), self._final_norm]
        x = self._kernels.rms_norm(residual, self.layers[0].attention_norm, eps, self.dtype)
        for layer, next_norm, latents in zip(self.layers, norms, cache.layers, strict=True):
            x = self._kernels.add_rms_norm(residual, layer.attention(x, latents, step), layer.mlp_norm, eps)
            x = self._kernels.add_rms_norm(residual, layer.mlp(x), next_norm, eps)
        return self.head(x, batch.sample_tokens)

    def plan(self, batch: ForwardBatch, page_size: int, decode: Plan | None = None) -> StepPlan:
        turns = self._rotary.turns(batch.positions)
        return plan_step(self.config, self._kernels, batch, page_size, turns, decode)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T, H] fp32: the residual, which the layers add to in place."""
        return F.embedding(token_ids, self._embedding).float()

    def head(self, x: Tensor, sample_tokens: Tensor) -> ForwardOutput:
        hidden = x.index_select(0, sample_tokens)
        return ForwardOutput(self._kernels.linear(hidden, self._head).float(), hidden)


def _load_layer(config: ModelConfig, kernels: KernelSet, source: WeightSource, number: int) -> Layer:
    prefix = f"model.layers.{number}"
    mlp: DenseMlp | Experts
    if not config.moe_layers[number]:
        mlp = DenseMlp(config, kernels, source, f"{prefix}.mlp")
    elif config.routing is None:
        raise ValueError(f"layer {number} has experts, but the config says nothing of their routing")
    else:
        mlp = Experts(config, config.routing, kernels, source, f"{prefix}.mlp")
    return Layer(
        attention_norm=_norm(source, f"{prefix}.input_layernorm", config),
        attention=Attention(config, kernels, source, f"{prefix}.self_attn"),
        mlp_norm=_norm(source, f"{prefix}.post_attention_layernorm", config),
        mlp=mlp,
    )


def _norm(source: WeightSource, prefix: str, config: ModelConfig) -> Tensor:
    return source.get(f"{prefix}.weight", (config.hidden,), dtype=torch.float32)


class _Counted:
    """A source that counts what it gives."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.parameters = 0
        self.bytes = 0

    def get(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        dtype: torch.dtype | None = None,
        rows: slice | None = None,
    ) -> Tensor:
        tensor = self._source.get(name, shape, dtype=dtype, rows=rows)
        self.parameters += tensor.numel()
        self.bytes += tensor.nbytes
        return tensor

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def finish(self) -> None:
        self._source.finish()
