"""The optimiser: Muon for the matrices inside the network, AdamW for everything else.

Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") replaces the
momentum of a matrix by the nearest matrix whose singular values are equal. The scale that makes its
steps as large as AdamW's, so that both take one learning rate, is from "Muon is Scalable for LLM
Training" (arXiv:2502.16982, section 2.2).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Coefficients of the quintic iteration, from Jordan et al.: small singular values grow fast, to about 1.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Matrices [..., R, C] with their singular values brought near 1, in bf16, by Newton-Schulz iteration."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum with Nesterov's look-ahead, orthogonalised; decoupled weight decay."""

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; stacked matrices [E, R, C] count as E matrices."""
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                velocity = state.setdefault("velocity", torch.zeros_like(param))
                velocity.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonalise(param.grad.lerp(velocity, group["momentum"]))
                scale = 0.2 * max(param.shape[-2:]) ** 0.5
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(update.to(param.dtype), alpha=-group["lr"] * scale)


def build(network: nn.Module, lr: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers; AdamW for embedding, head, routers and (undecayed) gains."""
    inner: list[nn.Parameter] = []
    outer: list[nn.Parameter] = []
    gains: list[nn.Parameter] = []
    for name, param in network.named_parameters():
        if param.dim() < 2:
            gains.append(param)
        elif name.startswith(("embed_tokens", "lm_head")) or name.endswith("mlp.gate"):
            outer.append(param)
        else:
            inner.append(param)
    groups = [{"params": outer, "weight_decay": weight_decay}, {"params": gains, "weight_decay": 0.0}]
    return [
        Muon(inner, lr=lr, momentum=0.95, weight_decay=weight_decay),
        torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-10, fused=True),
    ]
