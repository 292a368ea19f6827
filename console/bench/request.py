"""One request from its scheduled moment to its end, and what its stream says about the time to each token."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from .endpoint import Address, EndpointError, events
from .work import Job

Endpoint = Literal["completions", "chat"]


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked, and how."""

    address: Address
    endpoint: Endpoint
    model: str
    key: str | None = None  # the API key; in no file and no result
    timeout: float = 600.0  # seconds for one request
    ignore_eos: bool = (
        True  # every request brings exactly the tokens that it asks for; OpenAI's own API has no such field
    )

    @property
    def path(self) -> str:
        return "/v1/completions" if self.endpoint == "completions" else "/v1/chat/completions"

    def body(self, job: Job) -> bytes:
        said = (
            {"prompt": job.prompt}
            if self.endpoint == "completions"
            else {"messages": [{"role": "user", "content": job.prompt}]}
        )
        more = {"ignore_eos": True} if self.ignore_eos else {}
        fixed = {
            "model": self.model, "max_tokens": job.output, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        return msgspec.json.encode(said | fixed | more)


class Text(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Text | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """Of a streamed answer, what is measured."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(Chunk).decode


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request that came to its end. Seconds are counted from its scheduled moment."""

    first: float  # to the first event with text
    last: float  # to the last event with text
    end: float  # to the end of the stream
    texts: int  # events with text
    prompt_tokens: int
    tokens: int  # output tokens, as the server counts them

    @property
    def per_token(self) -> float | None:
        """Seconds a token after the first; None when there was no second one."""
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else None


async def ask(target: Target, job: Job, scheduled: float, gap: Callable[[float], None]) -> Outcome:
    """Send one request now. `scheduled` is when it should have been sent (time.perf_counter()): a request that was held
    back has waited as long as its user would have. `gap` is told the seconds between two events with text.

    The first token is the first event that carries text: an event with the role alone is none, so no part of the
    prompt's computation falls into the first gap. Raises EndpointError.
    """
    first = last = 0.0
    texts = 0
    usage: Usage | None = None
    done = False
    async for data in events(target.address, target.path, target.body(job), target.key, target.timeout):
        now = time.perf_counter()
        if data == b"[DONE]":
            done = True
            continue
        try:
            chunk = _decode(data)
        except msgspec.DecodeError as error:
            raise EndpointError("bad event", f"{error}: {data[:200].decode('utf-8', 'replace')}") from None
        if bytes(chunk.error):
            raise EndpointError("error in the stream", bytes(chunk.error)[:500].decode("utf-8", "replace"))
        usage = chunk.usage or usage
        if _has_text(chunk):
            if texts:
                gap(now - last)
            else:
                first = now
            last = now
            texts += 1
    end = time.perf_counter()
    if not done:
        raise EndpointError("cut off", "the stream ended without [DONE]")
    if usage is None:
        raise EndpointError("no usage", "the stream has no usage: its tokens cannot be counted")
    if target.ignore_eos and usage.completion_tokens != job.output:
        raise EndpointError(
            "other length", f"asked for {job.output} tokens and got {usage.completion_tokens}"
        )
    if not texts:
        raise EndpointError("no text", "the stream ended without any text")
    return Outcome(
        first=first - scheduled,
        last=last - scheduled,
        end=end - scheduled,
        texts=texts,
        prompt_tokens=usage.prompt_tokens,
        tokens=usage.completion_tokens,
    )


def _has_text(chunk: Chunk) -> bool:
    for choice in chunk.choices:
        if choice.text:
            return True
        if choice.delta is not None and (choice.delta.content or choice.delta.reasoning_content):
            return True
    return False
