"""A served API over a scripted engine, on a real socket."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from arc.engine.api.app import create_app, create_runner
from arc.engine.model.generation import GenerationDefaults
from arc.engine.text.chat import ChatTemplate
from arc.engine.text.tokenizer import BYTE_OF_CHAR, Tokenizer
from openai import AsyncOpenAI
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as InnerTokenizer

from .scripted import ScriptedEngine

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' and loop.first %}"
    "{{ raise_exception('an assistant cannot speak first') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}{{ extra }}"
)


def make_tokenizer(folder: Path) -> Tokenizer:
    """Byte-level, one token a byte in byte order, then <bos> and <eos>: token ids are readable in a test."""
    inner = InnerTokenizer(models.BPE(vocab=BYTE_OF_CHAR, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("<bos>"), AddedToken("<eos>")])
    inner.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    inner.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


BOS, EOS = 256, 257
VOCAB = 258


def ids_of(text: str) -> list[int]:
    """The token ids of a text under the test tokenizer, without <bos>."""
    return list(text.encode())


@dataclass
class Served:
    """One API that listens, its engine, and clients for it."""

    engine: ScriptedEngine
    host: str
    port: int
    http: aiohttp.ClientSession
    openai: AsyncOpenAI
    runner: web.AppRunner

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        """Status and JSON of one POST."""
        async with self.http.post(self.url + path, json=body, **options) as response:
            return response.status, await response.json()


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def template() -> ChatTemplate:
    return ChatTemplate({"default": TEMPLATE}, {})


@pytest.fixture
def serve(tokenizer: Tokenizer, template: ChatTemplate) -> Serve:
    @asynccontextmanager
    async def start(
        engine: ScriptedEngine | None = None,
        *,
        small_buffers: bool = False,
        last_answers: float | None = None,
        **options: Any,
    ) -> AsyncIterator[Served]:
        engine = engine or ScriptedEngine()
        app = create_app(
            engine,
            options.pop("tokenizer", tokenizer),
            options.pop("template", template),
            options.pop("defaults", GenerationDefaults()),
            **{
                "api_key": None,
                "max_body_bytes": 1 << 20,
                "max_inflight": lambda: 1000,
                "config_revision": lambda: 7,
            }
            | options,
        )
        runner = create_runner(app, **({"last_answers": last_answers} if last_answers is not None else {}))
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        if small_buffers:  # so that a client which does not read is felt after kilobytes and not megabytes
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await web.SockSite(runner, listener).start()
        host, port = runner.addresses[0][:2]
        engine.start()
        key = options.get("api_key") or "none"
        client = AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key=key, max_retries=0)
        try:
            async with aiohttp.ClientSession() as http, client:
                yield Served(engine, host, port, http, client, runner)
        finally:
            await engine.stop()
            await runner.cleanup()
        assert not engine.live, "sequences were left running in the engine"

    return start
