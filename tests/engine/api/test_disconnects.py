"""Clients that go away, or read slowly: the engine's sequences end at once, and never wait for a socket."""

from __future__ import annotations

import asyncio
import socket
import struct
from itertools import repeat
from typing import Any

import pytest
from arc.engine.sequence import Finish, FinishReason

from .conftest import Serve, Served
from .scripted import ScriptedEngine, output
from .wire import answer, connection, events, post


def endless(request):
    for token in repeat(97):
        yield output(request, token)


def close(writer: asyncio.StreamWriter, how: str) -> None:
    """Close as a client does that ends, that is killed (RST), or that has said its last word and only listens (FIN)."""
    if how == "half":
        writer.write_eof()
    elif how == "reset":
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_gone_before_the_first_token(serve: Serve, path: str, stream: bool, how: str):
    engine = ScriptedEngine(endless)
    engine.hold()
    prompt: Any = (
        {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    )
    async with serve(engine) as api:
        async with connection(api) as (_, writer):
            writer.write(post(path, prompt | {"n": 3, "stream": stream, "max_tokens": 400}))
            await engine.until(lambda: len(engine.live) == 3)
            close(writer, how)
            await engine.until(lambda: not engine.live)
        assert list(engine.cancelled.values()) == [FinishReason.DISCONNECTED] * 3


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("n", [1, 3])
async def test_gone_in_the_middle_of_a_stream(serve: Serve, n: int, how: str):
    engine = ScriptedEngine(endless)
    engine.hold()
    async with serve(engine) as api:
        async with connection(api) as (reader, writer):
            writer.write(post("/v1/completions", {"prompt": "a", "n": n, "stream": True, "max_tokens": 400}))
            await engine.until(lambda: len(engine.live) == n)
            engine.step(2)
            for _ in range(2 * n):
                await reader.readuntil(b'"text":"a"')
            close(writer, how)
            await engine.until(lambda: not engine.live)  # no further step: the socket alone tells
        assert list(engine.cancelled.values()) == [FinishReason.DISCONNECTED] * n


async def test_gone_in_the_middle_of_an_answer_that_is_not_streamed(serve: Serve):
    engine = ScriptedEngine(endless)
    engine.hold()
    async with serve(engine) as api:
        async with connection(api) as (_, writer):
            writer.write(post("/v1/completions", {"prompt": "a", "max_tokens": 400}))
            await engine.until(lambda: len(engine.live) == 1)
            engine.step(5)
            await asyncio.sleep(0)
            writer.close()
            await engine.until(lambda: not engine.live)
        assert list(engine.cancelled.values()) == [FinishReason.DISCONNECTED]


async def test_gone_with_requests_still_in_the_pipe(serve: Serve):
    engine = ScriptedEngine(endless)
    engine.hold()
    async with serve(engine) as api:
        async with connection(api) as (_, writer):
            writer.write(post("/v1/completions", {"prompt": "a", "max_tokens": 400}) * 3)
            await engine.until(lambda: len(engine.live) == 1)
            writer.close()
            await engine.until(lambda: not engine.live)
        assert list(engine.cancelled.values()) == [FinishReason.DISCONNECTED]
        assert len(engine.requests) == 1  # what nobody waits for any more is not begun


@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_gone_while_the_socket_is_full(serve: Serve, how: str, caplog: pytest.LogCaptureFixture):
    engine = ScriptedEngine(endless, max_model_len=10**7)
    async with serve(engine, small_buffers=True) as api:
        async with connection(api) as (reader, writer):
            writer.write(post("/v1/completions", {"prompt": "a", "stream": True, "max_tokens": 10**6}))
            await reader.readuntil(b"\r\n\r\n")
            await engine.until(lambda: engine.steps_run > 2000)
            close(writer, how)
            await engine.until(lambda: not engine.live)
        assert list(engine.cancelled.values()) == [FinishReason.DISCONNECTED]
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


@pytest.mark.parametrize("n", [1, 2])
async def test_a_slow_reader_holds_nobody_up_and_misses_nothing(serve: Serve, n: int):
    tokens = 3000
    letters = "".join(chr(97 + i % 26) for i in range(tokens))

    def alphabet(request):
        for i in range(tokens):
            finish = Finish(reason=FinishReason.LENGTH) if i == tokens - 1 else None
            yield output(request, 97 + i % 26, finish=finish)

    engine = ScriptedEngine(alphabet, max_model_len=10**6)
    async with serve(engine, small_buffers=True) as api:
        async with connection(api) as (reader, writer):
            writer.write(
                post("/v1/completions", {"prompt": "a", "n": n, "stream": True, "max_tokens": tokens})
            )
            await engine.until(lambda: len(engine.requests) == n)
            await engine.until(lambda: not engine.live)  # it ran to its end while nothing was read
            status, _, body = await answer(reader)
        assert status == 200
        *chunks, done = events(body)
        assert done == b"data: [DONE]"
        for index in range(n):
            assert (
                "".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == index)
                == letters
            )
        # the socket took 64 KiB and what is under it; everything after that went out joined
        assert len(body) < 150_000
        assert len(chunks) < tokens * n / 2
        assert not engine.cancelled


async def test_a_stopped_reader_gives_its_place_back(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("arc.engine.api.streams.LAST_SECONDS", 0.01)
    engine = ScriptedEngine(max_model_len=10**6)
    async with (
        serve(engine, small_buffers=True, max_inflight=lambda: 1) as api,
        connection(api) as (_, writer),
    ):
        writer.write(post("/v1/completions", {"prompt": "a", "stream": True, "max_tokens": 3000}))
        await engine.until(lambda: len(engine.requests) == 1)
        await engine.until(lambda: not engine.live)
        await until_free(api)


async def test_half_a_body_begins_nothing(serve: Serve):
    engine = ScriptedEngine()
    async with serve(engine, max_inflight=lambda: 1) as api:
        async with connection(api) as (reader, writer):
            writer.write(post("/v1/completions", {"prompt": "gone"}, "Expect: 100-continue")[:-5])
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert (await api.post("/v1/completions", {"prompt": "a"}))[0] == 429  # it has the only place
            writer.close()
            await until_free(api)
        assert [len(request.prompt) for request in engine.requests] == [2]


async def until_free(api: Served) -> None:
    """Ask until the only place is free."""
    while (await api.post("/v1/completions", {"prompt": "a"}))[0] == 429:
        pass


async def test_a_body_that_never_ends_gives_its_place_back(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("arc.engine.api.handlers.BODY_SECONDS", 0.01)
    async with serve() as api, connection(api) as (reader, writer):
        writer.write(post("/v1/completions", {"prompt": "a"})[:-5])
        status, _, body = await answer(reader)
        assert status == 408
        assert b"body_timeout" in body
        assert (await api.post("/v1/completions", {"prompt": "a"}))[0] == 200
