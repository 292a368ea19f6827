"""The DeepSeek-V2 and -V3 forward pass over a ragged batch (arXiv:2405.04434, arXiv:2412.19437)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels import KernelSet
from ...kernels.operations import SYSTEM, Buffers, Packed, Plan
from .attention import StepPlan, plan_step
from .batch import ForwardBatch
from .cache import Latents
from .config import ModelConfig
from .layer import LayerStack, load_layer, load_norm
from .prediction import PredictionLayer, load_prediction
from .rope import Rotary
from .weights import WeightSource


class ForwardOutput(NamedTuple):
    logits: Tensor  # [S, vocab] fp32, of the tokens of batch.sample_tokens in that order
    hidden: Tensor  # [T, H] of all tokens, the model's dtype, after the final norm: what the prediction layer reads


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
        self.layers = [
            load_layer(config, kernels, counted, number, experts)
            for number, experts in enumerate(config.moe_layers)
        ]
        self._final_norm = load_norm(counted, "model.norm", config)
        self._head = self._load_head(counted)
        self._stack = LayerStack(config, kernels, self.layers, self._final_norm)
        self.prediction: PredictionLayer | None = load_prediction(
            config, kernels, counted, self._rotary, self._embedding, self._head
        )
        self.parameters = counted.parameters
        self.weight_bytes = counted.bytes

    def _load_head(self, source: WeightSource) -> Packed:
        if self.config.tied_embeddings:
            return self._kernels.linear.pack(self._embedding, kept=True)
        shape = (self.config.vocab_size, self.config.hidden)
        return self._kernels.linear.pack(source.get("lm_head.weight", shape))

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: Latents, decode: Plan | None = None) -> ForwardOutput:
        """Run the step's tokens, write their latents to `cache`, and give the logits that were asked for.

        All projections and experts run over all T tokens at once; only attention tells decode rows from prompt rows.
        What comes before this step's tokens in their rows must be in the cache already. `decode`: the decode rows'
        plan, where the caller has made it.
        """
        step = self.plan(batch, cache.page_size, decode)
        residual = self.embed(batch.token_ids)
        return self.head(self.run_layers(residual, cache, step), batch.sample_tokens)

    def run_layers(self, residual: Tensor, cache: Latents, step: StepPlan) -> Tensor:
        """Add all layers to `residual` [T, H] in place; give its final norm, [T, H] in the model's dtype."""
        return self._stack.run(residual, cache.layers, step, self.dtype)

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
        """x [T, H], after the final norm. It may be a buffer of this step, in which drafts are made of it."""
        return ForwardOutput(
            self._float(self._kernels.linear(x.index_select(0, sample_tokens), self._head)), x
        )

    def _float(self, x: Tensor) -> Tensor:
        """As x.float(): `x` itself where it is fp32."""
        if x.dtype == torch.float32:
            return x
        out = self._buffers.take(x.shape, torch.float32)
        return x.float() if out is None else out.copy_(x)


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
