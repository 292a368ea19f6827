"""Every refusal: its status, OpenAI's form, what is at fault by name; and that nothing was begun."""

from __future__ import annotations

from typing import Any

import pytest
from arc.engine.api.bodies import ChatBody, CompletionBody, Message, Part, Refused, marks
from arc.engine.core.interface import Health
from arc.engine.model.generation import GenerationDefaults

from .conftest import Serve, ids_of
from .scripted import ScriptedEngine

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def error_of(answer: Any) -> dict[str, Any]:
    """The error of an answer, whose form is checked."""
    assert set(answer) == {"error"}
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert isinstance(error["code"], str)
    return error


BAD_BODIES = [
    # what is sent, code and param, and words that the message must hold
    (b"", "invalid_json", None, "truncated"),
    (b"{", "invalid_json", None, "truncated"),
    (b"nonsense", "invalid_json", None, "invalid character"),
    (b"[]", "invalid_value", None, "expected `object`, got `array`"),
    (b"null", "invalid_value", None, "got `null`"),
    (b'{"prompt": "a"} {}', "invalid_json", None, "trailing"),
    (b'{"prompt": "a", "temperature": NaN}', "invalid_json", None, "invalid character"),
    (b'{"prompt": "a", "temperature": Infinity}', "invalid_json", None, "invalid character"),
    (b'{"prompt": "a", "temperature": 1e999}', "invalid_value", "temperature", "out of range"),
    (b'{"prompt": "a", "seed": 9223372036854775808}', "invalid_value", "seed", "<="),
    (b'{"prompt": "a", "n": 1' + b"0" * 5000 + b"}", None, None, ""),
    (b'{"prompt": "\xff"}', "invalid_json", None, "UTF-8"),
    (b'{"prompt": "\\ud800"}', "invalid_json", None, ""),
    (b'{"prompt": "\\ud800 and more"}', "invalid_json", None, ""),
    (b'{"prompt": "\\udc00\\ud800"}', "invalid_json", None, ""),
    (b'{"prompt": "a", "metadata": ' + b"[" * 100_000, "invalid_json", None, "nested"),
    (b'{"prompt": "a", "metadata": ' + b'{"a":' * 100_000, "invalid_json", None, "nested"),
    (b"\xef\xbb\xbf{}", "invalid_json", None, "byte 0"),
    (b"{}", "missing_required_parameter", "prompt", "'prompt' is required"),
]


@pytest.mark.parametrize(("body", "code", "param", "words"), BAD_BODIES)
async def test_bytes_that_are_no_request(serve: Serve, body: bytes, code: Any, param: Any, words: str):
    engine = ScriptedEngine()
    async with serve(engine) as api:
        headers = {"Content-Type": "application/json"}
        async with api.http.post(api.url + COMPLETION, data=body, headers=headers) as response:
            assert response.status == 400
            error = error_of(await response.json())
    assert words in error["message"]
    assert len(error["message"]) < 500
    if code is not None:
        assert (error["code"], error["param"]) == (code, param)
    assert not engine.requests


BAD_FIELDS = [
    # path, what is changed, param, words
    (COMPLETION, {"temprature": 1}, "temprature", "the nearest is 'temperature'"),
    (COMPLETION, {"max_completion_tokens": 1}, "max_completion_tokens", "unknown field"),
    (COMPLETION, {"messages": HI}, "messages", "unknown field"),
    (COMPLETION, {"`evil` - at `$.n`": 1}, None, "unknown field"),
    (CHAT, {"prompt": "a"}, "prompt", "unknown field"),
    (CHAT, {"messages": [*HI, {"role": "user", "contents": ""}]}, "messages[1].contents", "nearest is 'content'"),
    (CHAT, {"messages": [{"content": "a"}]}, "messages[0].role", "is required"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
    (CHAT, {"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role", "served are system, developer"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].type", "'text'"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "audio", "text": "a"}]}]},
     "messages[0].content[0].type", "'audio'"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "txt": "a"}]}]},
     "messages[0].content[0].txt", "nearest is 'text'"),
    (CHAT, {"messages": []}, "messages", "at least one message"),
    (CHAT, {"messages": [{"role": "assistant", "content": "a"}]}, "messages", "an assistant cannot speak first"),
    (CHAT, {"chat_template_kwargs": {"messages": 1}}, "messages", "cannot be named messages"),
    (CHAT, {"continue_final_message": True, "add_generation_prompt": True}, "messages", "excludes"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs", "needs 'logprobs'"),
    (CHAT, {"logprobs": 2}, "logprobs", "expected `bool | null`, got `int`"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "<= 20"),
    (CHAT, {"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "disagree"),
    (CHAT, {"max_completion_tokens": 510}, "messages", "at most 493 remain for the output"),
    (CHAT, {"stream": True, "stream_options": {"include_usag": True}}, "stream_options.include_usag", "include_usage"),
    (COMPLETION, {"stream_options": {}}, "stream_options", "needs 'stream': true"),
    (COMPLETION, {"logprobs": True}, "logprobs", "got `bool`"),
    (COMPLETION, {"logprobs": 1, "echo": True}, "logprobs", "log-probabilities of the prompt"),
    (COMPLETION, {"logprobs": 21}, "logprobs", "<= 20"),
    (COMPLETION, {"prompt": []}, "prompt", "is empty"),
    (COMPLETION, {"prompt": [[]]}, "prompt[0]", "is empty"),
    (COMPLETION, {"prompt": ["a", 1]}, "prompt", "mixes forms"),
    (COMPLETION, {"prompt": [1, [1]]}, "prompt", "mixes forms"),
    (COMPLETION, {"prompt": None}, "prompt", "expected"),
    (COMPLETION, {"prompt": [1.5]}, "prompt[0]", "got `float`"),
    (COMPLETION, {"prompt": [True]}, "prompt[0]", "got `bool`"),
    (COMPLETION, {"prompt": [-1]}, "prompt[0]", ">= 0"),
    (COMPLETION, {"prompt": [5, 260]}, "prompt", "'prompt[1]' is 260; this model's token ids end at 259"),
    (COMPLETION, {"prompt": [[5], [10**30]]}, "prompt[1]", "'prompt[1][0]'"),
    (COMPLETION, {"prompt": "", "add_special_tokens": False}, "prompt", "no tokens"),
    (COMPLETION, {"prompt": "a" * 512}, "prompt", "the prompt has 513 tokens; this model's context is 512 tokens"),
    (COMPLETION, {"prompt": ["a", "a" * 511]}, "prompt", "512 tokens"),
    (COMPLETION, {"max_tokens": 600}, "prompt", "602 tokens are asked for (2 in the prompt, 600 in the output)"),
    (COMPLETION, {"max_tokens": 0}, "max_tokens", ">= 1"),
    (COMPLETION, {"max_tokens": 1.5}, "max_tokens", "got `float`"),
    (COMPLETION, {"max_tokens": "9"}, "max_tokens", "got `str`"),
    (COMPLETION, {"max_tokens": 10**30}, "prompt", "tokens are asked for"),
    (COMPLETION, {"n": 0}, "n", ">= 1"),
    (COMPLETION, {"n": 129}, "n", "<= 128"),
    (COMPLETION, {"n": True}, "n", "got `bool`"),
    (COMPLETION, {"n": 128, "prompt": ["a"] * 9}, "n", "1152 choices"),
    (COMPLETION, {"prompt": ["a"] * 1025}, "prompt", "1025 choices"),
    (COMPLETION, {"temperature": -0.1}, "temperature", ">= 0"),
    (COMPLETION, {"temperature": 2.1}, "temperature", "<= 2"),
    (COMPLETION, {"top_p": 0}, "top_p", "> 0"),
    (COMPLETION, {"top_p": 1.01}, "top_p", "<= 1"),
    (COMPLETION, {"top_k": -2}, "top_k", ">= -1"),
    (COMPLETION, {"min_p": 1.1}, "min_p", "<= 1"),
    (COMPLETION, {"presence_penalty": 3}, "presence_penalty", "<= 2"),
    (COMPLETION, {"frequency_penalty": -3}, "frequency_penalty", ">= -2"),
    (COMPLETION, {"repetition_penalty": 0.009}, "repetition_penalty", ">= 0.01"),
    (COMPLETION, {"logit_bias": {"260": 1}}, "logit_bias", "token 260"),
    (COMPLETION, {"logit_bias": {"5": 101}}, "logit_bias[...]", "<= 100"),
    (COMPLETION, {"logit_bias": {"a": 1}}, "logit_bias", "got `str`"),
    (COMPLETION, {"stop": ""}, "stop", "length"),
    (COMPLETION, {"stop": ["a", ""]}, "stop[1]", "length"),
    (COMPLETION, {"stop": ["a"] * 17}, "stop", "length <= 16"),
    (COMPLETION, {"stop": "a" * 257}, "stop", "length <= 256"),
    (COMPLETION, {"stop_token_ids": [1] * 1025}, "stop_token_ids", "length <= 1024"),
    (COMPLETION, {"logit_bias": dict.fromkeys(map(str, range(1025)), 0)}, "logit_bias", "length <= 1024"),
    (COMPLETION, {"prompt": [[1]] * 600, "n": 2}, "n", "1200 choices"),
    (COMPLETION, {"stop": 1}, "stop", "got `int`"),
    (COMPLETION, {"stop_token_ids": [260]}, "stop_token_ids", "token 260"),
    (COMPLETION, {"min_tokens": 17}, "min_tokens", "more than the 16"),
    (COMPLETION, {"min_tokens": -1}, "min_tokens", ">= 0"),
    (COMPLETION, {"priority": 2**31}, "priority", "<="),
    (COMPLETION, {"seed": 0.5}, "seed", "got `float`"),
    (COMPLETION, {"stream": "yes"}, "stream", "got `str`"),
    (COMPLETION, {"model": 1}, "model", "got `int`"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_fields_that_are_wrong(serve: Serve, stream: bool):
    """One server for all: a refusal leaves nothing behind for the next request either."""
    engine = ScriptedEngine()
    async with serve(engine) as api:
        for path, change, param, words in BAD_FIELDS:
            body = ({"prompt": "a"} if path == COMPLETION else {"messages": HI}) | {"stream": stream} | change
            if "stream_options" in change and change["stream_options"] == {}:
                body["stream"] = False
            status, answer = await api.post(path, body)
            assert status == 400, (change, answer)
            error = error_of(answer)
            assert words in error["message"], (change, error)
            if param is not None:
                assert error["param"] == param, (change, error)
            assert error["type"] == "invalid_request_error"
    assert not engine.requests


def _refused() -> list[tuple[str, dict[str, Any], str, list[Any]]]:
    """Each refused field with a body that sets it: path, body without it, where it goes, its neutral values."""
    found: list[tuple[str, dict[str, Any], str, list[Any]]] = []
    for struct, path in (
        (CompletionBody, COMPLETION),
        (ChatBody, CHAT),
        (Message, "message"),
        (Part, "part"),
    ):
        for name, mark in marks(struct).items():
            if isinstance(mark, Refused):
                found.append((path, {}, name, list(mark.neutral)))
    return found


def _with(path: str, name: str, value: Any) -> tuple[str, dict[str, Any], str]:
    """The request that sets one field, and the field's full name."""
    if path == "part":
        part = {"type": "text", "text": "a", name: value}
        return CHAT, {"messages": [{"role": "user", "content": [part]}]}, f"messages[0].content[0].{name}"
    if path == "message":
        return CHAT, {"messages": [{"role": "user", "content": "a", name: value}]}, f"messages[0].{name}"
    return path, ({"prompt": "a"} if path == COMPLETION else {"messages": HI}) | {name: value}, name


async def test_fields_that_are_not_served(serve: Serve):
    """Each is refused by name, and passes with null and with each of its neutral values."""
    async with serve() as api:
        for path, _, name, neutral in _refused():
            where, body, param = _with(path, name, {"anything": 1})
            status, answer = await api.post(where, body | {"max_tokens": 1})
            assert status == 400, name
            error = error_of(answer)
            assert (error["code"], error["param"]) == ("unsupported_parameter", param)
            for value in [None, *neutral]:
                where, body, _ = _with(path, name, value)
                status, answer = await api.post(where, body | {"max_tokens": 1})
                assert status == 200, (name, value, answer)


async def test_what_an_error_quotes_is_clipped(serve: Serve):
    long = "temperature" * 10_000
    async with serve() as api:
        for path, body in (
            (COMPLETION, {"prompt": "a", long: 1}),
            (COMPLETION, {"prompt": "a", "model": long}),
            (CHAT, {"messages": [{"role": long, "content": "a"}]}),
        ):
            error = error_of((await api.post(path, body))[1])
            assert len(error["message"]) + len(error["param"] or "") < 1500


async def test_a_number_is_not_a_truth_value(serve: Serve):
    async with serve() as api:
        for name, value in (("best_of", True), ("use_beam_search", 0), ("length_penalty", True)):
            status, answer = await api.post(COMPLETION, {"prompt": "a", name: value})
            assert (status, error_of(answer)["param"]) == (400, name)
        assert (await api.post(COMPLETION, {"prompt": "a", "length_penalty": 1.0}))[0] == 200


async def test_a_key_given_twice_counts_as_given_last(serve: Serve):
    engine = ScriptedEngine()
    async with serve(engine) as api:
        body = b'{"prompt": "a", "max_tokens": 2, "max_tokens": 3}'
        async with api.http.post(
            api.url + COMPLETION, data=body, headers={"Content-Type": "application/json"}
        ) as response:
            assert response.status == 200
    assert engine.requests[0].params.max_tokens == 3


@pytest.mark.parametrize(
    ("asked", "status", "code", "words"),
    [
        ("GET /v1/chat/completion", 404, "unknown_path", "the nearest is '/v1/chat/completions'"),
        ("POST /v1/embeddings", 404, "unknown_path", "there is no /v1/embeddings"),
        ("GET /", 404, "unknown_path", "there is no /"),
        ("GET /v1/models/gpt-4", 404, "model_not_found", "served is 'austen'"),
        ("GET /v1/completions", 405, "method_not_allowed", "takes POST, not GET"),
        ("DELETE /v1/models", 405, "method_not_allowed", "takes GET, HEAD, not DELETE"),
        ("OPTIONS /v1/chat/completions", 405, "method_not_allowed", "takes POST"),
        ("POST /metrics", 405, "method_not_allowed", "takes GET, HEAD"),
    ],
)
async def test_paths_and_methods(serve: Serve, asked: str, status: int, code: str, words: str):
    method, path = asked.split()
    async with serve() as api, api.http.request(method, api.url + path) as response:
        assert response.status == status
        error = error_of(await response.json())
        assert error["code"] == code
        assert words in error["message"]
        assert "Access-Control-Allow-Origin" not in response.headers
        if status == 405:
            assert response.headers["Allow"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
async def test_other_content_types(serve: Serve, kind: str | None):
    """What a page in a browser may send to this machine without being asked does not reach the engine."""
    engine = ScriptedEngine()
    async with serve(engine) as api:
        headers = {} if kind is None else {"Content-Type": kind}
        async with api.http.post(
            api.url + COMPLETION, data=b'{"prompt": "a"}', headers=headers, skip_auto_headers=["Content-Type"]
        ) as response:
            assert response.status == 415
            assert "Content-Type: application/json" in error_of(await response.json())["message"]
    assert not engine.requests


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large(serve: Serve, chunked: bool):
    async def pieces():
        for _ in range(64):
            yield b'{"prompt": "' + b"a" * 1000

    data: Any = pieces() if chunked else b"a" * 10_001
    async with serve(max_body_bytes=10_000) as api:
        headers = {"Content-Type": "application/json"}
        async with api.http.post(api.url + COMPLETION, data=data, headers=headers) as response:
            assert response.status == 413
            error = error_of(await response.json())
            assert error["code"] == "body_too_large"
            assert "10000 bytes" in error["message"]
        fits = b'{"prompt": "a"' + b" " * 9985 + b"}"
        async with api.http.post(api.url + COMPLETION, data=fits, headers=headers) as response:
            assert response.status == 200


async def test_a_compressed_body_is_measured_unpacked(serve: Serve):
    import gzip

    async with serve(max_body_bytes=10_000) as api:
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        for data, status in (
            (gzip.compress(b'{"prompt": "a"}'), 200),
            (gzip.compress(b" " * 10_000_000), 413),
            (b"no gzip at all", 400),
        ):
            async with api.http.post(api.url + COMPLETION, data=data, headers=headers) as response:
                assert response.status == status
                if status != 200:
                    error_of(await response.json())


@pytest.mark.parametrize(
    "given", [None, "Bearer", "Bearer ", "Bearer wrong", "Basic secret", "secret", "Bearer secre"]
)
async def test_the_key_is_needed_everywhere_but_at_health(serve: Serve, given: str | None):
    headers = {} if given is None else {"Authorization": given}
    async with serve(api_key="secret") as api:
        for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", CHAT), ("GET", "/nowhere")):
            async with api.http.request(method, api.url + path, headers=headers) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"] == "Bearer"
                assert error_of(await response.json())["code"] == "invalid_api_key"
        async with api.http.get(f"{api.url}/health", headers=headers) as response:
            assert response.status == 200


async def test_the_right_key(serve: Serve):
    async with serve(api_key="secret") as api:
        for given in ("Bearer secret", "bearer secret", "Bearer  secret "):
            async with api.http.get(f"{api.url}/v1/models", headers={"Authorization": given}) as response:
                assert response.status == 200


async def test_health(serve: Serve):
    engine = ScriptedEngine()
    async with serve(engine) as api:
        async with api.http.get(f"{api.url}/health") as response:
            assert (response.status, await response.json()) == (200, {"ok": True})
        engine.state = Health(ok=False, reason="no step for 31 s with 2 running and 0 waiting")
        async with api.http.get(f"{api.url}/health") as response:
            assert response.status == 503
            assert (
                error_of(await response.json())["message"] == "no step for 31 s with 2 running and 0 waiting"
            )


async def test_version(serve: Serve):
    async with serve() as api, api.http.get(f"{api.url}/version") as response:
        assert await response.json() == {"version": "0.1.0", "revision": "abc1234"}


async def test_past_max_inflight(serve: Serve):
    import asyncio

    engine = ScriptedEngine()
    engine.hold()
    most = 2
    async with serve(engine, max_inflight=lambda: most) as api:
        running = [asyncio.create_task(api.post(COMPLETION, {"prompt": "a"})) for _ in range(2)]
        await engine.until(lambda: len(engine.live) == 2)
        async with api.http.post(api.url + CHAT, json={"messages": HI}) as response:
            assert response.status == 429
            assert response.headers["Retry-After"] == "1"
            error = error_of(await response.json())
            assert (error["type"], error["code"]) == ("rate_limit_error", "too_many_inflight")
        assert (await api.post("/tokenize", {"prompt": "a"}))[
            0
        ] == 429  # it costs the processor like any other
        assert (await api.post("/detokenize", {"tokens": [97]}))[0] == 429
        most = 3  # a live flag
        running.append(asyncio.create_task(api.post(COMPLETION, {"prompt": "a"})))
        await engine.until(lambda: len(engine.live) == 3)
        engine.release()
        assert [status for status, _ in await asyncio.gather(*running)] == [200, 200, 200]


async def test_a_model_without_a_tokenizer(serve: Serve):
    async with serve(tokenizer=None, template=None) as api:
        for path, body in (
            (COMPLETION, {"prompt": "a"}),
            (COMPLETION, {"prompt": [97], "stop": "b"}),
            (COMPLETION, {"prompt": [97], "logprobs": 1}),
            (COMPLETION, {"prompt": [97], "echo": True}),
            (CHAT, {"messages": HI}),
            ("/tokenize", {"prompt": "a"}),
            ("/detokenize", {"tokens": [97]}),
        ):
            status, answer = await api.post(path, body)
            assert (status, error_of(answer)["code"]) == (400, "no_tokenizer"), body
        ask = {"prompt": [97, 98], "return_token_ids": True, "max_tokens": 3}
        status, answer = await api.post(COMPLETION, ask)
        assert (status, answer["choices"][0]["text"]) == (200, "")
        assert answer["choices"][0]["token_ids"] == [97, 98, 97]
        assert answer["usage"]["completion_tokens"] == 3


async def test_a_tokenizer_that_knows_more_than_the_model(serve: Serve):
    engine = ScriptedEngine(vocab_size=200)
    async with serve(engine) as api:
        for path, body, param in (
            (COMPLETION, {"prompt": ["a", "b"]}, "prompt[0]"),
            (COMPLETION, {"prompt": "😀", "add_special_tokens": False}, "prompt"),
            (CHAT, {"messages": [{"role": "user", "content": "😀"}]}, "messages"),
        ):
            status, answer = await api.post(path, body)
            assert (status, error_of(answer)["param"]) == (400, param)
        assert (await api.post(COMPLETION, {"prompt": "a", "add_special_tokens": False}))[0] == 200
    assert len(engine.requests) == 1


async def test_a_model_without_a_chat_template(serve: Serve):
    async with serve(template=None) as api:
        status, answer = await api.post(CHAT, {"messages": HI})
        assert (status, error_of(answer)["code"]) == (400, "no_chat_template")
        assert (await api.post(COMPLETION, {"prompt": "a"}))[0] == 200


async def test_tokenize_and_detokenize(serve: Serve):
    async with serve() as api:
        for body, tokens in (
            ({"prompt": "héé"}, [256, *ids_of("héé")]),
            ({"prompt": "hi", "add_special_tokens": False}, ids_of("hi")),
            ({"prompt": "", "add_special_tokens": False}, []),
            ({"messages": HI, "model": "austen"}, ids_of("[user]hi[assistant]")),
            ({"messages": HI, "add_generation_prompt": False}, ids_of("[user]hi")),
        ):
            status, answer = await api.post("/tokenize", body)
            assert (status, answer) == (200, {"count": len(tokens), "max_model_len": 512, "tokens": tokens})
            status, answer = await api.post("/detokenize", {"tokens": tokens})
            assert status == 200
        status, answer = await api.post("/tokenize", {"prompt": "hé", "return_token_strs": True})
        assert answer["token_strs"] == ["<bos>", "h", "Ã", "©"]
        assert (await api.post("/detokenize", {"tokens": [256, *ids_of("hé")]}))[1] == {"prompt": "<bos>hé"}
        for path, body in (
            ("/tokenize", {}),
            ("/tokenize", {"prompt": "a", "messages": HI}),
            ("/tokenize", {"prompt": ["a"]}),
            ("/detokenize", {"tokens": [260]}),
            ("/detokenize", {"tokens": "a"}),
            ("/detokenize", {"token": []}),
        ):
            status, answer = await api.post(path, body)
            assert status == 400, (path, body, answer)
            error_of(answer)


async def test_what_a_request_leaves_open_the_model_decides_then_openai(serve: Serve):
    defaults = GenerationDefaults(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1)
    asked: dict[str, Any] = {"temperature": 0, "top_k": -1, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
    engine, plain = ScriptedEngine(), ScriptedEngine()
    async with serve(engine, defaults=defaults) as api:
        await api.post(COMPLETION, {"prompt": "a"})
        await api.post(COMPLETION, {"prompt": "a"} | asked)
        await api.post(COMPLETION, {"prompt": "a", "top_k": 10**9})
    async with serve(plain) as api:
        await api.post(COMPLETION, {"prompt": "a"})

    def drawn(index: int, of: ScriptedEngine = engine) -> tuple[float, ...]:
        p = of.requests[index].params
        return (p.temperature, p.top_k, p.top_p, p.min_p, p.repetition_penalty)

    assert drawn(0) == (0.7, 40, 0.9, 0.05, 1.1)
    assert drawn(1) == (0, 0, 1, 0, 1)
    assert drawn(2)[1] == 260  # no more than there are
    assert drawn(0, plain) == (1, 0, 1, 0, 1)


async def test_every_parameter_reaches_the_engine(serve: Serve):
    engine = ScriptedEngine()
    async with serve(engine) as api:
        status, _ = await api.post(
            COMPLETION,
            {
                "prompt": "a", "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"97": -100, "98": 2},
                "seed": -5, "stop": ["x", "yz"], "stop_token_ids": [3, 3, 4], "min_tokens": 2, "max_tokens": 9,
                "ignore_eos": True, "priority": -7, "logprobs": 0, "user": "ann", "metadata": {"a": 1}, "store": True,
            },
        )  # fmt: skip
        assert status == 200
    (request,) = engine.requests
    p = request.params
    assert (p.presence_penalty, p.frequency_penalty, p.logit_bias) == (0.5, -0.5, {97: -100.0, 98: 2.0})
    assert (p.seed, p.stop, p.stop_token_ids, p.min_tokens, p.max_tokens) == (-5, ("x", "yz"), (3, 4), 2, 9)
    assert (p.ignore_eos, request.priority, p.logprobs) == (True, -7, 0)
    assert request.arrival > 0
