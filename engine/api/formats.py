"""The two answers of the API, `/v1/completions` and `/v1/chat/completions`, whole and as server-sent events.

A chunk that carries nothing but text is put together from bytes made ready when its choice began: that is the path of
every token of every stream. All other chunks are built as objects, and those bytes are cut from such an object.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from ..core.interface import EngineInfo
from .bodies import ChatBody, CompletionBody
from .choices import Choice, Tokens, Usage
from .tokens import LogprobWriter, TokenNames

encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
_HOLE = "\0text\0"  # stands where a chunk's text goes while its frame is cut; its encoded form occurs nowhere else


def event(data: Any) -> bytes:
    """One server-sent event. Encoded JSON holds no raw line break, so that one `data:` line always does."""
    return b"data: " + encode(data) + b"\n\n"


class Format(ABC):
    """How one response is written. One object serves one response."""

    id_prefix: str
    answer_kind: str
    chunk_kind: str

    def __init__(self, body: CompletionBody | ChatBody, info: EngineInfo, names: TokenNames | None) -> None:
        """`names` is None for a model without a tokenizer: log-probabilities cannot be asked for then."""
        self.id = f"{self.id_prefix}-{uuid.uuid4().hex}"
        self._envelope = {
            "created": int(time.time()),
            "model": info.model,
            "system_fingerprint": info.revision,
        }
        self._ids_wanted = bool(body.return_token_ids)
        self._writer = None
        if names is not None and body.logprobs is not None and body.logprobs is not False:
            self._writer = LogprobWriter(names, bool(body.return_tokens_as_token_ids))
        options = body.stream_options
        self._usage_wanted = options is not None and options.include_usage
        self._usage_always = options is not None and options.continuous_usage_stats
        self._plain = not (self._ids_wanted or self._writer or self._usage_always)
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # of each choice that has begun, around its text

    @abstractmethod
    def _spoken(self, text: str) -> dict[str, Any]:
        """The member of a whole choice that carries its text."""

    @abstractmethod
    def _delta(self, text: str) -> dict[str, Any]:
        """The member of a chunk's choice that carries its text."""

    @abstractmethod
    def _write_logprobs(self, writer: LogprobWriter, choice: Choice, tokens: Tokens) -> dict[str, Any]: ...

    def _echo(self, choice: Choice) -> str:
        """What goes before the choice's own text."""
        return ""

    def _opening(self, choice: Choice) -> bytes:
        """The event before the choice's first text."""
        return b""

    def _prompt_ids(self, choice: Choice) -> tuple[dict[str, Any], dict[str, Any]]:
        """Where the prompt's ids go when asked for: members of the response, members of the choice."""
        return {}, {}

    def answer(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The whole response, as JSON."""
        of_response: dict[str, Any] = {}
        rendered: list[dict[str, Any]] = []
        for choice in choices:
            more, of_choice = self._prompt_ids(choice) if self._ids_wanted else ({}, {})
            of_response |= more
            text = self._echo(choice) + choice.take_text()
            rendered.append(self._spoken(text) | self._rest(choice) | of_choice)
        return encode(
            self._head(self.answer_kind) | {"choices": rendered, "usage": usage.json()} | of_response
        )

    def chunk(self, choice: Choice, usage: Usage | None) -> bytes:
        """What is pending of one choice, as events; `usage` so far, needed where `usage_always` is set."""
        text = choice.take_text()
        opening = b""
        first = choice.index not in self._frames
        if first:
            opening = self._opening(choice)
            text = self._echo(choice) + text
            self._frames[choice.index] = self._frame(choice)
        if self._plain and not choice.done:
            head, tail = self._frames[choice.index]
            return opening + head + encode(text) + tail
        of_response, of_choice = self._prompt_ids(choice) if first and self._ids_wanted else ({}, {})
        rendered = self._delta(text) | self._rest(choice) | of_choice
        return opening + event(self._chunk_head(usage) | {"choices": [rendered]} | of_response)

    def last_events(self, usage: Usage) -> bytes:
        """What ends a stream: usage where asked for, and OpenAI's end mark."""
        if not self._usage_wanted:
            return DONE
        return event(self._head(self.chunk_kind) | {"choices": [], "usage": usage.json()}) + DONE

    @property
    def usage_always(self) -> bool:
        """Every chunk carries the usage so far."""
        return self._usage_always

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind} | self._envelope

    def _chunk_head(self, usage: Usage | None) -> dict[str, Any]:
        head = self._head(self.chunk_kind)
        if self._usage_always and usage is not None:
            head["usage"] = usage.json()
        elif self._usage_wanted:
            head["usage"] = None  # OpenAI: null on every chunk but the last, once asked for
        return head

    def _rest(self, choice: Choice) -> dict[str, Any]:
        """A choice's members beside its text. Takes the pending tokens."""
        tokens = choice.take_tokens()
        rest: dict[str, Any] = {
            "index": choice.index,
            "logprobs": self._write_logprobs(self._writer, choice, tokens) if self._writer else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._ids_wanted:
            rest["token_ids"] = tokens.ids
        return rest

    def _frame(self, choice: Choice) -> tuple[bytes, bytes]:
        rest = {"index": choice.index, "logprobs": None, "finish_reason": None, "stop_reason": None}
        blank = event(self._chunk_head(None) | {"choices": [self._delta(_HOLE) | rest]})
        head, tail = blank.split(encode(_HOLE))
        return head, tail


class CompletionFormat(Format):
    """`/v1/completions`."""

    id_prefix = "cmpl"
    answer_kind = chunk_kind = "text_completion"

    def __init__(
        self, body: CompletionBody, info: EngineInfo, names: TokenNames | None, echoes: Sequence[str]
    ) -> None:
        """`echoes`: the text of each prompt, where it was asked for; else empty."""
        super().__init__(body, info, names)
        self._echoes = echoes

    def _spoken(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _write_logprobs(self, writer: LogprobWriter, choice: Choice, tokens: Tokens) -> dict[str, Any]:
        echoed = len(self._echo(choice))
        return writer.completion(tokens.logprobs, [echoed + offset for offset in tokens.offsets])

    def _echo(self, choice: Choice) -> str:
        return self._echoes[choice.prompt_index] if self._echoes else ""

    def _prompt_ids(self, choice: Choice) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"prompt_token_ids": choice.request.prompt}


class ChatFormat(Format):
    """`/v1/chat/completions`."""

    id_prefix = "chatcmpl"
    answer_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def _spoken(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def _write_logprobs(self, writer: LogprobWriter, choice: Choice, tokens: Tokens) -> dict[str, Any]:
        return writer.chat(tokens.logprobs)

    def _opening(self, choice: Choice) -> bytes:
        """The role. It goes out with the first text, so that no client takes it for the first token."""
        rest = {"index": choice.index, "logprobs": None, "finish_reason": None, "stop_reason": None}
        delta = {"delta": {"role": "assistant", "content": ""}}
        return event(self._chunk_head(None) | {"choices": [delta | rest]})

    def _prompt_ids(self, choice: Choice) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"prompt_token_ids": choice.request.prompt}, {}
