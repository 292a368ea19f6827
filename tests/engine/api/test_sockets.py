"""The API at the level of bytes: curl, keep-alive, pipelines, noise, and many streams at once."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from arc.engine.core.interface import Draining

from .conftest import Serve, ids_of
from .scripted import ScriptedEngine, failing, saying
from .test_errors import error_of
from .wire import answer, connection, events, post


async def curl(*arguments: str) -> tuple[int, str]:
    """Status and output of one curl."""
    process = await asyncio.create_subprocess_exec(
        "curl",
        "-sS",
        "-w",
        "\n%{http_code}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    body, _, status = out.decode().rpartition("\n")
    return int(status), body


async def test_curl(serve: Serve):
    async with serve(ScriptedEngine(saying(*ids_of("hi"), 257))) as api:
        json_type = ("-H", "Content-Type: application/json")
        body = '{"messages": [{"role": "user", "content": "a"}], "stream": true}'
        status, out = await curl("-N", f"{api.url}/v1/chat/completions", *json_type, "-d", body)
        assert status == 200
        assert out.endswith("data: [DONE]\n\n")
        assert "".join(e["choices"][0]["delta"]["content"] for e in events(out.encode())[:-1]) == "hi"
        status, out = await curl(f"{api.url}/v1/completions", "-d", '{"prompt": "a"}')
        assert status == 415
        assert "-H" not in error_of(json.loads(out))["type"]
        status, out = await curl(
            "--http1.0", f"{api.url}/v1/completions", *json_type, "-d", '{"prompt":"a","stream":true}'
        )
        assert (status, events(out.encode())[-1]) == (
            200,
            b"data: [DONE]",
        )  # without chunks, to the connection's end
        status, out = await curl("-I", f"{api.url}/health")
        assert status == 200


async def test_events_byte_by_byte(serve: Serve):
    """The whole stream of a chat, as it stands in docs/api.md's example."""
    async with serve(ScriptedEngine(saying(*ids_of('"\n'), 257))) as api, connection(api) as (reader, writer):
        ask = {
            "messages": [{"role": "user", "content": "a"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        writer.write(post("/v1/chat/completions", ask))
        status, headers, body = await answer(reader)
    assert status == 200
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    role, first, second, last, usage, done = events(body)
    assert done == b"data: [DONE]"
    for chunk in (role, first, second, last, usage):
        assert chunk["object"] == "chat.completion.chunk"
    plain = {"index": 0, "logprobs": None, "finish_reason": None, "stop_reason": None}
    assert role["choices"] == [plain | {"delta": {"role": "assistant", "content": ""}}]
    assert first["choices"] == [plain | {"delta": {"content": '"'}}]
    assert second["choices"] == [plain | {"delta": {"content": "\n"}}]
    assert last["choices"] == [plain | {"delta": {"content": ""}, "finish_reason": "stop"}]
    assert [chunk["usage"] for chunk in (role, first, second, last)] == [None] * 4
    assert usage["usage"] == {
        "prompt_tokens": 18,
        "completion_tokens": 3,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_one_write_a_token(serve: Serve):
    """Each step's text is one chunk of the connection, the role with the first, the end mark with the last."""
    async with serve(ScriptedEngine(saying(*ids_of("abc"), 257))) as api, connection(api) as (reader, writer):
        ask = {"messages": [{"role": "user", "content": "a"}], "stream": True}
        writer.write(post("/v1/chat/completions", ask))
        await reader.readuntil(b"\r\n\r\n")
        pieces: list[bytes] = []
        while size := int(await reader.readline(), 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
    assert [piece.count(b"data: ") for piece in pieces] == [2, 1, 1, 2]


async def test_a_fault_in_a_stream_ends_it_whole(serve: Serve):
    """The connection is not cut: the last event is the error, the chunks end in order, the next request is served."""
    async with serve(ScriptedEngine(failing(2))) as api, connection(api) as (reader, writer):
        for _ in range(2):
            writer.write(post("/v1/completions", {"prompt": [97], "stream": True}))
            status, _, body = await answer(reader)
            assert status == 200
            first, second, error = events(body)
            assert (first["choices"][0]["text"], second["choices"][0]["text"]) == ("a", "a")
            assert error_of(error)["code"] == "engine_fault"


async def test_a_defect_in_a_stream_is_an_event_that_says_nothing_of_the_inside(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    calls = iter(range(100))

    def broken(self: Any, output: Any) -> None:
        if next(calls) >= 1:
            raise RuntimeError("a secret of the inside")
        self.texts.append("a")

    monkeypatch.setattr("arc.engine.api.choices.Choice.absorb", broken)
    engine = ScriptedEngine()
    async with serve(engine) as api, connection(api) as (reader, writer):
        writer.write(post("/v1/completions", {"prompt": "a", "stream": True}))
        _, _, body = await answer(reader)
        assert error_of(events(body)[-1])["code"] == "internal_error"
        status, answered = await api.post("/v1/completions", {"prompt": "a"})
        assert (status, error_of(answered)["code"]) == (500, "internal_error")
        assert "secret" not in str(answered) + body.decode()
        assert (
            caplog.text.count("RuntimeError: a secret of the inside") == 2
        )  # with its traceback, in the log


async def test_keep_alive_and_pipelines(serve: Serve):
    """Many requests in one go on one connection: answered in order, whole and streamed, good and bad."""
    async with serve() as api, connection(api) as (reader, writer):
        requests = [
            post("/v1/completions", {"prompt": [97], "max_tokens": 2}),
            post("/v1/completions", {"prompt": [98], "max_tokens": 2, "stream": True}),
            post("/v1/completions", {"prompt": []}),
            post("/v1/completions", b"{"),
            b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
            post("/nowhere", {}),
            post("/v1/completions", {"prompt": [99], "max_tokens": 2}),
        ]
        writer.write(b"".join(requests))
        answers = [await answer(reader) for _ in requests]
    assert [status for status, _, _ in answers] == [200, 200, 400, 400, 200, 404, 200]
    assert json.loads(answers[0][2])["choices"][0]["text"] == "aa"
    assert events(answers[1][2])[0]["choices"][0]["text"] == "b"
    assert json.loads(answers[6][2])["choices"][0]["text"] == "cc"


async def test_two_hundred_streams_at_once(serve: Serve):
    async with serve() as api:

        async def one(number: int) -> str:
            ask = {"prompt": f"<{number}>", "max_tokens": 60, "stream": True, "add_special_tokens": False}
            async with api.http.post(f"{api.url}/v1/completions", json=ask) as response:
                assert response.status == 200
                chunks = events(await response.read())
            assert chunks.pop() == b"data: [DONE]"
            assert len({chunk["id"] for chunk in chunks}) == 1
            return "".join(chunk["choices"][0]["text"] for chunk in chunks)

        texts = await asyncio.gather(*map(one, range(200)))
        ids = {request.id for request in api.engine.requests}
    for number, text in enumerate(texts):
        assert text == (f"<{number}>" * 60)[:60]
    assert len(ids) == 200


async def test_ten_megabytes_of_noise(serve: Serve, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    noise = random.Random(7).randbytes(10_000_000)
    engine = ScriptedEngine()
    async with serve(engine) as api:
        async with connection(api) as (reader, writer):
            writer.write(noise)
            try:
                await writer.drain()
                await reader.read()
            except ConnectionError:
                pass  # closed before it was all sent
        assert len(caplog.records) == 1  # whoever sends noise does not fill the log
        assert caplog.records[0].levelname == "INFO"
        assert caplog.records[0].exc_info is None
        async with connection(api) as (reader, writer):
            writer.write(post("/v1/completions", noise))
            status, _, body = await answer(reader)
            assert status == 413
            error_of(json.loads(body))
        assert (await api.post("/v1/completions", {"prompt": "a"}))[0] == 200
    assert len(engine.requests) == 1


@pytest.mark.parametrize("cut", [1, 20, 60, 100, -1])
async def test_requests_cut_short(serve: Serve, cut: int):
    engine = ScriptedEngine()
    async with serve(engine) as api:
        async with connection(api) as (reader, writer):
            writer.write(post("/v1/completions", {"prompt": "a"})[:cut])
            writer.write_eof()
            assert await reader.read() == b""
        assert (await api.post("/v1/completions", {"prompt": "a"}))[0] == 200
    assert len(engine.requests) == 1


async def test_new_work_is_refused_while_old_work_ends(serve: Serve):
    """Draining: a stream that runs goes on to its end."""
    engine = ScriptedEngine()
    engine.hold()
    async with serve(engine) as api:
        old = asyncio.create_task(api.post("/v1/completions", {"prompt": "a", "max_tokens": 3}))
        await engine.until(lambda: len(engine.live) == 1)
        engine.refuse = Draining()
        status, refused = await api.post("/v1/completions", {"prompt": "a"})
        assert (status, error_of(refused)["code"]) == (503, "draining")
        engine.release()
        assert (await old)[0] == 200
