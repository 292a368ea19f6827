"""The flat, ragged token batch that the model runs, as the runner lays it out."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """T query tokens of R rows, flat: row r's queries are tokens [query_starts[r], query_starts[r + 1]).

    The first `decode_rows` rows have few query tokens each (one, and the drafts that are verified with it) and go
    through the absorbed form; the others are prompt chunks and go through the expanded form. Lengths are known on the
    host, so that work can be planned without waiting for the device.
    """

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, 0-based place of each token in its sequence
    slots: torch.Tensor  # [T] int64, where each token's latent is written: page * page_size + offset
    block_tables: torch.Tensor  # [R, P] int64, pages of each row, padded with a page of zeros
    lengths: tuple[int, ...]  # R: KV length of each row after this step's tokens are written
    query_starts: tuple[int, ...]  # R + 1
    decode_rows: int
    sample_tokens: torch.Tensor  # [S] int64: indices into T of the tokens whose logits are wanted
