"""The DeepSeek-V2 and -V3 forward pass over a ragged batch (arXiv:2405.04434, arXiv:2412.19437)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels import KernelSet
from ...kernels.operations import SYSTEM, Buffers, DecoderShape, LayerOperands, Packed, Plan
from .attention import LATENT_NORM_EPS, Attention, StepPlan, plan_step
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
        buffers: Buffers = SYSTEM,
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
        self._buffers = buffers
        self._rotary = Rotary(config.rope, device)
        self._embedding = counted.get("model.embed_tokens.weight", (config.vocab_size, config.hidden))
        self.layers = [_load_layer(config, kernels, counted, number) for number in range(config.layers)]
        self._final_norm = _norm(counted, "model.norm", config)
        self._head = self._load_head(counted)
        self._stack = self._pack_stack(self.layers, self._final_norm)
        self.parameters = counted.parameters
        self.weight_bytes = counted.bytes

    def _load_head(self, source: WeightSource) -> Packed:
        if self.config.tied_embeddings:
            return self._kernels.linear.pack(self._embedding, kept=True)
        shape = (self.config.vocab_size, self.config.hidden)
        return self._kernels.linear.pack(source.get("lm_head.weight", shape))

    def _pack_stack(self, layers: list[Layer], final_norm: Tensor) -> Packed | None:
        """The layers for a backend that runs them in one call; None where there is none, and they run one by one."""
        decoder, config = self._kernels.decoder, self.config
        if decoder is None or not layers:
            return None
        shape = DecoderShape(
            hidden=config.hidden,
            heads=config.heads,
            rank=config.kv_lora_rank,
            nope=config.nope_dim,
            rope=config.rope_dim,
            v=config.v_dim,
            eps=config.rms_eps,
            latent_eps=LATENT_NORM_EPS,
            softmax_scale=config.softmax_scale,
        )
        operands = [
            LayerOperands(
                layer.attention.operands(layer.attention_norm), layer.mlp_norm, layer.mlp.operands()
            )
            for layer in layers
        ]
        return decoder.pack(operands, final_norm, shape)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: LatentCache, decode: Plan | None = None) -> ForwardOutput:
        """Run the step's tokens, write their latents to `cache`, and give the logits that were asked for.

        All projections and experts run over all T tokens at once; only attention tells decode rows from prompt rows.
        What comes before this step's tokens in their rows must be in the cache already. `decode`: the decode rows'
        plan, where the caller has made it.
        """
        step = self.plan(batch, cache.page_size, decode)
        residual = self.embed(batch.token_ids)
        return self.head(self.run_layers(residual, cache, step), batch.sample_tokens)

    def run_layers(self, residual: Tensor, cache: LatentCache, step: StepPlan) -> Tensor:
        """Add all layers to `residual` [T, H] in place; give its final norm, [T, H] in the model's dtype."""
        if self._kernels.decoder is not None and self._stack is not None:
            return self._kernels.decoder(residual, self._stack, cache.layers, step)
        eps = self.config.rms_eps
        norms = [*(layer.attention_norm for layer in self.layers[1:]), self._final_norm]
        x = self._kernels.rms_norm(residual, self.layers[0].attention_norm, eps, self.dtype)
        for layer, next_norm, latents in zip(self.layers, norms, cache.layers, strict=True):
            x = self._kernels.add_rms_norm(
                residual, layer.attention.forward(x, latents, step), layer.mlp_norm, eps
            )
            x = self._kernels.add_rms_norm(residual, layer.mlp.forward(x), next_norm, eps)
        return x

    def plan(self, batch: ForwardBatch, page_size: int, decode: Plan | None = None) -> StepPlan:
        turns = self._rotary.turns(batch.positions)
        return plan_step(self.config, self._kernels, batch, page_size, turns, decode)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T, H] fp32: the residual, which the layers add to in place."""
        shape = (len(token_ids), self.config.hidden)
        rows = torch.index_select(
            self._embedding, 0, token_ids, out=self._buffers.take(shape, self._embedding.dtype)
        )
        return self._float(rows)

    def head(self, x: Tensor, sample_tokens: Tensor) -> ForwardOutput:
        hidden = x.index_select(0, sample_tokens)  # never a buffer: drafts read it in the next step
        return ForwardOutput(self._float(self._kernels.linear(hidden, self._head)), hidden)

    def _float(self, x: Tensor) -> Tensor:
        """As x.float(): `x` itself where it is fp32."""
        if x.dtype == torch.float32:
            return x
        out = self._buffers.take(x.shape, torch.float32)
        return x.float() if out is None else out.copy_(x)


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
