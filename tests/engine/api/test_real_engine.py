"""The API over the real engine, with a checkpoint of random weights: what only both together can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from arc.engine.api.app import create_app, create_runner
from arc.engine.core.assembly import Assembly
from arc.engine.sequence import FinishReason
from openai import AsyncOpenAI

from tests.engine.core.living import assert_all_pages_free, engine, until

from .test_metrics import value
from .wire import answer, events, post


@dataclass
class Real:
    """A served engine."""

    assembly: Assembly
    host: str
    port: int
    http: aiohttp.ClientSession
    openai: AsyncOpenAI

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def metrics(self) -> str:
        async with self.http.get(f"{self.url}/metrics") as response:
            return await response.text()

    async def stream(self, **body: Any) -> list[Any]:
        async with self.http.post(f"{self.url}/v1/completions", json=body | {"stream": True}) as response:
            assert response.status == 200
            return events(await response.read())


@asynccontextmanager
async def serving(model: Path, folder: Path, **flags: Any) -> AsyncIterator[Real]:
    """An engine, its API and clients for it. All pages are free at the end."""
    async with engine(model, folder, **flags) as assembly:
        text = assembly.text
        app = create_app(
            assembly.handle,
            text.tokenizer,
            text.chat_template,
            text.defaults,
            api_key=None,
            max_body_bytes=1 << 20,
            max_inflight=lambda: 256,
            config_revision=lambda: assembly.port.settings.version,
        )
        runner = create_runner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        client = AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)
        try:
            async with aiohttp.ClientSession() as http, client:
                yield Real(assembly, host, port, http, client)
        finally:
            await runner.cleanup()
        await until(lambda: not assembly.engine.sequences)
        assert_all_pages_free(assembly)


def idle(assembly: Assembly) -> bool:
    counters = assembly.handle.counters
    return not assembly.engine.sequences and counters.running == counters.waiting == counters.pages_used == 0


@pytest.fixture
async def real(tiny: Path, tmp_path: Path) -> AsyncIterator[Real]:
    async with serving(tiny, tmp_path) as served:
        yield served


GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


async def test_whole_and_streamed_are_the_same_text(real: Real):
    ask: dict[str, Any] = {"prompt": "The rain", "max_tokens": 12, "logprobs": 2} | GREEDY
    async with real.http.post(f"{real.url}/v1/completions", json=ask) as response:
        whole = (await response.json())["choices"][0]
    *chunks, done = await real.stream(**ask)
    assert done == b"data: [DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]
    streamed = [token for chunk in chunks for token in chunk["choices"][0]["logprobs"]["tokens"]]
    assert streamed == whole["logprobs"]["tokens"]
    assert len(whole["logprobs"]["tokens"]) == 12
    for chosen, top in zip(
        whole["logprobs"]["token_logprobs"], whole["logprobs"]["top_logprobs"], strict=True
    ):
        assert chosen == max(top.values())  # greedy
        assert 2 <= len(top) <= 3


async def test_usage_counts_what_the_engine_counts(real: Real):
    prompt = list(range(40, 75))
    before = real.assembly.handle.counters
    prompts, generated, hits = before.prompt_tokens, before.generation_tokens, before.prefix_hits
    usages = []
    for _ in range(2):
        completion = await real.openai.completions.create(
            model=real.assembly.info.model, prompt=prompt, max_tokens=5, n=2, extra_body=GREEDY
        )
        assert completion.usage is not None
        assert completion.usage.prompt_tokens_details is not None
        usages.append(completion.usage)
    after = real.assembly.handle.counters
    assert [usage.prompt_tokens for usage in usages] == [35, 35]
    assert [usage.completion_tokens for usage in usages] == [10, 10]
    assert after.prompt_tokens - prompts == 4 * 35  # the engine sees n sequences, the client one prompt
    assert after.generation_tokens - generated == 20
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages]  # pyright: ignore[reportOptionalMemberAccess]
    assert cached == [0, 32]  # whole pages of 8
    assert after.prefix_hits - hits >= 32 * 2


async def test_chat_goes_through_the_checkpoints_template(real: Real):
    messages: Any = [{"role": "user", "content": "Good morning"}]
    async with real.http.post(f"{real.url}/tokenize", json={"messages": messages}) as response:
        tokens = (await response.json())["tokens"]
    chat = await real.openai.chat.completions.create(
        model=real.assembly.info.model,
        messages=messages,
        max_completion_tokens=6,
        extra_body=GREEDY | {"return_token_ids": True},
    )
    assert (chat.model_extra or {})["prompt_token_ids"] == tokens
    same = await real.openai.completions.create(
        model=real.assembly.info.model, prompt=tokens, max_tokens=6, extra_body=GREEDY
    )
    assert chat.choices[0].message.content == same.choices[0].text


async def test_a_stop_string_ends_the_sequence_in_the_engine(real: Real):
    ask: dict[str, Any] = {"prompt": "The rain", "max_tokens": 60} | GREEDY
    async with real.http.post(f"{real.url}/v1/completions", json=ask) as response:
        text = (await response.json())["choices"][0]["text"]
    stop = text[5:8]
    *chunks, _ = await real.stream(**ask, stop=stop)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text[: text.index(stop)]
    assert chunks[-1]["choices"][0]["stop_reason"] == stop
    await until(lambda: idle(real.assembly))
    finished = real.assembly.handle.counters.finished
    assert finished[FinishReason.STOP] + finished[FinishReason.LENGTH] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_frees_its_pages(real: Real, stream: bool):
    counters = real.assembly.handle.counters
    _, writer = await asyncio.open_connection(real.host, real.port)
    body = {"prompt": list(range(50)), "max_tokens": 400, "n": 3, "stream": stream} | GREEDY
    writer.write(post("/v1/completions", body))
    await until(lambda: counters.running == 3)
    writer.close()
    await until(lambda: counters.finished[FinishReason.DISCONNECTED] == 3)
    await until(lambda: idle(real.assembly))


async def test_too_many_waiting(tiny: Path, tmp_path: Path):
    flags = {"sched__max_running": 1, "sched__max_waiting": 1}
    async with serving(tiny, tmp_path, **flags) as real:
        counters = real.assembly.handle.counters
        body: dict[str, Any] = {"prompt": "a", "max_tokens": 300} | GREEDY
        running = [asyncio.create_task(real.stream(**body))]
        await until(lambda: counters.running == 1)
        running.append(asyncio.create_task(real.stream(**body)))
        await until(lambda: counters.waiting == 1)
        text = await real.metrics()
        reasons = [
            line for line in text.splitlines() if line.startswith("vllm:num_requests_waiting_by_reason")
        ]
        assert sum(float(line.rpartition(" ")[2]) for line in reasons) == value(
            text, "vllm:num_requests_waiting"
        )
        async with real.http.post(f"{real.url}/v1/completions", json=body) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
            assert (await response.json())["error"]["code"] == "too_many_waiting"
        for chunks in await asyncio.gather(*running):
            assert chunks[-1] == b"data: [DONE]"


async def test_the_metrics_page_follows_the_engine(real: Real):
    for n in (1, 2):
        await real.openai.completions.create(
            model=real.assembly.info.model, prompt=[5, 6, 7], n=n, max_tokens=4, extra_body=GREEDY
        )
    await until(lambda: idle(real.assembly))
    text = await real.metrics()
    assert value(text, "vllm:prompt_tokens_total") == 9
    assert value(text, "vllm:generation_tokens_total") == 12
    assert value(text, "vllm:request_success_total", finished_reason="length") == 3
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert value(text, f"vllm:{name}_count") == 3
    assert value(text, "vllm:inter_token_latency_seconds_count") == 9
    assert value(text, "vllm:num_requests_running") == value(text, "arc:effective_batch") == 0
    assert value(text, "vllm:cache_config_info", block_size="8") == 1


async def test_many_streams_together(real: Real):
    """Each gets its own tokens: what it gets alone."""
    asks = [{"prompt": [10 + i] * (1 + i % 20), "max_tokens": 10} | GREEDY for i in range(24)]
    alone = [await real.stream(**ask) for ask in asks[:3]]
    together = await asyncio.gather(*(real.stream(**ask) for ask in asks))

    def text(chunks: list[Any]) -> str:
        return "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1])

    assert [text(chunks) for chunks in together[:3]] == [text(chunks) for chunks in alone]
    assert all(chunks[-1] == b"data: [DONE]" for chunks in together)


async def test_the_engine_stops_under_a_stream(tiny: Path, tmp_path: Path):
    """The client learns of it by an error event, and not by a cut connection."""
    async with serving(tiny, tmp_path) as real:
        reader, writer = await asyncio.open_connection(real.host, real.port)
        writer.write(post("/v1/completions", {"prompt": "a", "max_tokens": 400, "stream": True} | GREEDY))
        await reader.readuntil(b"data: ")
        real.assembly.engine.stop()
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert b'"error"' in rest
        assert b"the engine is stopping" in rest
        await until(lambda: not real.assembly.handle.health().ok)
        writer.write(post("/v1/completions", {"prompt": "a"}))
        status, _, body = await answer(reader)
        assert status == 503
        assert b"draining" in body
        async with real.http.get(f"{real.url}/health") as response:
            assert response.status == 503
        writer.close()


async def test_more_sequences_than_may_ever_wait_is_the_requests_own_fault(tiny: Path, tmp_path: Path):
    """429 with Retry-After would have a client ask for ever."""
    async with serving(tiny, tmp_path, sched__max_waiting=3) as real:
        body = {"prompt": [5, 6], "n": 4, "max_tokens": 2}
        async with real.http.post(f"{real.url}/v1/completions", json=body) as response:
            assert response.status == 400
            assert "Retry-After" not in response.headers
            assert "sched.max_waiting allows 3" in (await response.json())["error"]["message"]
        assert (
            real.assembly.handle.open_streams == 0
        )  # it never took a place in the queue, not even for a moment
        async with real.http.post(f"{real.url}/v1/completions", json=body | {"n": 3}) as response:
            assert response.status == 200
