"""From a checked body to the engine's sampling parameters: request over model defaults over OpenAI's."""

from __future__ import annotations

from typing import TypeVar

from ..model.generation import GenerationDefaults
from ..sequence import SamplingParams
from .bodies import ChatBody, CompletionBody
from .errors import bad_request, context_exceeded

Number = TypeVar("Number", int, float)
Value = TypeVar("Value")

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions; chat runs to the context's end


def sampling_params(
    body: CompletionBody | ChatBody,
    defaults: GenerationDefaults,
    prompt_len: int,
    max_model_len: int,
    vocab_size: int,
) -> SamplingParams:
    """The parameters of one prompt; raises ApiError where it does not fit the context or names unknown tokens."""
    max_tokens = _max_tokens(body, prompt_len, max_model_len)
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise bad_request(
            f"'min_tokens' is {min_tokens}, more than the {max_tokens} that may be generated",
            "min_tokens",
            "invalid_value",
        )
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return SamplingParams(
        temperature=_first(body.temperature, defaults.temperature, 1.0),
        top_k=min(
            max(_first(body.top_k, defaults.top_k, 0), 0), vocab_size
        ),  # vLLM's -1 is 0 here: all of it
        top_p=_first(body.top_p, defaults.top_p, 1.0),
        min_p=_first(body.min_p, defaults.min_p, 0.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty, 1.0),
        logit_bias=_in_vocabulary(body.logit_bias or {}, "logit_bias", vocab_size),
        seed=body.seed,
        logprobs=_logprobs(body),
        stop=stop,
        stop_token_ids=tuple(
            _in_vocabulary(dict.fromkeys(body.stop_token_ids or ()), "stop_token_ids", vocab_size)
        ),
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        ignore_eos=bool(body.ignore_eos),
    )


def nth_seed(seed: int | None, choice: int) -> int | None:
    """The seed of one of n choices: they differ, and choice 0 is what n = 1 would give. Wraps within 64 bits."""
    if seed is None or choice == 0:
        return seed
    return (seed + choice + 2**63) % 2**64 - 2**63


def _first(asked: Number | None, default: Number | None, otherwise: Number) -> Number:
    if asked is not None:
        return asked
    return otherwise if default is None else default


def _max_tokens(body: CompletionBody | ChatBody, prompt_len: int, max_model_len: int) -> int:
    param = "prompt" if isinstance(body, CompletionBody) else "messages"
    room = max_model_len - prompt_len
    if room < 1:
        raise context_exceeded(prompt_len, None, max_model_len, param)
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        if asked is not None and asked != body.max_completion_tokens:
            raise bad_request(
                "'max_tokens' and 'max_completion_tokens' disagree; the first is the older name of the second",
                "max_tokens",
                "invalid_value",
            )
        asked = body.max_completion_tokens
    if asked is None:
        return min(COMPLETION_MAX_TOKENS, room) if isinstance(body, CompletionBody) else room
    if asked > room:
        raise context_exceeded(prompt_len, asked, max_model_len, param)
    return asked


def _logprobs(body: CompletionBody | ChatBody) -> int | None:
    if isinstance(body, CompletionBody):
        if body.logprobs is not None and body.echo:
            raise bad_request(
                "'logprobs' with 'echo' asks for log-probabilities of the prompt, which are not served",
                "logprobs",
                "unsupported_parameter",
            )
        return body.logprobs
    if body.top_logprobs and not body.logprobs:
        raise bad_request("'top_logprobs' needs 'logprobs': true", "top_logprobs", "invalid_value")
    return (body.top_logprobs or 0) if body.logprobs else None


def _in_vocabulary(ids: dict[int, Value], param: str, vocab_size: int) -> dict[int, Value]:
    for token_id in ids:
        if token_id >= vocab_size:
            raise bad_request(
                f"'{param}' names token {token_id}; this model's token ids end at {vocab_size - 1}",
                param,
                "invalid_value",
            )
    return ids
