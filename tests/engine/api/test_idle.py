"""Connections that ask nothing are ended; those that are served are not, however long it takes."""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web
from arc.engine.api.app import create_runner
from arc.engine.api.idle import IdleConnections


async def listening(idle: IdleConnections, seconds: float) -> tuple[web.AppRunner, int]:
    async def slow(_: web.Request) -> web.Response:
        await asyncio.sleep(seconds)
        return web.Response(text="served")

    app = web.Application(middlewares=[idle.middleware()])
    app.router.add_get("/", slow)
    runner = create_runner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, runner.addresses[0][1]


async def test_half_a_head_is_ended_and_a_long_answer_is_not():
    idle = IdleConnections(idle_seconds=0.2)
    runner, port = await listening(idle, 1.0)
    half_reader, half = await asyncio.open_connection("127.0.0.1", port)
    half.write(b"GET / HT")
    reader, whole = await asyncio.open_connection("127.0.0.1", port)
    whole.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert runner.server is not None
    sweeping = asyncio.create_task(idle.keep_sweeping(runner.server, every=0.05))
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):  # reset: ended as well
            assert await half_reader.read() == b""
        assert (await reader.read()).endswith(b"served")
    sweeping.cancel()
    half.close()
    whole.close()
    await runner.cleanup()


async def test_past_the_most_the_longest_idle_ones_go():
    idle = IdleConnections(most_idle=3)
    runner, port = await listening(idle, 0.0)
    server = runner.server
    assert server is not None
    clients = []
    for count in range(1, 9):
        clients.append(await asyncio.open_connection("127.0.0.1", port))
        async with asyncio.timeout(10):
            while len(server.connections) < min(count, 4):
                await asyncio.sleep(0.01)
        idle.sweep(server)
        async with asyncio.timeout(10):
            while len(server.connections) > 3:
                await asyncio.sleep(0.01)
    for _, writer in clients:
        writer.close()
    await runner.cleanup()
