"""The network that is trained: a small DeepSeek-V3 with one multi-token prediction (MTP) layer.

Latent attention follows DeepSeek-V2 (arXiv:2405.04434, section 2.1); sigmoid routing with a
selection bias in place of a balance loss, and multi-token prediction, follow DeepSeek-V3
(arXiv:2412.19437, sections 2.1.2 and 2.2). Shapes in the docstrings: B rows, T tokens a row,
D hidden size, H heads, E experts, N = B * T.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """The sizes of the network, under the names that `config.json` gives them."""

    vocab_size: int = 2048
    hidden_size: int = 256
    num_hidden_layers: int = 4
    first_k_dense_replace: int = 1
    intermediate_size: int = 512
    moe_intermediate_size: int = 96
    n_routed_experts: int = 8
    n_shared_experts: int = 1
    num_experts_per_tok: int = 2
    routed_scaling_factor: float = 2.0
    num_attention_heads: int = 4
    q_lora_rank: int = 96
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 64
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048

    @property
    def qk_head_dim(self) -> int:
        """Width of one head's query and key: the part without position and the rotated part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class _Permute(torch.autograd.Function):
    """Rows in another order; the gradient is the inverse order, far cheaper than a scatter-add."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad_outputs[0].index_select(0, inverse), None, None


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension, in the dtype of `x`."""
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary position embedding over interleaved pairs (2i, 2i + 1); x is [B, h, T, R], angles [T, R/2].

    Queries and keys share the order of pairs, so scores equal those of a loader that first moves
    the pairs into two halves (`rope_interleave` in `config.json`).
    """
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    """Multi-head latent attention, in its plain form with keys and values expanded."""

    frequencies: Tensor  # [qk_rope_head_dim / 2], in radians a token

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        s, d, h = shape, shape.hidden_size, shape.num_attention_heads
        self.q_a_proj = nn.Linear(d, s.q_lora_rank, bias=False)
        self.q_a_layernorm = RMSNorm(s.q_lora_rank, s.rms_norm_eps)
        self.q_b_proj = nn.Linear(s.q_lora_rank, h * s.qk_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(d, s.kv_lora_rank + s.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = RMSNorm(s.kv_lora_rank, s.rms_norm_eps)
        self.kv_b_proj = nn.Linear(s.kv_lora_rank, h * (s.qk_nope_head_dim + s.v_head_dim), bias=False)
        self.o_proj = nn.Linear(h * s.v_head_dim, d, bias=False)
        exponents = torch.arange(0, s.qk_rope_head_dim, 2, dtype=torch.float32) / s.qk_rope_head_dim
        self.register_buffer("frequencies", s.rope_theta**-exponents, persistent=False)

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, head width] of x [B, T, D], its first token at `start`."""
        s, (b, t, _) = self.shape, x.shape
        positions = torch.arange(start, start + t, dtype=torch.float32)
        angles = positions[:, None] * self.frequencies
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(b, t, s.num_attention_heads, s.qk_head_dim).transpose(1, 2)
        q_nope, q_rope = q.split((s.qk_nope_head_dim, s.qk_rope_head_dim), dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((s.kv_lora_rank, s.qk_rope_head_dim), dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent))
        kv = kv.view(b, t, s.num_attention_heads, s.qk_nope_head_dim + s.v_head_dim).transpose(1, 2)
        k_nope, v = kv.split((s.qk_nope_head_dim, s.v_head_dim), dim=-1)
        k_rope = rotate(k_rope[:, None], angles).expand(-1, s.num_attention_heads, -1, -1)
        return torch.cat((q_nope, rotate(q_rope, angles)), -1), torch.cat((k_nope, k_rope), -1), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Softmax attention over the keys that `mask` [T, S] allows, causal where none is given; [B, T, D].

        Written out because at a few hundred tokens plain batched products train more than twice as
        fast on CPU as the fused attention does. Scores stay in bf16 under autocast.
        """
        b, h, t, _ = q.shape
        allowed = torch.ones(t, k.shape[2], dtype=torch.bool).tril() if mask is None else mask
        with torch.autocast("cpu", enabled=False):
            bias = torch.zeros(allowed.shape, dtype=q.dtype).masked_fill_(~allowed, float("-inf"))
            keys = k.flatten(0, 1).transpose(1, 2)
            scores = torch.baddbmm(bias, q.flatten(0, 1), keys, alpha=self.shape.qk_head_dim**-0.5)
            out = torch.bmm(scores.softmax(-1), v.flatten(0, 1)).view(b, h, t, -1)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class DenseMLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden, 2 * inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class MoE(nn.Module):
    """Routed experts plus a shared one.

    Expert weights are held stacked, so that the optimiser treats the experts of a layer as one batch.
    `load` counts the tokens that each expert received since the bias was last moved.
    """

    e_score_correction_bias: Tensor
    load: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        s, d, i = shape, shape.hidden_size, shape.moe_intermediate_size
        self.gate = nn.Parameter(torch.empty(s.n_routed_experts, d))
        self.gate_up = nn.Parameter(torch.empty(s.n_routed_experts, 2 * i, d))
        self.down = nn.Parameter(torch.empty(s.n_routed_experts, d, i))
        self.shared_experts = DenseMLP(d, i * s.n_shared_experts)
        self.register_buffer("e_score_correction_bias", torch.zeros(s.n_routed_experts))
        self.register_buffer("load", torch.zeros(s.n_routed_experts), persistent=False)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Experts [N, k] and their weights [N, k] for x [N, D]: the bias chooses, the plain scores weigh."""
        with torch.autocast("cpu", enabled=False):
            scores = torch.sigmoid(x.float() @ self.gate.T)
        chosen = (scores.detach() + self.e_score_correction_bias).topk(self.shape.num_experts_per_tok).indices
        weights = scores.gather(1, chosen)
        return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.shape.routed_scaling_factor

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] to [B, T, D]."""
        k, flat = self.shape.num_experts_per_tok, x.flatten(0, 1)
        chosen, weights = self.route(flat)
        order = chosen.flatten().argsort(stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order))
        counts = torch.bincount(chosen.flatten(), minlength=self.shape.n_routed_experts)
        if self.training:
            self.load += counts
        repeated = flat[:, None].expand(-1, k, -1).reshape(-1, flat.shape[-1])
        parts = _Permute.apply(repeated, order, inverse).split(counts.tolist())
        outs = []
        for part, gate_up, down in zip(parts, self.gate_up.unbind(), self.down.unbind(), strict=True):
            gate, up = F.linear(part, gate_up).chunk(2, dim=-1)
            outs.append(F.linear(F.silu(gate) * up, down))
        routed = _Permute.apply(torch.cat(outs), inverse, order).view(len(flat), k, -1)
        mixed = (routed * weights.to(routed.dtype)[..., None]).sum(1)
        return mixed.view_as(x) + self.shared_experts(x)

    @torch.no_grad()
    def balance(self, step: float) -> float:
        """Move the bias of each expert towards even load; the largest share of tokens before the move.

        The rule of DeepSeek-V3 (section 2.1.2): down by `step` when overloaded, up when underloaded.
        """
        largest = float(self.load.max() / self.load.sum().clamp_min(1))
        self.e_score_correction_bias += step * (self.load.mean() - self.load).sign()
        self.load.zero_()
        return largest


class ChannelDropout(nn.Module):
    """Drops whole channels of a row, the same at every token (Gal and Ghahramani, arXiv:1512.05287).

    One mask a row costs next to nothing, where one a token would slow training on CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rate = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] to [B, T, D]; the identity outside training."""
        if not self.training or not self.rate:
            return x
        kept = torch.rand(x.shape[0], 1, x.shape[2]) >= self.rate
        return x * (kept / (1 - self.rate)).to(x.dtype)


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, shape: Shape, dense: bool) -> None:
        super().__init__()
        d, eps = shape.hidden_size, shape.rms_norm_eps
        self.input_layernorm = RMSNorm(d, eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(d, eps)
        self.mlp = DenseMLP(d, shape.intermediate_size) if dense else MoE(shape)
        self.dropout = ChannelDropout()

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] to [B, T, D], causal."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), 0)
        return self.finish(x, self.self_attn.attend(q, k, v))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer after its attention: both residual sums."""
        x = x + self.dropout(attended)
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Predictor(nn.Module):
    """The MTP layer, used once for each depth.

    Depth 1 at position i joins the hidden state h_i (after `model.norm`) with the embedding of token
    i + 1 and predicts token i + 2. Depth 2 at i + 1 joins depth 1's state at i (after
    `shared_head.norm`) with the embedding of token i + 2 and predicts token i + 3. Embedding and
    output head are those of the main model.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d, eps = shape.hidden_size, shape.rms_norm_eps
        self.enorm = RMSNorm(d, eps)
        self.hnorm = RMSNorm(d, eps)
        self.eh_proj = nn.Linear(2 * d, d, bias=False)
        self.block = Block(shape, dense=False)
        self.norm = RMSNorm(d, eps)

    def forward(self, hidden: Tensor, embedded: Tensor, depths: int) -> list[Tensor]:
        """States [B, T - d, D] after `norm` for d = 1 .. depths, from hidden and embedded [B, T, D].

        A deeper query sees what a server's cache holds when it drafts: depth 1's keys of all earlier
        positions up to where the draft began, then the keys of its own chain.
        """
        attn, states, chain = self.block.self_attn, [], []
        for depth in range(1, depths + 1):
            embedded = embedded[:, 1:]
            hidden = hidden[:, : embedded.shape[1]]
            x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), dim=-1))
            q, k, v = attn.project(self.block.input_layernorm(x), depth - 1)
            t = x.shape[1]
            chain = [(ck[:, :, :t], cv[:, :, :t]) for ck, cv in chain] + [(k, v)]
            mask = None
            if depth > 1:
                own = torch.eye(t, dtype=torch.bool)
                mask = torch.cat([torch.ones(t, t, dtype=torch.bool).tril()] + [own] * (depth - 1), dim=1)
                k, v = (torch.cat(parts, dim=2) for parts in zip(*chain, strict=True))
            hidden = self.norm(self.block.finish(x, attn.attend(q, k, v, mask)))
            states.append(hidden)
        return states


class Network(nn.Module):
    """Embedding, layers, final norm, output head and the MTP layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(
            Block(shape, dense=i < shape.first_k_dense_replace) for i in range(shape.num_hidden_layers)
        )
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.mtp = Predictor(shape)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        """Normal weights of std 1/sqrt(fan in); embeddings of std 0.5.

        With embeddings much smaller, all tokens look alike to the routers and go to two experts.
        """
        for name, weight in self.named_parameters():
            if name.startswith("embed_tokens"):
                weight.normal_(std=0.5)
            elif weight.dim() >= 2:
                weight.normal_(std=weight.shape[-1] ** -0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states after the final norm [B, T, D] for tokens [B, T]."""
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def set_dropout(self, rate: float) -> None:
        """Drop this share of the channels of every branch from now on, in training only."""
        for module in self.modules():
            if isinstance(module, ChannelDropout):
                module.rate = rate

    def routers(self) -> Iterator[MoE]:
        """Every mixture layer, the MTP layer's last."""
        return (module for module in self.modules() if isinstance(module, MoE))


class _HeadLoss(torch.autograd.Function):
    """Cross-entropy of an output head, a block of rows at a time, with the gradients made on the way.

    The logits of a step would be written and read back several times; one block stays in the cache.
    """

    ROWS = 512

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        rows, weight = hidden.detach().bfloat16(), head.detach().bfloat16()
        total, grad_rows = torch.zeros(()), torch.empty_like(rows)
        grad_head = torch.zeros(head.shape)
        for start in range(0, len(rows), _HeadLoss.ROWS):
            block = slice(start, start + _HeadLoss.ROWS)
            logits = (rows[block] @ weight.T).float()
            logits -= logits.amax(-1, keepdim=True)
            target = targets[block, None]
            picked = logits.gather(1, target)
            exps = logits.exp_()
            sums = exps.sum(-1, keepdim=True)
            total += (sums.log() - picked).sum()
            slope = exps.div_(sums).scatter_add_(1, target, torch.full(target.shape, -1.0)).bfloat16()
            grad_rows[block] = slope @ weight
            grad_head += slope.T @ rows[block]
        ctx.save_for_backward(grad_rows, grad_head)
        return total / len(rows)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_rows, grad_head = ctx.saved_tensors
        scale = grad_outputs[0] / len(grad_rows)
        return grad_rows * scale.to(grad_rows.dtype), grad_head * scale, None


def head_loss(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Mean nats a token of `targets` [N] under softmax(hidden @ head.T), hidden [N, D], head [V, D]."""
    return _HeadLoss.apply(hidden, head, targets)
