"""The endpoints: each reads and checks its body, then asks the engine or the tokenizer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
from aiohttp import web

from ..core.interface import EngineHandle
from ..model.generation import GenerationDefaults
from ..sequence import Request
from ..text.chat import ChatTemplate
from ..text.detokenizer import Detokenizer
from ..text.tokenizer import Tokenizer
from .bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    T,
    TokenizeBody,
    decode,
)
from .choices import Choice
from .errors import (
    ENCODINGS,
    MAX_CHOICES,
    ApiError,
    bad_request,
    body_too_large,
    too_busy,
    too_many_choices,
    unsupported_encoding,
)
from .formats import ChatFormat, CompletionFormat, encode
from .generate import respond
from .params import nth_seed, sampling_params
from .prompts import Prompt, PromptReader
from .tokens import TokenNames

BODY_SECONDS = 60.0  # for a body to arrive in; a half-sent request does not hold a place for ever


class Handlers:
    """The endpoints over one engine; all state of a request lives in its handler's frame."""

    def __init__(
        self,
        handle: EngineHandle,
        tokenizer: Tokenizer | None,
        chat_template: ChatTemplate | None,
        defaults: GenerationDefaults,
        max_inflight: Callable[[], int],
    ) -> None:
        self._handle = handle
        self._info = handle.info
        self._tokenizer = tokenizer
        self._defaults = defaults
        self._max_inflight = max_inflight
        self._inflight = 0
        self._prompts = PromptReader(
            tokenizer, chat_template, handle.info.vocab_size, handle.info.max_model_len
        )
        self._names = TokenNames(tokenizer) if tokenizer is not None else None

    async def completions(self, request: web.Request) -> web.StreamResponse:
        with self._inflight_place():
            body = await self._body(request, CompletionBody)
            self._check_generation(body)
            prompts = await self._prompts.completion(body.prompt, body.add_special_tokens is not False)
            echoes = [self._echo(prompt, body) for prompt in prompts] if body.echo else []
            form = CompletionFormat(body, self._info, self._names, echoes)
            return await respond(
                self._handle, request, self._choices(body, prompts, form.id), form, bool(body.stream)
            )

    async def chat(self, request: web.Request) -> web.StreamResponse:
        with self._inflight_place():
            body = await self._body(request, ChatBody)
            self._check_generation(body)
            prompt = await self._prompts.chat(body)
            form = ChatFormat(body, self._info, self._names)
            return await respond(
                self._handle, request, self._choices(body, [prompt], form.id), form, bool(body.stream)
            )

    async def models(self, _: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._card()]})

    async def model(self, request: web.Request) -> web.Response:
        self._check_model(request.match_info["model"])
        return _json(self._card())

    async def tokenize(self, request: web.Request) -> web.Response:
        with self._inflight_place():
            body = await self._body(request, TokenizeBody)
            self._check_model(body.model)
            if (body.prompt is None) == (body.messages is None):
                raise bad_request("give either 'prompt' or 'messages'", "prompt", "invalid_value")
            if body.messages is not None:
                ids = (await self._prompts.chat(body)).ids
            else:
                assert body.prompt is not None
                ids = await self._prompts.encode(body.prompt, body.add_special_tokens is not False)
            answer: dict[str, object] = {
                "count": len(ids),
                "max_model_len": self._info.max_model_len,
                "tokens": ids,
            }
            if body.return_token_strs:
                answer["token_strs"] = await self._prompts.strings(ids)
            return _json(answer)

    async def detokenize(self, request: web.Request) -> web.Response:
        with self._inflight_place():
            body = await self._body(request, DetokenizeBody)
            self._check_model(body.model)
            if body.tokens:
                self._prompts.ids(body.tokens, "tokens")
            return _json({"prompt": self._prompts.tokenizer.decode(body.tokens, skip_special=False)})

    async def health(self, _: web.Request) -> web.Response:
        health = self._handle.health()
        if not health.ok:
            raise ApiError(
                503, health.reason or "the engine does not work", kind="server_error", code="unhealthy"
            )
        return _json({"ok": True})

    async def version(self, _: web.Request) -> web.Response:
        return _json({"version": self._info.version, "revision": self._info.revision})

    @contextmanager
    def _inflight_place(self) -> Iterator[None]:
        """One of the http.max_inflight places, from before the body is read until the answer is out."""
        most = self._max_inflight()
        if self._inflight >= most:
            raise too_busy(
                f"{self._inflight} requests are being served and http.max_inflight is {most}",
                1,
                "too_many_inflight",
            )
        self._inflight += 1
        try:
            yield
        finally:
            self._inflight -= 1

    async def _body(self, request: web.Request, struct: type[T]) -> T:
        """The request's body, read whole and checked."""
        if request.content_type != "application/json":
            # A page in a browser can send other types across origins without asking; JSON it cannot, as CORS is off.
            raise ApiError(
                415,
                f"the body's Content-Type is '{request.content_type}'; send 'Content-Type: application/json'",
                code="unsupported_media_type",
            )
        encoding = request.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ENCODINGS:
            raise unsupported_encoding()
        if (request.content_length or 0) > request.client_max_size:
            raise body_too_large(request.client_max_size)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                data = await request.read()
        except TimeoutError:
            raise ApiError(
                408, f"the body did not arrive within {BODY_SECONDS:g} s", code="body_timeout"
            ) from None
        except web.RequestPayloadError as error:
            words = str(error).splitlines()[-1].strip()  # aiohttp's status and headings stand before it
            raise bad_request(f"the body cannot be read: {words}", code="invalid_body") from None
        return decode(struct, data)

    def _check_model(self, model: str | None) -> None:
        """None is the model that is served: there is one."""
        if model is not None and model != self._info.model:
            raise ApiError(
                404,
                f"there is no model '{model}'; served is '{self._info.model}'",
                param="model",
                code="model_not_found",
            )

    def _check_generation(self, body: CompletionBody | ChatBody) -> None:
        self._check_model(body.model)
        if body.stream_options is not None and not body.stream:
            raise bad_request("'stream_options' needs 'stream': true", "stream_options", "invalid_value")
        wants_text = (
            "stop"
            if body.stop
            else "logprobs"
            if body.logprobs is not None and body.logprobs is not False
            else ""
        )
        if self._tokenizer is None and wants_text:
            raise bad_request(
                f"'{wants_text}' needs a tokenizer, which this model's folder lacks",
                wants_text,
                "no_tokenizer",
            )

    def _echo(self, prompt: Prompt, body: CompletionBody) -> str:
        if prompt.text is not None:
            return prompt.text
        return self._prompts.tokenizer.decode(prompt.ids, skip_special=body.skip_special_tokens is not False)

    def _choices(
        self, body: CompletionBody | ChatBody, prompts: Sequence[Prompt], response_id: str
    ) -> list[Choice]:
        """One choice for each of n for each prompt, in OpenAI's order."""
        n = body.n or 1
        count = len(prompts) * n
        if count > MAX_CHOICES:
            raise too_many_choices(len(prompts), n)
        info, arrival = self._info, time.monotonic()
        choices: list[Choice] = []
        for prompt_index, prompt in enumerate(prompts):
            params = sampling_params(
                body, self._defaults, len(prompt.ids), info.max_model_len, info.vocab_size
            )
            for i in range(n):
                index = len(choices)
                choices.append(
                    Choice(
                        index=index,
                        request=Request(
                            id=response_id if count == 1 else f"{response_id}-{index}",
                            prompt=prompt.ids,
                            params=msgspec.structs.replace(params, seed=nth_seed(params.seed, i))
                            if i
                            else params,
                            priority=body.priority or 0,
                            arrival=arrival,
                        ),
                        prompt_index=prompt_index,
                        detokenizer=self._detokenizer(body, params.stop),
                        keep_stop=bool(body.include_stop_str_in_output),
                        keep_tokens=bool(body.return_token_ids) or params.logprobs is not None,
                    )
                )
        return choices

    def _detokenizer(self, body: CompletionBody | ChatBody, stop: tuple[str, ...]) -> Detokenizer | None:
        if self._tokenizer is None:
            return None
        return Detokenizer(
            self._tokenizer.inner,
            skip_special=body.skip_special_tokens is not False,
            stop=stop,
            include_stop=bool(body.include_stop_str_in_output),
        )

    def _card(self) -> dict[str, object]:
        info = self._info
        return {
            "id": info.model,
            "object": "model",
            "created": int(info.started),
            "owned_by": "arc",
            "max_model_len": info.max_model_len,
        }


def _json(value: object) -> web.Response:
    return web.Response(body=encode(value), content_type="application/json")
