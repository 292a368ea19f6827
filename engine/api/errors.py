"""Errors as a client sees them: OpenAI's form, with the status that its clients map to exception classes."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import Any

import msgspec

from ..core.interface import Draining, TooManyWaiting
from ..sequence import Finish, FinishReason

MAX_CHOICES = 1024  # of one call: prompts x n
ENCODINGS = ("identity", "gzip", "deflate")  # that a body may be sent in

log = logging.getLogger(__name__)


class ApiError(Exception):
    """One refusal. `param` is the field at fault as a path in the body (`messages[0].role`)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(_clipped(message, 1000))  # a message quotes what was sent, which may be megabytes
        self.status = status
        self.kind = kind
        self.param = None if param is None else _clipped(param, 200)
        self.code = code
        self.headers = headers or {}

    def body(self) -> bytes:
        """The answer's JSON, `{"error": {message, type, param, code}}`."""
        return msgspec.json.encode(
            {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}
        )


def _clipped(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def context_exceeded(prompt: int, asked: int | None, limit: int, param: str) -> ApiError:
    """`asked` is the max_tokens of the request, or None where the prompt alone is too long."""
    if asked is None:
        message = f"the prompt has {prompt} tokens; this model's context is {limit} tokens, prompt and output together"
    else:
        message = (
            f"{prompt + asked} tokens are asked for ({prompt} in the prompt, {asked} in the output); "
            f"this model's context is {limit} tokens, so that at most {limit - prompt} remain for the output"
        )
    return bad_request(message, param, "context_length_exceeded")


def too_many_choices(prompts: int, n: int) -> ApiError:
    return bad_request(
        f"{prompts} prompts with n = {n} make {prompts * n} choices; one call has at most {MAX_CHOICES}",
        "n" if n > 1 else "prompt",
        "invalid_value",
    )


def too_busy(message: str, retry_after: int, code: str) -> ApiError:
    return ApiError(
        429, message, kind="rate_limit_error", code=code, headers={"Retry-After": str(max(1, retry_after))}
    )


def body_too_large(limit: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than http.max_body_mib allows ({limit} bytes)", code="body_too_large"
    )


def unsupported_encoding() -> ApiError:
    return ApiError(
        415,
        f"the body's Content-Encoding is not one that is unpacked here: send {', '.join(ENCODINGS)} or none",
        code="unsupported_encoding",
    )


def refused_at_the_door(error: TooManyWaiting | Draining) -> ApiError:
    """What `EngineHandle.submit` raised."""
    if isinstance(error, TooManyWaiting):
        return too_busy(str(error), error.retry_after, "too_many_waiting")
    message = str(error) or "the engine is draining before it stops and takes no new work"
    return ApiError(503, message, kind="server_error", code="draining", headers={"Retry-After": "5"})


def ended_early(finish: Finish) -> ApiError:
    """A sequence that a fault, the cache's bounds or an operator ended.

    One that outgrows the cache is no fault of the server, and asked again it would end at the same place: 400.
    A cancel is deliberate, so clients that retry every 5xx are told not to (the header is one that OpenAI's obey).
    """
    if finish.reason is FinishReason.CAPACITY:
        return bad_request(
            finish.detail or "the request outgrew the KV cache", code="cache_capacity_exceeded"
        )
    if finish.reason is FinishReason.FAULT:
        return ApiError(500, finish.detail or "the engine failed", kind="server_error", code="engine_fault")
    return ApiError(
        500,
        finish.detail or "the request was cancelled",
        kind="server_error",
        code="cancelled",
        headers={"x-should-retry": "false"},
    )


def nearest(name: str, known: Any) -> str:
    """`; nearest: NAME` for a message, or nothing where no known name is near."""
    found = get_close_matches(name[:100], list(known), n=1)
    return f"; the nearest is '{found[0]}'" if found else ""


def internal_error(error: Exception) -> ApiError:
    """A defect of this server: the log has the traceback, the client only that it is not at fault."""
    log.error("a request failed by a defect of the API", exc_info=error)
    return ApiError(500, "the server failed; its log says why", kind="server_error", code="internal_error")
