"""The multi-token-prediction layer (DeepSeek-V3, arXiv:2412.19437, 2.2), run as a drafter.

At position i it joins the model's hidden state of token i with the embedding of token i + 1 and predicts token i + 2.
Its own output, after `shared_head.norm`, takes the hidden state's place for the next draft, so one layer drafts to any
depth. A checkpoint that has several such layers is served with its first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels import KernelSet
from ...kernels.operations import Packed
from .attention import plan_step
from .batch import ForwardBatch
from .cache import Latents
from .config import ModelConfig
from .layer import LayerStack, load_layer, load_norm
from .rope import Rotary
from .weights import WeightSource


class Predicted(NamedTuple):
    """Of the tokens of batch.sample_tokens, in that order."""

    token_ids: Tensor  # [S] int64: the likeliest
    hidden: Tensor  # [S, H], after the layer's own final norm


class PredictionLayer:
    """Its latents lie in a layer of the cache of their own; slot i holds (hidden state of token i, token i + 1)."""

    def __init__(
        self,
        config: ModelConfig,
        kernels: KernelSet,
        source: WeightSource,
        rotary: Rotary,
        embedding: Tensor,
        head: Packed,
    ) -> None:
        """`embedding` and `head` are the model's, for checkpoints that do not store the layer's own."""
        number = config.layers
        prefix = f"model.layers.{number}"
        self._config = config
        self._kernels = kernels
        self._rotary = rotary
        self._token_norm = load_norm(source, f"{prefix}.enorm", config)
        self._hidden_norm = load_norm(source, f"{prefix}.hnorm", config)
        shape = (config.hidden, 2 * config.hidden)
        self._join: Packed = kernels.linear.pack(source.get(f"{prefix}.eh_proj.weight", shape))
        self.layer = load_layer(
            config, kernels, source, number, experts=source.has(f"{prefix}.mlp.gate.weight")
        )
        final_norm = load_norm(source, f"{prefix}.shared_head.norm", config)
        self._stack = LayerStack(config, kernels, [self.layer], final_norm)
        table = (config.vocab_size, config.hidden)
        own = f"{prefix}.embed_tokens.weight"
        self._embedding = source.get(own, table) if source.has(own) else embedding
        own = f"{prefix}.shared_head.head.weight"
        self._head: Packed = kernels.linear.pack(source.get(own, table)) if source.has(own) else head

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, hidden: Tensor, cache: Latents) -> Predicted:
        """batch.token_ids holds, for the token at each position, the one that follows it; hidden [T, H]: its state.

        Writes the T tokens' latents to the cache's prediction layer. What comes before them in their rows must be there
        already.
        """
        assert cache.prediction is not None
        step = plan_step(
            self._config, self._kernels, batch, cache.page_size, self._rotary.turns(batch.positions)
        )
        residual = self.join(batch.token_ids, hidden)
        x = self._stack.run(residual, [cache.prediction], step, hidden.dtype)
        return self.head(x.index_select(0, batch.sample_tokens))

    def join(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """[T, H] fp32: the layer's residual. The embedding comes first in eh_proj."""
        eps, dtype = self._config.rms_eps, hidden.dtype
        embedded = self._kernels.rms_norm(
            F.embedding(token_ids, self._embedding), self._token_norm, eps, dtype
        )
        state = self._kernels.rms_norm(hidden, self._hidden_norm, eps, dtype)
        return self._kernels.linear(torch.cat((embedded, state), dim=-1), self._join).float()

    def head(self, hidden: Tensor) -> Predicted:
        return Predicted(self._kernels.linear(hidden, self._head).argmax(dim=-1), hidden)


def has_prediction(config: ModelConfig, source: WeightSource) -> bool:
    """Whether the checkpoint has a prediction layer: many folders were saved without it."""
    return bool(config.prediction_layers) and source.has(f"model.layers.{config.layers}.eh_proj.weight")


def load_prediction(
    config: ModelConfig,
    kernels: KernelSet,
    source: WeightSource,
    rotary: Rotary,
    embedding: Tensor,
    head: Packed,
) -> PredictionLayer | None:
    """The first prediction layer, or None where the checkpoint has none."""
    if not has_prediction(config, source):
        return None
    return PredictionLayer(config, kernels, source, rotary, embedding, head)
