"""What every backend's tests compare with: routing as the model's config describes it, paged latents, and attention in
float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from arc.kernels import latents
from torch import Tensor

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Spec:
    scoring: str = "sigmoid"
    experts: int = 12
    top_k: int = 3
    groups: int = 4
    top_groups: int = 2
    method: str = "group_top2"
    normalise: bool = True
    scale: float = 2.5


class Paged:
    """Rows of random latents on shuffled pages; every slot that no row holds is poison, the null page (0) included."""

    def __init__(
        self,
        lengths: Sequence[int],
        page_size: int,
        rank: int,
        rope: int,
        dtype: torch.dtype,
        *,
        device: torch.device = CPU,
        poison: float = math.nan,
        form: str = "stored",
        tables: Tensor | None = None,
    ) -> None:
        """`form`: as cache.latents; bytes in place of NaN have all their bits set. `tables`: another cache's."""
        most = -(-max(lengths) // page_size)
        pages = 1 + torch.randperm(len(lengths) * most).view(len(lengths), most)
        if tables is not None:
            pages = tables.cpu()
        width, kind = latents.slot(form, rank, rope, dtype)
        self.cache = torch.zeros(((len(lengths) * most + 1) * page_size, width), dtype=kind, device=device)
        self.cache.fill_(poison if form == "stored" else 0xFF if math.isnan(poison) else int(poison))
        self.rows: list[
            Tensor
        ] = []  # what each row holds, [length, rank + rope] float64, as the cache keeps it
        self.exact: list[Tensor] = []  # and as it was before
        for row, length in enumerate(lengths):
            pages[row, -(-length // page_size) :] = 0
            place = torch.arange(length)
            slots = (pages[row, place // page_size] * page_size + place % page_size).to(device)
            values = torch.randn(length, rank + rope).to(device, dtype)
            if form == "stored":
                self.cache[slots] = values
            else:
                latents.write(self.cache, slots, values[:, :rank].float(), values[:, rank:])
            self.exact.append(values.double())
            held = self.cache[slots]
            if form == "stored":
                self.rows.append(held.double())
            else:
                latent = latents.latent_part(held, rank, torch.float64)
                self.rows.append(
                    torch.cat((latent, latents.rope_part(held, rank, rope, dtype).double()), dim=1)
                )
        self.tables = pages.to(device)


def decode_attention(
    q: Tensor, rows: Sequence[Tensor], counts: Sequence[int], scale: float, rank: int
) -> tuple[Tensor, Tensor]:
    """[Q, h, rank] float64 and the scores' log-sum-exp [Q, h]: the last counts[r] tokens of row r are its queries."""
    outs: list[Tensor] = []
    sums: list[Tensor] = []
    for kv, count in zip(rows, counts, strict=True):
        for seen in range(len(kv) - count + 1, len(kv) + 1):
            scores = q[len(outs)].double() @ kv[:seen].T * scale
            outs.append(scores.softmax(-1) @ kv[:seen, :rank])
            sums.append(scores.logsumexp(-1))
    return torch.stack(outs), torch.stack(sums)


def prompt_attention(
    q: Tensor,
    chunks: Sequence[tuple[int, int]],
    rows: Sequence[Tensor],
    key_up: Tensor,
    value_up: Tensor,
    scale: float,
) -> Tensor:
    """[T, h, v] float64: the last tokens of each row see what is before them; (length, count) is a row's chunk.

    q [T, h, nope + rope]; rows: latents [length, rank + rope] float64; key_up [h, nope, rank], value_up [h, v, rank].
    """
    heads, rank = key_up.shape[0], key_up.shape[2]
    want: list[Tensor] = []
    for (length, count), kv in zip(chunks, rows, strict=True):
        keys = torch.cat((kv[:, :rank] @ key_up.double().mT, kv[:, rank:].expand(heads, -1, -1)), dim=-1)
        mine = q[len(want) : len(want) + count].double()
        scores = torch.einsum("qhd,hkd->hqk", mine, keys) * scale
        place = torch.arange(length, device=q.device)
        later = place > place[length - count :].unsqueeze(1)
        values = kv[:, :rank] @ value_up.double().mT
        want += (scores.masked_fill(later, -math.inf).softmax(-1) @ values).transpose(0, 1)
    return torch.stack(want)
