"""Who measures and what is measured, as far as each can be asked."""

from __future__ import annotations

import os
import platform
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from ...engine.control import protocol as p
from ...engine.control.protocol import NA
from ...engine.version import revision, version
from ..client import Client
from ..exits import Failure
from ..held_flags import flags_of
from .endpoint import Address
from .result import Provenance, Server

_TIMEOUT = 10.0


def client() -> Provenance:
    return Provenance(
        version=version(),
        revision=revision(),
        python=platform.python_version(),
        system=platform.platform(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str | None = None
    revision: str | None = None


def _ask(address: Address, path: str, key: str | None, answer: Any) -> Any:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(address.url + path, headers=headers)  # http or https, by Address
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as page:
        return msgspec.json.decode(page.read(), type=answer)


def served(address: Address, key: str | None, wanted: str | None) -> tuple[str, int | NA]:
    """The model to ask for and its context in tokens. Raises Failure when the endpoint does not say what it serves."""
    try:
        models = _ask(address, "/v1/models", key, _Models).data
    except urllib.error.HTTPError as error:
        hint = " (its key is read from ARC_API_KEY)" if error.code in (401, 403) else ""
        raise Failure(f"{address.url}/v1/models answered {error.code}{hint}") from None
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise Failure(f"no OpenAI endpoint answers at {address.url}/v1/models: {error}") from None
    names = [model.id for model in models]
    if wanted is None and len(models) != 1:
        raise Failure(
            f"{address.url} serves {len(models)} models, choose one with --model: {', '.join(names)}"
        )
    for model in models:
        if wanted in (None, model.id):
            context = model.max_model_len
            return model.id, NA("/v1/models has no max_model_len") if context is None else context
    raise Failure(f"{address.url} does not serve {wanted}; it serves {', '.join(names)}")


def over_http(address: Address, key: str | None, model: str, context: int | NA) -> Server:
    """Of an endpoint whose control socket is not known."""
    unknown = NA("asked over HTTP alone: --engine names an arc engine's control socket")
    try:
        found = _ask(address, "/version", key, _Version)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        found = _Version()
        no_version = NA(f"GET /version: {error}")
    else:
        no_version = NA("GET /version does not say")
    return Server(
        url=address.url, model=model, version=found.version or no_version, revision=found.revision or no_version,
        dirty=found.revision.endswith("-dirty") if found.revision else no_version,
        name=unknown, pid=unknown, device=unknown, dtype=unknown, parameters=unknown, max_model_len=context,
        page_size=unknown, pages=unknown, profile=unknown, differs=None,
    )  # fmt: skip


def over_control(control: Client, address: Address, model: str) -> Server:
    """Of an arc engine, by its control socket."""
    hello = control.get("/v1/hello", p.Hello)
    return Server(
        url=address.url, model=model, version=hello.version, revision=hello.revision,
        dirty=hello.revision.endswith("-dirty"), name=hello.name, pid=hello.pid, device=hello.device,
        dtype=hello.dtype, parameters=hello.parameters, max_model_len=hello.max_model_len,
        page_size=hello.page_size, pages=hello.pages, profile=hello.profile,
        differs={name: flag.value for name, flag in flags_of(control).items() if flag.changed},
    )  # fmt: skip


def url_of(control: Client) -> str:
    """Where an engine's HTTP API listens, by its flags. Raises Failure where they do not say."""
    flags = flags_of(control)
    host, port = flags["http.host"].value, flags["http.port"].value
    if port == 0:
        raise Failure(
            "the engine took a free port (http.port = 0) and only its start-up line says which: give --url"
        )
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(host), str(host))
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
