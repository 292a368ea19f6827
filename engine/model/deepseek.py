"""The DeepSeek-V2 and -V3 forward pass over a ragged batch (arXiv:2405.04434, arXiv:2412.19437)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels import KernelSet
from ...kernels.operations import Packed
from .attention import StepPlan, plan_step
from .batch import ForwardBatch
from .cache import Latents
from .config import ModelConfig
from .layer import load_layer, load_norm
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
        self.layers = [
            load_layer(config, kernels, counted, number, experts)
            for number, experts in enumerate(config.moe_layers)
        ]
        self._final_norm = load_norm(counted, "model.norm", config)
        self._head = self._load_head(counted)
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
    def forward(self, batch: ForwardBatch, cache: Latents) -> ForwardOutput:
        """Run the step's tokens, write their latents to `cache`, and give the logits that were asked for.

        All projections and experts run over all T tokens at once; only attention tells decode rows from prompt rows.
        What comes before this step's tokens in their rows must be in the cache already.
        """
        step = self.plan(batch, cache.page_size)
        residual = self.embed(batch.token_ids)
        eps = self.config.rms_eps
        norms = [*(layer.attention_norm for layer in self.layers[1:]), self._final_norm]
        x = self._kernels.rms_norm(residual, self.layers[0].attention_norm, eps, self.dtype)
        for layer, next_norm, latents in zip(self.layers, norms, cache.layers, strict=True):
            x = self._kernels.add_rms_norm(residual, layer.attention(x, latents, step), layer.mlp_norm, eps)
            x = self._kernels.add_rms_norm(residual, layer.mlp(x), next_norm, eps)
        return self.head(x, batch.sample_tokens)

    def plan(self, batch: ForwardBatch, page_size: int) -> StepPlan:
        return plan_step(self.config, self._kernels, batch, page_size, self._rotary.turns(batch.positions))

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T, H] fp32: the residual, which the layers add to in place."""
        return F.embedding(token_ids, self._embedding).float()

    def head(self, x: Tensor, sample_tokens: Tensor) -> ForwardOutput:
        """x [T, H], after the final norm."""
        return ForwardOutput(self._kernels.linear(x.index_select(0, sample_tokens), self._head).float(), x)


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
