"""The running process: the engine thread, the control server's thread, the API's event loop, and how they end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket

from aiohttp import web

from .accepting import AcceptTrouble
from .api.app import create_app, create_runner
from .api.idle import IdleConnections
from .control.commands import Actor, Cancel, Drain
from .control.listening import Listening
from .control.protocol import NA
from .control.server import ControlServer
from .core.assembly import Assembly

log = logging.getLogger("arc")

DRAIN_SECONDS = 30.0  # after SIGTERM or Ctrl-C, for the requests that run
_ANSWERS_SECONDS = 5.0  # for the last answers to reach their clients
_EXAMPLE = (
    '{"messages":[{"role":"user","content":"It was a fine morning, and"}],"max_tokens":120,"stream":true}'
)


class Service:
    def __init__(self, http: socket.socket, control: Listening, api_key: str | None) -> None:
        self._http = http
        self._control = control
        self._api_key = api_key
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._signals = 0
        self._idle = IdleConnections()

    def run(self, assembly: Assembly) -> int:
        """Serve until a drain has ended or the engine thread has. The process's exit code."""
        return asyncio.run(self._serve(assembly))

    def drained(self) -> None:
        """Called by the engine thread when a drain has come to its end."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ended.set)

    async def _serve(self, assembly: Assembly) -> int:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(AcceptTrouble(log))
        assembly.handle.attach(self._loop, on_ended=self._ended.set)
        # What is loaded by now stays for good. Frozen, the collector never walks it again: with torch in memory, a full
        # collection took 99 ms, in which no thread ran.
        gc.collect()
        gc.freeze()
        thread = assembly.start()
        recorder = assembly.recorder
        control = ControlServer(
            assembly.port,
            self._control,
            recorder if isinstance(recorder, NA) else str(recorder.path),
            self._base(),
        )
        control.start()
        runner = create_runner(self._app(assembly))
        await runner.setup()
        await web.SockSite(runner, self._http).start()
        assert runner.server is not None
        sweeper = asyncio.create_task(self._idle.keep_sweeping(runner.server))
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_signal, assembly)
        print(self._banner(assembly), flush=True)
        await self._ended.wait()
        sweeper.cancel()
        died = not thread.is_alive()
        await runner.cleanup()
        assembly.engine.stop()
        await asyncio.to_thread(thread.join, _ANSWERS_SECONDS)
        await asyncio.to_thread(control.stop)
        if not isinstance(recorder, NA):
            recorder.close()
        if died:
            log.error("the engine thread ended by itself: %s", assembly.handle.health().reason)
            return 1
        log.info("drained; bye")
        return 0

    def _app(self, assembly: Assembly) -> web.Application:
        port = assembly.port
        return create_app(
            assembly.handle,
            assembly.text.tokenizer,
            assembly.text.chat_template,
            assembly.text.defaults,
            api_key=self._api_key,
            max_body_bytes=port.settings.get_int("http.max_body_mib") << 20,
            max_inflight=lambda: port.settings.get_int("http.max_inflight"),
            config_revision=lambda: port.settings.version,
            idle=self._idle,
        )

    def _on_signal(self, assembly: Assembly) -> None:
        self._signals += 1
        actor = Actor(uid=os.getuid(), gid=os.getgid(), pid=os.getpid(), reason="signal")
        if self._signals == 1:
            open_streams = assembly.handle.open_streams
            log.info(
                "draining %d requests, at most %.0f s; once more to cancel them", open_streams, DRAIN_SECONDS
            )
            assembly.port.call(Drain(actor=actor, deadline=DRAIN_SECONDS))
        else:
            assembly.port.call(Cancel(actor=actor, ids=None))

    def _base(self) -> str:
        """Where the API is reached, without its version."""
        host, port = self._http.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def _banner(self, assembly: Assembly) -> str:
        info, base = assembly.info, self._base()
        key = ' -H "Authorization: Bearer $ARC_API_KEY"' if self._api_key is not None else ""
        lines = [
            f"arc {info.version} ({info.revision}) serves {info.model}: {info.model_type}, "
            f"{info.parameters / 1e6:,.1f} M parameters, {info.dtype} on {info.device}",
            f"  API      {base}/v1",
            f"  control  {self._control.path}",
        ]
        if assembly.text.tokenizer is None:
            lines.append("  no tokenizer.json in the model's folder: prompts and answers are token ids")
        else:
            json = "-H 'Content-Type: application/json'"
            lines.append(f"  try      curl -N {base}/v1/chat/completions{key} {json} -d '{_EXAMPLE}'")
        return "\n".join(lines)
