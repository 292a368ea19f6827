"""The engines that are compared: how each is started, asked, and read. All of them get token ids and give token ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from arc.console.bench.work import Job

from . import installs

HERE = Path(__file__).parent
# The KV cache and the longest sequence that the workloads need, and nothing reused between requests.
LONGEST = 2048
MOST_ROWS = 32


Dtype = Literal["bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: the body that asks for a job, and what reads one event or body of its answer.

    `count` gives how many tokens the engine says it made, where its events may leave some ids out; None: not said here.
    """

    path: str
    body: Callable[[Job], dict[str, Any]]
    tokens: Callable[[dict[str, Any]], list[int]]
    count: Callable[[dict[str, Any]], int | None] = lambda _event: None
    streams: bool = True


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    command: Callable[
        [Path, int, int, Dtype], list[str]
    ]  # model, port, threads, and what weights and KV are kept in
    asked: Asked
    ready: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)
    threads_variable: str | None = None  # where the number of threads goes into the environment
    rows: int = MOST_ROWS  # beyond this the engine is not asked: too slow to be worth the time
    batch_rows: bool = True  # mixed work of several rows as well


def _openai(job: Job) -> dict[str, Any]:
    return {
        "model": "bench", "prompt": list(job.prompt), "max_tokens": job.output, "temperature": 0, "ignore_eos": True,
        "stream": True, "return_token_ids": True,
    }  # fmt: skip


def _openai_tokens(event: dict[str, Any]) -> list[int]:
    return [token for choice in event["choices"] for token in choice.get("token_ids") or ()]


def _llama(job: Job) -> dict[str, Any]:
    return {
        "prompt": list(job.prompt), "n_predict": job.output, "temperature": 0, "ignore_eos": True, "stream": True,
        "return_tokens": True, "cache_prompt": False,
    }  # fmt: skip


def _llama_count(event: dict[str, Any]) -> int | None:
    """It holds back the ids of text that does not end in a whole character, and never sends those at the end."""
    return event["tokens_predicted"] if event.get("stop") else None


OPENAI = Asked("/v1/completions", _openai, _openai_tokens)


def _arc(model: Path, port: int, _threads: int, dtype: Dtype) -> list[str]:
    # As it ships: threads and kernels are the engine's own choice for the cores that it is given.
    flags = (
        f"http.port={port}", f"control.name=peers-{port}", "log.level=warning", "model.name=bench",
        f"model.dtype={dtype}", f"model.max_len={LONGEST}", f"sched.max_running={MOST_ROWS}", "cache.prefix=off",
    )  # fmt: skip
    command = [sys.executable, "-c", "from arc.console.main import main; main()", "serve"]
    command += ["--model", str(model)]
    return command + [part for flag in flags for part in ("--set", flag)]


def _vllm(model: Path, port: int, _threads: int, dtype: Dtype) -> list[str]:
    return [
        str(installs.vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--served-model-name", "bench", "--dtype", dtype, "--max-model-len", str(LONGEST),
        "--max-num-seqs", str(MOST_ROWS), "--no-enable-prefix-caching", "--port", str(port), "--host", "127.0.0.1",
    ]  # fmt: skip


def _llama_server(model: Path, port: int, threads: int, dtype: Dtype) -> list[str]:
    # Its KV cache is fp16 unless told otherwise.
    cache = ["--cache-type-k", "f32", "--cache-type-v", "f32"] if dtype == "float32" else []
    return [
        str(installs.llama_source() / "build" / "bin" / "llama-server"), "--model", str(gguf(model, dtype)),
        "--host", "127.0.0.1", "--port", str(port), "--threads", str(threads), "--threads-batch", str(threads),
        "--parallel", str(MOST_ROWS), "--ctx-size", str(MOST_ROWS * LONGEST), "--no-webui", *cache,
    ]  # fmt: skip


def _transformers(model: Path, port: int, threads: int, dtype: Dtype) -> list[str]:
    server = HERE / "transformers_server.py"
    return [str(installs.transformers_python()), str(server), str(model), str(port), str(threads), dtype]


def gguf(model: Path, dtype: Dtype) -> Path:
    """The checkpoint in llama.cpp's format, converted once, beside it."""
    kind = {"bfloat16": "bf16", "float32": "f32"}[dtype]
    file = model.with_suffix(f".{kind}.gguf")
    if not file.is_file():
        command = [
            str(installs.transformers_python()), str(HERE / "to_gguf.py"), str(installs.llama_source()),
            str(model), str(file), kind,
        ]  # fmt: skip
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            file.unlink(missing_ok=True)
            raise installs.InstallError(f"the conversion to GGUF failed:\n{done.stderr[-2000:]}")
    return file


_VLLM_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}

ENGINES = {
    engine.name: engine
    for engine in (
        Engine("arc", _arc, OPENAI),
        Engine(
            "vllm", _vllm, OPENAI, environment=_VLLM_ENVIRONMENT | {"VLLM_MLA_DISABLE": "1"},
            threads_variable="OMP_NUM_THREADS",
        ),
        Engine("vllm-mla", _vllm, OPENAI, environment=_VLLM_ENVIRONMENT, threads_variable="OMP_NUM_THREADS"),
        Engine(
            "llama-server", _llama_server,
            Asked("/completion", _llama, lambda event: event.get("tokens") or [], _llama_count),
        ),
        Engine(
            "transformers", _transformers,
            Asked(
                "/generate", lambda job: {"prompt": list(job.prompt), "output": job.output},
                lambda body: body["tokens"], streams=False,
            ),
            batch_rows=False,
        ),
    )
}  # fmt: skip


def environment(engine: Engine, threads: int, cores: tuple[int, ...]) -> dict[str, str]:
    own = {**os.environ, **engine.environment, "OMP_WAIT_POLICY": "PASSIVE"}
    if engine.threads_variable is not None:
        own[engine.threads_variable] = str(threads)
    if engine.name.startswith("vllm"):
        own["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in cores)
        own.pop("PYTHONPATH", None)
    return own


def decode(line: bytes) -> dict[str, Any] | None:
    """The event in one line of an event stream; None in a line that carries none."""
    if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
        return None
    return json.loads(line[6:])
