"""The load generator against an endpoint of known behaviour: what is counted, from when, and how failures are named."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from arc.console.bench.endpoint import Address
from arc.console.bench.load import Bounds, Load, Measured
from arc.console.bench.request import Target
from arc.console.bench.work import Job

from . import stub as stubs
from .stub import HEAD, Answer, chunk, event, stub, text, usage


def target(url: str, **more: Any) -> Target:
    return Target(Address.of(url), more.pop("endpoint", "completions"), "stub", **more)


def jobs(output: int = 4) -> Iterator[Job]:
    return itertools.repeat(Job((17, 18), output))


def closed(answer: Answer, requests: int = 1, output: int = 4, at_once: int = 1, **more: Any) -> Measured:
    with stub(answer) as served:
        load = Load(target(served.url, **more), Bounds())
        return asyncio.run(load.closed(jobs(output), requests, at_once))


def sends(*parts: bytes, pause: float = 0.0) -> Answer:
    async def answer(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for part in parts:
            writer.write(chunk(part))
            await writer.drain()
            await asyncio.sleep(pause)
        writer.write(chunk(b""))

    return answer


END = event(usage(2, 4)) + event(b"[DONE]")
FOUR = [event(text(each)) for each in "abcd"]


@pytest.mark.parametrize("cut", [1, 3, 7, 64, 10_000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_events_are_found_wherever_the_bytes_are_cut(cut: int, line_end: bytes) -> None:
    whole = (b": comment\n\n" + b"".join(FOUR) + END).replace(b"\n", line_end)
    parts = [whole[start : start + cut] for start in range(0, len(whole), cut)]
    measured = closed(sends(*parts))
    assert measured.errors == {} and measured.finished == 1
    assert (measured.texts, measured.output_tokens, measured.prompt_tokens) == (4, 4, 2)
    assert measured.itl.count == 3 and measured.ttft.count == 1


@pytest.mark.parametrize("sized", [True, False])
def test_a_body_without_chunks_is_read_too(sized: bool) -> None:
    content = b"".join(FOUR) + END

    async def answer(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        length = b"Content-Length: %d\r\n" % len(content) if sized else b""
        writer.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n" + content)

    assert closed(answer).finished == 1


async def _silent(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def _other(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-whatever\r\n\r\n")


async def _nothing(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    return


@pytest.mark.parametrize(
    ("kind", "answer", "said"),
    [
        ("HTTP 429", stubs.refuse(429, "too many wait", "Retry-After: 3"), "too many wait (Retry-After: 3)"),
        ("HTTP 503", stubs.refuse(503, "draining"), "draining"),
        ("HTTP 500", stubs.refuse(500, ""), "no body"),
        ("cut off", sends(*FOUR), "[DONE]"),
        ("cut off", _nothing, "ended in the middle"),
        ("no usage", sends(*FOUR, event(b"[DONE]")), "no usage"),
        ("other length", sends(*FOUR, event(usage(2, 3)), event(b"[DONE]")), "asked for 4 tokens and got 3"),
        ("no text", sends(END), "without any text"),
        ("bad event", sends(event(b"{")), "{"),
        ("error in the stream", sends(event({"error": {"message": "step failed"}})), "step failed"),
        ("timeout", _silent, "0.3 s"),
        ("not HTTP", _other, "no HTTP/1.1"),
    ],
)
def test_every_failure_is_counted_under_its_name_and_sent_once(kind: str, answer: Any, said: str) -> None:
    with stub(answer) as served:
        load = Load(target(served.url, timeout=0.3 if kind == "timeout" else 60.0), Bounds())
        measured = asyncio.run(load.closed(jobs(), 3, 1))
        assert len(served.bodies) == 3, "nothing is sent twice"
    assert measured.errors == {kind: 3}
    assert said in measured.messages[kind][0]
    assert measured.finished == 0 and measured.ttft.summary() is None


def test_a_refused_connection_has_a_name() -> None:
    with stub() as served:
        url = served.url
    measured = asyncio.run(Load(target(url), Bounds()).closed(jobs(), 2, 1))
    assert measured.errors == {"connection refused": 2}


def test_a_truncated_chunk_is_no_end() -> None:
    async def answer(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(b"".join(FOUR) + END)[:-20])

    assert closed(answer).errors == {"cut off": 1}


def test_the_role_is_no_token_and_the_prompt_is_not_in_the_first_gap() -> None:
    """The role comes at once, the prompt's computation takes its time after it, then the tokens follow closely."""

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        def delta(**what: str) -> bytes:
            return chunk(event({"choices": [{"index": 0, "delta": what}]}))

        writer.write(HEAD + delta(role="assistant", content=""))
        await writer.drain()
        await asyncio.sleep(0.4)
        for each in "abcd":
            writer.write(delta(content=each))
            await writer.drain()
        writer.write(chunk(END) + chunk(b""))

    with stub(answer) as served:
        load = Load(target(served.url, endpoint="chat"), Bounds())
        measured = asyncio.run(load.closed(itertools.repeat(Job("hello", 4)), 1, 1))
        assert served.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]
        assert served.heads[0].startswith(b"POST /v1/chat/completions ")
    ttft, itl = measured.ttft.summary(), measured.itl.summary()
    assert ttft is not None and itl is not None
    assert ttft.least >= 0.4, "the role alone is no first token"
    assert itl.count == 3 and itl.most < ttft.least


def test_a_stall_is_charged_to_every_arrival_that_it_held_up() -> None:
    """One request at a time, 0.5 s each, ten arrivals at once: the last one waited for all before it."""

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        await stubs.plain(body, writer)

    with stub(answer) as served:
        load = Load(target(served.url), Bounds())
        measured = asyncio.run(load.opened(jobs(), 10, itertools.repeat(0.0), 1))
    e2e = measured.e2e.summary()
    assert e2e is not None and measured.finished == 10
    assert measured.most_under_way == 1 and measured.late == 9
    assert e2e.most >= 1.0, "its own 0.1 s, and the 0.9 s that it could not be sent"
    assert e2e.least < e2e.most


def test_a_rate_does_not_wait_for_answers() -> None:
    """All arrivals are under way together while the server has answered none."""
    arrived = 0
    every = asyncio.Event()

    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 12:
            every.set()
        await every.wait()
        await stubs.plain(body, writer)

    with stub(answer) as served:
        load = Load(target(served.url), Bounds())
        measured = asyncio.run(load.opened(jobs(), 12, itertools.count(0.0, 0.001), 100))
    assert measured.finished == 12 and measured.most_under_way == 12 and measured.late == 0


def test_concurrency_is_kept_and_dry_is_told_once() -> None:
    dry: list[int] = []
    with stub() as served:
        load = Load(target(served.url), Bounds(), on_dry=lambda: dry.append(load.measured.sent))
        measured = asyncio.run(load.closed(jobs(), 50, 7))
    assert measured.finished == measured.sent == 50
    assert measured.most_under_way <= 7
    assert dry == [50], "dry is when the last one has been sent"


def test_goodput_counts_what_keeps_every_bound() -> None:
    with stub(sends(*FOUR, END, pause=0.05)) as served:
        for bounds, good in (
            (Bounds(), 3),
            (Bounds(ttft=60, e2e=60, tpot=60), 3),
            (Bounds(ttft=60, tpot=0.01), 0),
        ):
            measured = asyncio.run(Load(target(served.url), bounds).closed(jobs(), 3, 1))
            assert measured.good == good


def test_the_key_is_sent_and_is_in_no_result() -> None:
    with stub() as served:
        asyncio.run(Load(target(served.url, key="secret"), Bounds()).closed(jobs(), 1, 1))
        assert b"Authorization: Bearer secret\r\n" in served.heads[0]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000, False, "")),
        ("http://host/v1/", Address("host", 80, False, "")),
        ("https://host/some/v1", Address("host", 443, True, "/some")),
        ("http://[::1]:9", Address("::1", 9, False, "")),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert Address.of(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://user:pw@host",
        "http://h/?q=1",
        "http://[::1",
        "http://h:99999",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(url))):
        Address.of(url)
