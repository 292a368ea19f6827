"""Request bodies: every field declared once, with its type, its bounds and what becomes of it.

A field is served, ignored knowingly (`Ignored`), or refused unless it has a value that changes nothing (`Refused`).
docs/api.md lists them all. A field that is not declared here is an error that names the nearest declared one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from .errors import ApiError, bad_request, nearest


class Ignored:
    """Marks a field that other servers act on and that is accepted here without effect."""

    __slots__ = ()


class Refused:
    """Marks a field that is not served: null and `neutral` values pass, any other is an error that says `why`."""

    __slots__ = ("neutral", "why")

    def __init__(self, why: str, *neutral: Any) -> None:
        self.why = why
        self.neutral = neutral


MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters; matching prepares each stop string for each choice
MAX_TOKENS_NAMED = 1024  # of logit_bias and of stop_token_ids; each is applied in every step

Count = Annotated[int, Meta(ge=1)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
TokenId = Annotated[int, Meta(ge=0)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]

_TOOLS = "tool calling is not served"
_STRUCTURED = "structured output is not served"
_BEAM = "beam search is not served"
_AUDIO = "this model reads and writes text only"


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Annotated[Any, Ignored()] = None


class Generation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that both ways of generating share."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_TOKENS_NAMED)] | None = None
    seed: Int64 | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS_NAMED)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: Int32 | None = None

    user: Annotated[Any, Ignored()] = None
    metadata: Annotated[Any, Ignored()] = None
    store: Annotated[Any, Ignored()] = None
    service_tier: Annotated[Any, Ignored()] = None
    safety_identifier: Annotated[Any, Ignored()] = None
    prompt_cache_key: Annotated[Any, Ignored()] = None
    prompt_cache_retention: Annotated[Any, Ignored()] = None
    request_id: Annotated[Any, Ignored()] = None

    prompt_logprobs: Annotated[Any, Refused("log-probabilities of the prompt are not served")] = None
    use_beam_search: Annotated[Any, Refused(_BEAM, False)] = None
    length_penalty: Annotated[Any, Refused(_BEAM, 1)] = None
    early_stopping: Annotated[Any, Refused(_BEAM, False)] = None
    best_of: Annotated[Any, Refused("ranking of several candidates is not served; use n", 1)] = None
    spaces_between_special_tokens: Annotated[
        Any, Refused("special tokens are joined as the model writes them", True)
    ] = None
    truncate_prompt_tokens: Annotated[Any, Refused("a prompt that is too long is refused, not cut")] = None
    allowed_token_ids: Annotated[Any, Refused("a token allow-list is not served; use logit_bias")] = None
    bad_words: Annotated[Any, Refused("a word deny-list is not served; use logit_bias", [])] = None
    logits_processors: Annotated[Any, Refused("code from a request is never run", [])] = None
    structured_outputs: Annotated[Any, Refused(_STRUCTURED)] = None
    guided_json: Annotated[Any, Refused(_STRUCTURED)] = None
    guided_regex: Annotated[Any, Refused(_STRUCTURED)] = None
    guided_choice: Annotated[Any, Refused(_STRUCTURED)] = None
    guided_grammar: Annotated[Any, Refused(_STRUCTURED)] = None
    response_format: Annotated[Any, Refused(_STRUCTURED, {"type": "text"})] = None
    kv_transfer_params: Annotated[Any, Refused("moving a cache between engines is not served")] = None
    cache_salt: Annotated[Any, Refused("the prefix cache is not divided by a salt")] = None


class CompletionBody(Generation, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/completions`."""

    # one prompt as text or token ids, or a list of either; told apart by prompts.py (no JSON schema tells them apart)
    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool | None = None
    logprobs: Logprobs | None = None

    suffix: Annotated[Any, Refused("insertion before a suffix is not served", "")] = None


class Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One part of a message's content; only type `text` is served."""

    type: str
    text: str | None = None
    image_url: Annotated[Any, Refused(_AUDIO)] = None
    input_audio: Annotated[Any, Refused(_AUDIO)] = None
    audio_url: Annotated[Any, Refused(_AUDIO)] = None
    video_url: Annotated[Any, Refused(_AUDIO)] = None
    file: Annotated[Any, Refused(_AUDIO)] = None
    refusal: Annotated[Any, Refused("parts of type refusal are not read")] = None


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str | list[Part] | None = None
    name: Annotated[Any, Ignored()] = None
    annotations: Annotated[Any, Ignored()] = None
    refusal: Annotated[Any, Ignored()] = None
    reasoning: Annotated[Any, Ignored()] = None
    reasoning_content: Annotated[Any, Ignored()] = None
    audio: Annotated[Any, Refused(_AUDIO)] = None
    tool_calls: Annotated[Any, Refused(_TOOLS, [])] = None
    tool_call_id: Annotated[Any, Refused(_TOOLS)] = None
    function_call: Annotated[Any, Refused(_TOOLS)] = None


class ChatBody(Generation, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    parallel_tool_calls: Annotated[Any, Ignored()] = None
    echo: Annotated[Any, Refused("echo is served by /v1/completions", False)] = None
    chat_template: Annotated[Any, Refused("templates from requests are not run; the model's own is")] = None
    documents: Annotated[Any, Refused("documents are not served", [])] = None
    tools: Annotated[Any, Refused(_TOOLS, [])] = None
    tool_choice: Annotated[Any, Refused(_TOOLS, "none", "auto")] = None
    functions: Annotated[Any, Refused(_TOOLS, [])] = None
    function_call: Annotated[Any, Refused(_TOOLS, "none", "auto")] = None
    modalities: Annotated[Any, Refused(_AUDIO, ["text"])] = None
    audio: Annotated[Any, Refused(_AUDIO)] = None
    prediction: Annotated[Any, Refused("predicted output is not served")] = None
    reasoning_effort: Annotated[Any, Refused("this model has no reasoning mode", "none")] = None
    verbosity: Annotated[Any, Refused("verbosity is not served", "medium")] = None
    web_search_options: Annotated[Any, Refused("web search is not served")] = None
    moderation: Annotated[Any, Refused("moderation is not served")] = None


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /tokenize`: either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = (
        None  # default: true for a prompt, false for messages (their template adds)
    )
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[TokenId]


Body = CompletionBody | ChatBody | TokenizeBody | DetokenizeBody
_NESTED: dict[str, type[msgspec.Struct]] = {
    "stream_options": StreamOptions,
    "messages[]": Message,
    "messages[].content[]": Part,
}


def marks(struct: type[msgspec.Struct]) -> dict[str, Ignored | Refused]:
    """The fields of `struct` that are ignored or refused."""
    found: dict[str, Ignored | Refused] = {}
    for name, hint in get_type_hints(struct, include_extras=True).items():
        for extra in get_args(hint)[1:]:
            if isinstance(extra, Ignored | Refused):
                found[name] = extra
    return found


def _refusals(struct: type[msgspec.Struct]) -> tuple[tuple[str, Refused], ...]:
    return tuple((name, mark) for name, mark in marks(struct).items() if isinstance(mark, Refused))


_REFUSED: dict[type[msgspec.Struct], tuple[tuple[str, Refused], ...]] = {
    struct: _refusals(struct) for struct in (CompletionBody, ChatBody, Message, Part)
}
_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {
    struct: msgspec.json.Decoder(struct)
    for struct in (CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)
}


T = TypeVar("T", CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)


def decode(struct: type[T], data: bytes) -> T:
    """The body as a checked struct; ApiError 400 names what is wrong and where.

    A key given twice counts as given last, as JSON readers do.
    """
    try:
        body: T = _DECODERS[struct].decode(data)
    except msgspec.ValidationError as error:
        raise _explain(struct, str(error)) from None
    except RecursionError:
        raise bad_request("the body is nested too deeply", code="invalid_json") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    for path, part in _parts(body):
        _refuse_unserved(path, part)
    return body


_AT = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`$")


def _explain(struct: type[msgspec.Struct], text: str) -> ApiError:
    """msgspec's one-line report as an ApiError with its `param`."""
    at = _AT.search(text)
    path = at["path"] if at else ""
    what = text[: at.start()] if at else text
    if unknown := _UNKNOWN.search(what):
        owner = _NESTED.get(re.sub(r"\[\d+\]", "[]", path), struct)
        name = _join(path, unknown["name"])
        return bad_request(
            f"unknown field '{name}'{nearest(unknown['name'], owner.__struct_fields__)}",
            name,
            "unknown_parameter",
        )
    if missing := _MISSING.search(what):
        name = _join(path, missing["name"])
        return bad_request(f"'{name}' is required", name, "missing_required_parameter")
    where = f"'{path}': " if path else "the body: "
    return bad_request(where + what[:1].lower() + what[1:], path or None, "invalid_value")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _parts(body: Body) -> Iterator[tuple[str, msgspec.Struct]]:
    """The body and every struct inside it that has refused fields, each with its path."""
    yield "", body
    for i, message in enumerate(getattr(body, "messages", None) or ()):
        yield f"messages[{i}]", message
        if isinstance(message.content, list):
            for j, part in enumerate(message.content):
                yield f"messages[{i}].content[{j}]", part


def _refuse_unserved(path: str, part: msgspec.Struct) -> None:
    for name, mark in _REFUSED.get(type(part), ()):
        value = getattr(part, name)
        if value is not None and not any(_same(value, neutral) for neutral in mark.neutral):
            where = _join(path, name)
            raise bad_request(f"'{where}' is refused: {mark.why}", where, "unsupported_parameter")


def _same(value: Any, neutral: Any) -> bool:
    """Equal, and not by Python's `True == 1`."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
