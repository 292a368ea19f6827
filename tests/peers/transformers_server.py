"""transformers' generate behind HTTP: the simple baseline. It runs in the peer's own environment, as a script.

    python transformers_server.py MODEL PORT THREADS DTYPE

POST /generate {"prompt": [ids], "output": n} answers {"tokens": [ids]} when the batch it was in has ended. What
arrives while a batch runs makes the next one: a static batch, padded on the left, as long as its longest output.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from aiohttp import web

GATHER = 0.05  # seconds that a batch waits for company: requests that are sent together arrive together


@dataclass
class Waiting:
    prompt: list[int]
    output: int
    answer: asyncio.Future[list[int]]


def generate(model: Any, batch: list[Waiting]) -> list[list[int]]:
    longest = max(len(each.prompt) for each in batch)
    output = max(each.output for each in batch)
    padded = [[0] * (longest - len(each.prompt)) + each.prompt for each in batch]
    mask = [[0] * (longest - len(each.prompt)) + [1] * len(each.prompt) for each in batch]
    with torch.inference_mode():
        tokens = model.generate(
            torch.tensor(padded), attention_mask=torch.tensor(mask), do_sample=False, max_new_tokens=output,
            min_new_tokens=output, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    made = tokens[:, longest:].tolist()
    return [row[: each.output] for row, each in zip(made, batch, strict=True)]


async def serve(model: Any, queue: asyncio.Queue[Waiting]) -> None:
    while True:
        batch = [await queue.get()]
        await asyncio.sleep(GATHER)
        while not queue.empty():
            batch.append(queue.get_nowait())
        for each, tokens in zip(batch, await asyncio.to_thread(generate, model, batch), strict=True):
            each.answer.set_result(tokens)


def main() -> None:
    folder, port, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dtype = getattr(torch, sys.argv[4])
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    queue: asyncio.Queue[Waiting] = asyncio.Queue()

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        waiting = Waiting(body["prompt"], body["output"], asyncio.get_running_loop().create_future())
        await queue.put(waiting)
        return web.json_response({"tokens": await waiting.answer})

    async def healthy(_: web.Request) -> web.Response:
        return web.Response()

    async def start(app: web.Application) -> None:
        app["server"] = asyncio.create_task(serve(model, queue))

    app = web.Application()
    app.add_routes([web.post("/generate", answer), web.get("/health", healthy)])
    app.on_startup.append(start)
    web.run_app(app, host="127.0.0.1", port=port, print=lambda *_: None)


if __name__ == "__main__":
    main()
