"""The operations that a model's forward pass is made of, as contracts.

An operation that needs weights packs them itself: what `pack` returns is opaque and goes back to the same operation, so
that a backend is free in its layout. An operation that works from the batch's lengths plans on the host once a step;
the plan serves every layer and is opaque too.

Sizes in the docstrings: T tokens of the step, R rows, h heads, H hidden, E experts, k experts a token, I an expert's
intermediate size, `rank` = kv_lora_rank, `nope` / `rope` = the two parts of a query head, v = v_head_dim, and
W = rank + rope, the width of a cached token. Activations have the model's dtype unless a line says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

Packed = Any  # weights in a backend's own layout
Plan = Any  # a backend's host-side plan of one step
Expand = Callable[[Tensor], tuple[Tensor, Tensor]]


class Buffers(Protocol):
    """Where large results of a step get their memory, for operations that can write into a given place."""

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """A contiguous place for one result, its contents undefined; None: let torch allocate, as `out=None` does.

        The place is given back by itself when no tensor refers to it any more. Whoever holds on to it past the step
        says so with `keep`.
        """
        ...

    def keep(self, tensor: Tensor) -> None:
        """`tensor`, taken here or not, is meant to outlive the step."""
        ...

    def bypass(self) -> None:
        """Count a result that its operation cannot be given a place for."""
        ...


class SystemBuffers:
    """No buffers: every operation allocates as torch does."""

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        return None

    def keep(self, tensor: Tensor) -> None:
        return

    def bypass(self) -> None:
        return


SYSTEM = SystemBuffers()


@dataclass(frozen=True, slots=True)
class Target:
    """Where and in which dtype the operations will run, and where their large results get their memory.

    weights: how the experts' are kept: `stored`, in the dtype; `int8`; `int4`; or `fp8`. Those of linear and gated_mlp
    are int8 under int8, and as stored under fp8; under int4 the native backend keeps them in int8 and int4, the others
    as stored. Activations keep the dtype. A backend refuses what it does not keep so.
    latents: how they lie in the cache, `stored` or `fp8` (latents.py).
    """

    device: torch.device
    dtype: torch.dtype
    weights: str = "stored"
    buffers: Buffers = SYSTEM
    latents: str = "stored"
    interpret: bool = (
        False  # a backend may run under an interpreter, which proves kernels and is far too slow to serve
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a backend does not offer an operation for a target, in words for an operator."""

    reason: str


class Section(NamedTuple):
    """One stretch of work that a backend timed itself, because Python sees only the call around it.

    A tuple, because some 16 a layer are made in each step that is recorded.
    """

    name: str  # of the span, as the profiler's tree names it: mla_attn, q_proj, attend, moe, experts, ...
    layer: int  # of the model; -1: of none
    began: int  # ns, on the clock of time.perf_counter_ns
    ended: int


class Stamps(Protocol):
    """A backend's own clock, for backends that run several operations in one call."""

    def record(self, on: bool) -> None:
        """Start or stop recording, at a step border. Off, a call pays nothing for it."""
        ...

    def take(self) -> list[Section]:
        """What was recorded since the last take: parents before their children."""
        ...


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        """x / rms(x) * weight over the last dimension, computed in fp32 (Zhang and Sennrich 2019, arXiv:1910.07467).

        x [T, n] of any float dtype, rows possibly strided; weight [n] fp32; gives [T, n] in `dtype`.
        """
        ...


class AddRmsNorm(Protocol):
    def __call__(self, residual: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add `update` [T, H] to `residual` [T, H] fp32 in place; give rms_norm of the sum in update's dtype."""
        ...


class Rope(Protocol):
    def __call__(self, x: Tensor, turns: Tensor) -> None:
        """Turn the pairs (0, 1), (2, 3), ... of x [T, n, rope] in place (Su et al. 2021, arXiv:2104.09864).

        turns [T, rope / 2] complex64: one factor a pair, cos + i sin, times the attention factor of YaRN.
        """
        ...


class LatentWrite(Protocol):
    def __call__(
        self, kv: Tensor, cache: Tensor, slots: Tensor, *, weight: Tensor, eps: float, turns: Tensor
    ) -> None:
        """Write each token's latent to its slot of one layer's cache.

        kv [T, W]: the down-projection, which may be overwritten. The latent part is normalised by `weight` [rank] fp32,
        the rope part is turned by `turns` as `Rope` does. cache [pages * page_size, W]; slots [T] int64, all different.
        """
        ...


class Linear(Protocol):
    def pack(self, weight: Tensor, bias: Tensor | None = None, *, kept: bool = False) -> Packed:
        """weight [N, K], bias [N]. `kept`: the caller holds on to the weight, so a packed copy would double it."""
        ...

    def __call__(self, x: Tensor, packed: Packed) -> Tensor:
        """x [T, K], rows possibly strided; gives [T, N]."""
        ...


class GatedMlp(Protocol):
    def pack(self, gate_up: Tensor, down: Tensor) -> Packed:
        """gate_up [2, I, H]: gate, then up; down [H, I]."""
        ...

    def __call__(self, x: Tensor, packed: Packed) -> Tensor:
        """(silu(x gate^T) * (x up^T)) down^T: [T, H] to [T, H] (Shazeer 2020, arXiv:2002.05202)."""
        ...


class KvUp(Protocol):
    """The latent's up-projection kv_b_proj, a head at a time, used in three ways."""

    def pack(self, key_up: Tensor, value_up: Tensor) -> Packed:
        """key_up [h, nope, rank], value_up [h, v, rank]."""
        ...

    def absorb(self, q_nope: Tensor, packed: Packed) -> Tensor:
        """Queries moved into the latent's space: q_nope [R, h, nope], strided, to [R, h, rank], possibly strided.

        (q k_up) . latent = q . (k_up latent): DeepSeek-V2, arXiv:2405.04434, 2.1.2.
        """
        ...

    def value(self, out: Tensor, packed: Packed) -> Tensor:
        """Attention's result moved from the latent's space to the heads': out [R, h, rank], strided, to [R, h, v]."""
        ...

    def expand(self, latents: Tensor, packed: Packed) -> tuple[Tensor, Tensor]:
        """Keys [h, L, nope] and values [h, L, v] of latents [L, rank]; all possibly strided."""
        ...


class MlaDecode(Protocol):
    """Attention of a few query tokens a row over paged latents, absorbed: the latent is key and value at once."""

    def plan(
        self,
        lengths: Sequence[int],
        counts: Sequence[int],
        block_tables: Tensor,
        page_size: int,
        width: int,
    ) -> Plan:
        """Row r's counts[r] >= 1 queries are the last of its lengths[r] tokens; all of them are in the cache.

        block_tables [R, P] int64 with P pages enough for the longest. Q = sum(counts); more than one query a row is a
        row whose drafts are verified, and each query sees what comes before it and itself.
        """
        ...

    def __call__(self, q: Tensor, cache: Tensor, plan: Plan, *, scale: float, rank: int) -> Tensor:
        """q [Q, h, W], the rows' queries one after the other: absorbed, then turned rope part; cache [slots, W].

        Gives [Q, h, rank], possibly strided.

        What a cache slot past a row's length holds never matters, as long as products with it stay finite.
        """
        ...


@runtime_checkable
class Replayable(Protocol):
    """Decode attention whose plan can be filled anew in place, so that one captured graph serves many steps."""

    def fixed_plan(self, rows: int, queries: int, pages: int, page_size: int, device: torch.device) -> Plan:
        """A plan of up to so many rows, of up to `queries` queries and `pages` pages each. It is to be filled before it
        is used.
        """
        ...

    def refill(self, plan: Plan, lengths: Sequence[int], counts: Sequence[int], block_tables: Tensor) -> None:
        """Lay out a step's rows in the plan's own memory, as `plan` has them; block_tables may have further rows."""
        ...


class MlaPrefill(Protocol):
    """Causal attention of prompt chunks over paged latents, which are expanded to keys and values."""

    def plan(
        self, lengths: Sequence[int], counts: Sequence[int], block_tables: Tensor, page_size: int, heads: int
    ) -> Plan:
        """Row r's counts[r] >= 1 queries are the last of its lengths[r] tokens; all of them are in the cache."""
        ...

    def __call__(
        self, q: Tensor, cache: Tensor, plan: Plan, *, scale: float, rank: int, expand: Expand
    ) -> Tensor:
        """q [T, h, nope + rope] of the rows' queries one after the other; gives [T, h, v].

        `expand` gives keys [h, L, nope] and values [h, L, v] of latents [L, rank].
        """
        ...


class RoutingSpec(Protocol):
    """How the gate chooses; the model's config has these fields, with these meanings."""

    @property
    def scoring(self) -> str: ...  # softmax | sigmoid
    @property
    def experts(self) -> int: ...
    @property
    def top_k(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def top_groups(self) -> int: ...
    @property
    def method(self) -> str: ...  # greedy | group_max | group_top2
    @property
    def normalise(self) -> bool: ...
    @property
    def scale(self) -> float: ...


class MoeGate(Protocol):
    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, spec: RoutingSpec
    ) -> tuple[Tensor, Tensor]:
        """The experts of each token: weights [T, k] fp32 and indices [T, k] int64, in no particular order.

        x [T, H]; weight [E, H] fp32; bias [E] fp32 chooses but does not weigh. Scores are fp32. The groups kept
        have top_k experts at least; under group_top2 each has two.
        """
        ...


class MoeExperts(Protocol):
    def pack(
        self,
        experts: Iterable[tuple[Tensor, Tensor]],
        count: int,
        shared: tuple[Tensor, Tensor] | None,
        top_k: int,
    ) -> Packed:
        """`experts` yields gate_up [2, I, H] and down [H, I] of the `count` experts in order, once.

        It reads them as it goes, so a backend that packs one at a time never holds two copies of a layer. shared: one
        more gated MLP [2, nI, H], [H, nI] that every token takes, n whole.
        """
        ...

    def __call__(self, x: Tensor, weights: Tensor, indices: Tensor, packed: Packed) -> Tensor:
        """The weighted sum of each token's experts, plus the shared one: [T, H] to [T, H].

        Dispatch, experts, combination and the shared expert are one operation, since the fast forms fuse them.
        """
        ...


@dataclass(frozen=True, slots=True)
class AttentionOperands:
    """What one layer's attention holds; every `Packed` comes from the operation that it belongs to."""

    norm: Tensor  # [H] fp32, of what enters
    down: Packed  # linear: q_a, or q, and kv_a in one
    query_norm: Tensor | None  # [q_lora] fp32; None: no query latent, and `down` gives the queries
    query_up: Packed | None  # linear
    latent_norm: Tensor  # [rank] fp32
    kv_up: Packed
    out: Packed  # linear


@dataclass(frozen=True, slots=True)
class ExpertOperands:
    gate: Tensor  # [E, H] fp32
    bias: Tensor | None  # [E] fp32
    routing: RoutingSpec
    experts: Packed  # moe_experts


@dataclass(frozen=True, slots=True)
class LayerOperands:
    attention: AttentionOperands
    mlp_norm: Tensor  # [H] fp32
    mlp: Packed | ExpertOperands  # gated_mlp, or a gate and experts


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What all layers of a stack share."""

    hidden: int
    heads: int
    rank: int
    nope: int
    rope: int
    v: int
    eps: float  # of the norms of the residual
    latent_eps: float  # of the norms of the two latents
    softmax_scale: float


class StepInputs(Protocol):
    """A step as the layers see it: what the operations get one by one, together."""

    @property
    def turns(self) -> Tensor: ...  # [T, rope / 2] complex64
    @property
    def slots(self) -> Tensor: ...  # [T] int64
    @property
    def decode_tokens(self) -> int: ...  # these come first
    @property
    def decode(self) -> Plan | None: ...  # mla_decode's
    @property
    def prefill(self) -> Plan | None: ...  # mla_prefill's


class Decoder(Protocol):
    """Layers run over a step's tokens in one call. Not every backend has this: they then run one by one.

    It does what the operations do in their order, up to the order of sums and to roundings between them that it leaves
    out. Layers may be any list: the model's, or one prediction layer with a cache of its own.
    """

    @property
    def stamps(self) -> Stamps:
        """The sections of its calls, whatever stack they ran."""
        ...

    def pack(self, layers: Sequence[LayerOperands], final_norm: Tensor, shape: DecoderShape) -> Packed:
        """The stack, for calls; it keeps what the operands hold alive. final_norm [H] fp32."""
        ...

    def __call__(
        self, residual: Tensor, packed: Packed, caches: Sequence[Tensor], step: StepInputs
    ) -> Tensor:
        """Add all layers to `residual` [T, H] fp32 in place; give its final norm [T, H] in the model's dtype.

        caches: one [slots, W] a layer, to which the tokens' latents are written.
        """
        ...


GREEDY_BELOW = 1e-5  # a temperature below it is greedy, as in vLLM: there 1e-4 of a logit is a factor of e^10


class Sample(Protocol):
    """One token a row, from its logits, its filters and one uniform number: docs/sampling.md says in which order."""

    def plan(
        self,
        *,
        temperature: Sequence[float],
        top_k: Sequence[int],
        top_p: Sequence[float],
        min_p: Sequence[float],
        vocab_size: int,
        device: torch.device,
    ) -> Plan:
        """The parameters of a batch's rows. top_k 0, or past the vocabulary, is none; top_p 1 and min_p 0 are none."""
        ...

    def __call__(self, logits: Tensor, plan: Plan, uniform: Tensor) -> Tensor:
        """logits [S, V] fp32 and uniform [S] float64 in [0, 1) give [S] int64.

        Logits are finite, or -inf for a token that must not come; each row has a finite one. The token is the inverse
        of the cumulative distribution at the uniform number: over what the filters left in descending order, or in the
        order of the ids where there is no filter. Of equal logits the lower id is the likelier.
        """
        ...

    def not_finite(self, logits: Tensor) -> list[int]:
        """The rows of logits [S, V] fp32 that hold NaN or an infinity, ascending: what a model must not give."""
        ...
