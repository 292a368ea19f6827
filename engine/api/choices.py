"""One choice of a response while its sequence runs: from engine outputs to text that may be sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..sequence import Finish, FinishReason, Output, Request, TokenLogprob
from ..text.detokenizer import Detokenizer
from .errors import ended_early


@dataclass(slots=True)
class Tokens:
    """Tokens of a choice that were not sent yet, as parallel lists; log-probabilities where asked for. Kept where
    `Choice.keep_tokens` says so."""

    ids: list[int] = field(default_factory=list)
    offsets: list[int] = field(
        default_factory=list
    )  # where each one's text begins in the choice's, in characters
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Choice:
    """Text and tokens pile up until they are taken: at once, or many steps' worth in one chunk where the client reads
    slowly, or all for one answer.
    """

    index: int
    request: Request
    prompt_index: int
    detokenizer: Detokenizer | None  # None: a model without a tokenizer, whose output is token ids only
    keep_stop: bool  # include_stop_str_in_output
    keep_tokens: bool  # the answer names them: token ids or log-probabilities were asked for
    texts: list[str] = field(default_factory=list)  # pending
    tokens: Tokens = field(default_factory=Tokens)  # pending
    characters: int = 0  # of all text so far
    completion_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None  # the stop token id or stop string that the request named
    ended: bool = False  # in the engine: it said so, or it was told to

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    def absorb(self, output: Output) -> None:
        """Take one step's output in. Raises ApiError when the sequence failed or was cancelled."""
        finish = output.finish
        if finish is not None:
            self.ended = True
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        spoken = output.token_ids
        if finish is not None and finish.reason is FinishReason.STOP and not self.keep_stop:
            spoken = spoken[:-1]  # the token that stopped it counts, and is not text
        used = len(output.token_ids)
        offsets: Sequence[int] = ()
        if self.detokenizer is not None:
            piece = self.detokenizer.push(spoken)
            offsets = piece.offsets
            if piece.text:
                self._say(piece.text)
            if piece.stopped is not None:
                used = piece.tokens_used
                self._stop(piece.stopped)
        if finish is not None and not self.done:
            self._finish(finish)
        self.completion_tokens += used
        if self.keep_tokens:
            self._keep(output, used, offsets)

    def _keep(self, output: Output, used: int, offsets: Sequence[int]) -> None:
        self.tokens.ids.extend(output.token_ids[:used])
        self.tokens.offsets.extend(offsets)
        # Without text: the token that stopped it, and all of a model without a tokenizer.
        self.tokens.offsets.extend([self.characters] * (used - len(offsets)))
        if output.logprobs is not None:
            self.tokens.logprobs.extend(output.logprobs[:used])

    def take_text(self) -> str:
        """The pending text, which is pending no longer."""
        text = "".join(self.texts)
        self.texts.clear()
        return text

    def take_tokens(self) -> Tokens:
        """The pending tokens, which are pending no longer."""
        taken, self.tokens = self.tokens, Tokens()
        return taken

    def _say(self, text: str) -> None:
        if text:
            self.texts.append(text)
            self.characters += len(text)

    def _stop(self, stop: str) -> None:
        self.finish_reason = "stop"
        self.stop_reason = stop

    def _finish(self, finish: Finish) -> None:
        """The engine's end. What the detokenizer held back may still hold a stop string."""
        if finish.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise ended_early(finish)
        if self.detokenizer is not None:
            piece = self.detokenizer.flush()
            self._say(piece.text)
            if piece.stopped is not None:
                self._stop(piece.stopped)
                return
        self.finish_reason = finish.reason.value
        if finish.stop_match in self.request.params.stop_token_ids:
            self.stop_reason = finish.stop_match


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one response; a prompt shared by n choices counts once."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def json(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def usage_of(choices: Sequence[Choice]) -> Usage:
    prompts = {choice.prompt_index: choice for choice in reversed(choices)}  # the first choice of each prompt
    return Usage(
        sum(len(choice.request.prompt) for choice in prompts.values()),
        sum(choice.completion_tokens for choice in choices),
        sum(choice.cached_tokens for choice in prompts.values()),
    )
