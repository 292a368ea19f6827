"""Bodies of every kind: a wrong one gets OpenAI's error and never a 500; a right one streams what it answers whole."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from arc.engine.sequence import Finish, FinishReason
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from .conftest import EOS, Serve, Served
from .scripted import ScriptedEngine, output
from .test_errors import error_of
from .wire import events

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NUMBER = st.integers(-2, 40) | st.floats(-3, 3) | st.sampled_from([2**31, 2**63, 10**40, -(2**70), 1e300])
TEXT = st.text(max_size=12)
PART = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": TEXT})
CONTENT = TEXT | st.none() | st.lists(PART)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", ""])},
    optional={"content": CONTENT, "name": JSON},
)
USAGE = ("include_usage", "continuous_usage_stats")
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "prompt": TEXT | st.lists(st.integers(-1, 262), max_size=6) | st.lists(TEXT, max_size=3) | JSON,
    "messages": st.lists(MESSAGE, max_size=3) | JSON,
    "model": st.sampled_from(["austen", "x", None, 3]),
    "stream": st.booleans() | st.none(),
    "stream_options": st.fixed_dictionaries({}, optional=dict.fromkeys(USAGE, st.booleans())) | JSON,
    "stop": TEXT | st.lists(TEXT, max_size=18) | JSON,
    "stop_token_ids": st.lists(st.integers(-1, 262), max_size=4) | JSON,
    "logit_bias": st.dictionaries(st.integers(-1, 262).map(str) | TEXT, NUMBER, max_size=3) | JSON,
    "chat_template_kwargs": st.dictionaries(TEXT, JSON, max_size=2) | JSON,
    "metadata": JSON,
    "tools": JSON,
    "echo": st.booleans() | JSON,
    "logprobs": st.booleans() | NUMBER,
    "return_token_ids": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "continue_final_message": st.booleans(),
    "add_generation_prompt": st.booleans(),
} | dict.fromkeys(
    ("n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "priority", "top_logprobs",
     "presence_penalty", "repetition_penalty", "max_completion_tokens", "best_of"),
    NUMBER,
)  # fmt: skip


def bodies(required: str, *, optional: tuple[str, ...] = tuple(FIELDS)) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies with one field and any of the others."""
    others = {name: FIELDS[name] for name in optional if name != required}
    return st.fixed_dictionaries({required: FIELDS[required]}, optional=others)


FEW = ("stop", "n", "stream", "logprobs", "max_tokens", "echo", "return_token_ids")
BODIES = JSON | st.one_of(
    [bodies(required, optional=of) for required in ("prompt", "messages") for of in (tuple(FIELDS), FEW)]
)
SERVED = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)  # one server for all examples: none may leave anything behind for the next
PATHS = st.sampled_from(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])


def babble(request):
    """Tokens drawn from the prompt: letters, pieces of characters, end marks; always the same for the same request."""
    draw = random.Random(repr((request.prompt, request.params.seed)))
    tokens = [*b"ab ", *"é€".encode(), 258, EOS]  # 258 is in no vocabulary: models pad theirs
    for count in range(1, request.params.max_tokens + 1):
        chosen = [draw.choice(tokens) for _ in range(draw.choice((1, 1, 3)))]
        reason = FinishReason.LENGTH if count == request.params.max_tokens else None
        if EOS in chosen:
            chosen, reason = chosen[: chosen.index(EOS) + 1], FinishReason.STOP
        yield output(request, *chosen, finish=None if reason is None else Finish(reason=reason))
        if reason is not None:
            return


@pytest.fixture
async def api(serve: Serve) -> AsyncIterator[Served]:
    async with serve(ScriptedEngine(babble, max_model_len=40)) as served:
        yield served


@given(path=PATHS, body=BODIES)
@settings(SERVED, max_examples=250)
async def test_any_json_gets_an_answer_or_openais_error(api: Served, path: str, body: Any):
    await check(api, path, json.dumps(body).encode())


@given(path=PATHS, body=st.binary(max_size=60) | BODIES.flatmap(lambda body: torn(json.dumps(body).encode())))
@settings(SERVED, max_examples=120)
async def test_any_bytes_get_an_answer_or_openais_error(api: Served, path: str, body: bytes):
    await check(api, path, body)


def torn(data: bytes) -> st.SearchStrategy[bytes]:
    """The bytes with a piece taken out or put in."""
    at = st.integers(0, len(data))
    return st.tuples(at, at, st.binary(max_size=4)).map(lambda cut: data[: cut[0]] + cut[2] + data[cut[1] :])


async def check(api: Served, path: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with api.http.post(api.url + path, data=body, headers=headers) as response:
        data = await response.read()
        event(f"status {response.status}")
        assert response.status in (200, 400, 404), data
        if response.status != 200:
            error_of(json.loads(data))
        elif response.content_type == "text/event-stream":
            assert events(data)[-1] == b"data: [DONE]"
        else:
            json.loads(data)
    assert not api.engine.live


GOOD = st.fixed_dictionaries(
    {
        "prompt": TEXT
        | st.lists(st.integers(0, 257), min_size=1, max_size=6)
        | st.lists(TEXT, min_size=1, max_size=2)
    },
    optional={
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 12),
        "seed": st.integers(0, 3),
        "stop": st.lists(st.sampled_from(["a", "ab", "b a", "é", "€a", "<eos>"]), max_size=2),
        "logprobs": st.integers(0, 2),
        "return_token_ids": st.booleans(),
        "return_tokens_as_token_ids": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
    },
)


@given(body=GOOD, always=st.booleans())
@settings(SERVED, max_examples=150)
async def test_a_stream_says_what_the_whole_answer_says(api: Served, body: dict[str, Any], always: bool):
    status, whole = await api.post("/v1/completions", body)
    assert status == 200, whole
    options = {"include_usage": True, "continuous_usage_stats": always}
    async with api.http.post(
        f"{api.url}/v1/completions", json=body | {"stream": True, "stream_options": options}
    ) as response:
        *chunks, last, done = events(await response.read())
    assert done == b"data: [DONE]"
    assert last["usage"] == whole["usage"]
    assert {chunk["usage"] is not None for chunk in chunks} == {always}
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert joined(mine) == choice
        assert [c["finish_reason"] for c in mine[:-1]] == [None] * (len(mine) - 1)
        if not body.get("include_stop_str_in_output"):
            assert not any(stop in choice["text"] for stop in body.get("stop", ()))
        if choice["logprobs"] is not None:
            offsets = choice["logprobs"]["text_offset"]
            assert offsets == sorted(offsets)
    used = sum(len(choice["token_ids"]) for choice in whole["choices"] if body.get("return_token_ids"))
    assert used in (0, whole["usage"]["completion_tokens"])


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole choice that a stream's chunks make."""
    choice = dict(chunks[0])
    for chunk in chunks[1:]:
        choice["text"] += chunk["text"]
        choice |= {"finish_reason": chunk["finish_reason"], "stop_reason": chunk["stop_reason"]}
        if "token_ids" in chunk:
            choice["token_ids"] = choice["token_ids"] + chunk["token_ids"]
        if chunk["logprobs"] is not None:
            choice["logprobs"] = {
                key: choice["logprobs"][key] + more for key, more in chunk["logprobs"].items()
            }
    return choice
