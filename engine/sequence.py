"""What crosses the border between the API and the engine thread, and the engine's own record of a sequence.

`Request` goes in, `Output` comes out, both frozen: the API may later live in another process (docs/design.md).
`Sequence` is the engine's mutable state of one request and never leaves the engine thread.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token of one request is chosen. Bounds are checked where the request enters (engine/api)."""

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0: all of the vocabulary
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None  # None: the engine draws one; never depends on what else is in the batch
    logprobs: int | None = None  # None: no log-probabilities; n: the chosen token's and the n best
    stop: tuple[str, ...] = ()  # matched on text by the detokenizer, across token borders
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0  # end-of-sequence and stop token ids are barred before this many
    max_tokens: int = 16
    ignore_eos: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to complete. `n` choices of one API call are n requests that share a prefix."""

    id: str
    prompt: tuple[int, ...]  # token ids, at least one
    params: SamplingParams
    priority: int = 0  # lower runs earlier under sched.order = priority
    arrival: float = 0.0  # time.monotonic() at the API's door, seconds


class FinishReason(enum.StrEnum):
    """Why a sequence ended. Each gives its pages back at once."""

    STOP = "stop"  # end-of-sequence, a stop token id or a stop string
    LENGTH = "length"  # max_tokens or the model's context is reached
    CANCELLED = "cancelled"  # an operator's or the API's cancel
    DISCONNECTED = "disconnected"  # the client went away
    CAPACITY = "capacity"  # its tokens need more pages than it could ever get: `detail` has the numbers
    FAULT = "fault"  # a step failed: `detail` says how


class WaitReason(enum.StrEnum):
    """Why a sequence is not in this step. Every waiting sequence carries one."""

    QUEUED = "queued"  # arrived after the last step was formed
    RUNNING_CAP = "running cap"  # sched.max_running sequences are admitted
    TOKEN_BUDGET = "token budget"  # sched.max_step_tokens went to others
    NO_PAGES = "no pages"  # its next pages cannot be had without preempting
    PAUSED = "paused"  # sched.paused
    BUCKET = "bucket"  # bucketed admission runs another KV length in this step
    PREEMPTED = "preempted"  # gave its pages to others in this step; no admission in such a step


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one sequence."""

    reason: FinishReason
    detail: str | None = (
        None  # for FAULT, CAPACITY and CANCELLED: what happened, in words a client can act on
    )
    stop_match: int | str | None = None  # the stop token id or stop string that matched


class TokenLogprob(msgspec.Struct, frozen=True):
    """Natural-log probabilities at one position, of the distribution before temperature and truncation."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the best tokens, most likely first


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What one step brought for one request. Results go out once a step, all requests together."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None  # one for each of token_ids when asked for
    finish: Finish | None = None  # the last Output of a request carries it, and only that one
    cached_tokens: int = 0  # prompt tokens that came from the prefix cache


class Status(enum.StrEnum):
    WAITING = "waiting"  # holds no pages
    RUNNING = "running"  # admitted: holds pages; prefilling or decoding
    FINISHED = "finished"  # holds no pages again


@dataclass(slots=True, eq=False)
class Sequence:
    """The engine's state of one request.

    Invariants: `predicted` <= `computed` <= len(tokens); the KV of tokens[:computed] is in `pages`, and that of the
    prediction layer for tokens[:predicted]; a sequence that is not RUNNING has no pages, no drafts and computed = 0. A
    decode row is a RUNNING sequence with exactly one token left to compute.
    """

    number: int  # unique in this engine's life, ascending by arrival
    request: Request
    tokens: list[int]  # prompt and output
    prompt_len: int
    status: Status = Status.WAITING
    wait_reason: WaitReason | None = WaitReason.QUEUED
    computed: int = 0
    pages: list[int] = field(default_factory=list)  # append-only while RUNNING
    predicted: int = 0
    drafts: tuple[int, ...] = ()  # tokens proposed to follow the last one; the next step verifies them
    cached_prefix: int = 0  # prompt tokens taken from the prefix cache at the first admission
    preemptions: int = 0
    drafted: int = 0  # drafts verified so far
    accepted: int = 0  # of these, drafts that were right
    finish: Finish | None = None
    # times, time.monotonic() seconds; None until it happened
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    finished_at: float | None = None

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def output_len(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def remaining(self) -> int:
        """Tokens whose KV is not yet in the cache: 1 for a decode row, more while prefilling."""
        return len(self.tokens) - self.computed


def sequence_of(number: int, request: Request) -> Sequence:
    return Sequence(
        number=number, request=request, tokens=list(request.prompt), prompt_len=len(request.prompt)
    )
