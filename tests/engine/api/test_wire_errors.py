"""What is wrong before any handler sees it: bytes that are no HTTP, encodings, bodies that cannot be unpacked."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from typing import Any

import pytest

from .conftest import Serve
from .test_errors import COMPLETION, error_of
from .wire import answer, connection, post

BODY = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
PACKED = gzip.compress(BODY)

BROKEN = [
    # what is sent, status, words that the message must hold
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, ""),
    (b"nonsense\r\n\r\n", 400, ""),
    (b"GET /health HTTP/9.9\r\n\r\n", 400, ""),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400, ""),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nExpect: nonsense\r\n\r\n", 417, "Expect: nonsense"),
    (b"GET /nowhere HTTP/1.1\r\nHost: x\r\nExpect: nonsense\r\n\r\n", 417, "Expect: nonsense"),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 400, ""),
    (b"POST " + COMPLETION.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400, ""),
    (
        b"POST "
        + COMPLETION.encode()
        + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "",
    ),
    (post(COMPLETION, BODY, "Content-Encoding: nonsense"), 415, "send identity"),
    (post(COMPLETION, BODY, "Content-Encoding: br"), 415, "send identity, gzip, deflate or none"),
    (post(COMPLETION, BODY, "Content-Encoding: zstd"), 415, "send identity"),
    (post(COMPLETION, BODY, "Content-Encoding: " + "x" * 5000), 415, "send identity"),
    (post(COMPLETION, BODY, "Content-Encoding: gzip"), 400, "gzip"),
    (post(COMPLETION, PACKED[:-8] + b"12345678", "Content-Encoding: gzip"), 400, ""),
    (post(COMPLETION, PACKED[:12], "Content-Encoding: gzip"), 400, ""),
    (post(COMPLETION, b"\x1f\x8b" + b"\xff" * 200, "Content-Encoding: gzip"), 400, ""),
    (post(COMPLETION, BODY, "Content-Encoding: deflate"), 400, ""),
]


@pytest.mark.parametrize(("sent", "status", "words"), BROKEN, ids=range(len(BROKEN)))
async def test_every_refusal_is_json_in_one_form_and_no_traceback(
    serve: Serve, sent: bytes, status: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve() as api:
        async with connection(api) as (reader, writer):
            caplog.clear()
            writer.write(sent)
            found, headers, body = await answer(reader)
        assert (found, headers["content-type"]) == (status, "application/json")
        error = error_of(json.loads(body))
        assert words in error["message"] and len(error["message"]) < 300 and error["message"].isprintable()
        status_after, _ = await api.post(COMPLETION, {"prompt": "a", "max_tokens": 1})
        assert status_after == 200
    assert not [each for each in caplog.records if each.exc_info or each.levelno >= logging.WARNING]


async def test_a_packed_body_that_is_right_is_served(serve: Serve) -> None:
    async with serve() as api, connection(api) as (reader, writer):
        writer.write(post(COMPLETION, PACKED, "Content-Encoding: gzip"))
        status, _, body = await answer(reader)
        found: dict[str, Any] = json.loads(body)
        assert status == 200 and found["object"] == "text_completion"


async def test_the_end_does_not_wait_for_a_client_that_does_not_read(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """It gets its time, and then it is cut off with the reason; aiohttp alone would wait twice as long in silence."""
    async with serve(small_buffers=True, last_answers=0.3) as api:
        streaming = {"prompt": "a", "max_tokens": 400, "stream": True, "return_token_ids": True, "n": 100}
        async with connection(api) as (reader, writer):
            writer.write(post(COMPLETION, streaming))
            await reader.readuntil(b"\r\n\r\n")  # and then no more
            async with asyncio.timeout(60):
                while not api.engine.live:
                    await asyncio.sleep(0.01)
                await api.runner.cleanup()
    assert any("1 connections were cut off" in each.getMessage() for each in caplog.records)


async def test_an_answer_that_is_read_is_not_cut_off(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(last_answers=60.0) as api, connection(api) as (reader, writer):
        writer.write(post(COMPLETION, {"prompt": "a", "max_tokens": 2}))
        status, _, _ = await answer(reader)
        assert status == 200
        async with asyncio.timeout(30):
            await api.runner.cleanup()
    assert not any("cut off" in each.getMessage() for each in caplog.records)
