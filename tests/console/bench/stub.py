"""An OpenAI endpoint that does what a test tells it, byte by byte, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Any]  # a coroutine function of body and writer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def text(content: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": content, "finish_reason": None}], "usage": None}


def usage(prompt: int, tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}}


def refuse(status: int, body: str, *headers: str) -> Answer:
    async def answer(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} No", f"Content-Length: {len(body)}", *headers, "", body]
        writer.write("\r\n".join(lines).encode())

    return answer


async def plain(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """As many tokens as were asked for, at once."""
    writer.write(HEAD)
    for _ in range(body["max_tokens"]):
        writer.write(chunk(event(text("a"))))
    writer.write(chunk(event(usage(len(body.get("prompt", "")), body["max_tokens"]))))
    writer.write(chunk(event(b"[DONE]")) + chunk(b""))


class Stub:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[bytes] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /v1/models"):
                content = b'{"data": [{"id": "stub", "max_model_len": 4096}]}'
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
            elif head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            else:
                self.heads.append(head)
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                self.bodies.append(body)
                await self.answer(body, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(stub: Stub) -> AsyncIterator[None]:
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0, limit=1 << 24)
    stub.port = server.sockets[0].getsockname()[1]
    async with server:
        yield


@contextmanager
def stub(answer: Answer = plain) -> Iterator[Stub]:
    """Serves in a thread until the block ends."""
    made = Stub(answer)
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with listening(made):
            ready.set()
            await stop.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        assert not thread.is_alive()
        loop.close()
