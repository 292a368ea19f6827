"""The generated OpenAPI document, and everything that it allows and forbids thrown at the socket."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import schemathesis
from arc.engine.control.endpoints import ENDPOINTS, Match, match, openapi
from arc.engine.control.messages_doc import Message, messages, page
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from .conftest import Running
from .wire import Wire

DOCUMENT = json.loads(msgspec.json.encode(openapi("0")))
LOADED = schemathesis.openapi.from_dict(DOCUMENT)
ASKABLE = [each for each in ENDPOINTS if not each.stream]

thrown = settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
    ],
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from arc.engine.control.listening import Listening
    from arc.engine.control.protocol import NA
    from arc.engine.control.server import ControlServer

    from .simulated import SimulatedEngine

    with pytest.MonkeyPatch.context() as patch:
        base = tmp_path_factory.mktemp("a")
        patch.setenv("XDG_RUNTIME_DIR", str(base / "run"))
        patch.setenv("XDG_STATE_HOME", str(base / "state"))
        listening = Listening("sim")
        engine = SimulatedEngine("sim")
        server = ControlServer(engine, listening, NA("off in this test"))
        engine.start()
        server.start()
        yield Running(engine, server, listening.path)
        server.stop()
        engine.stop()


def reply(running: Running, method: str, path: str, query: Any, body: Any) -> tuple[int, Any]:
    target = urllib.parse.quote(path) + ("?" + urllib.parse.urlencode(query, doseq=True) if query else "")
    encoded = (
        None
        if body is None
        else body
        if isinstance(body, bytes)
        else json.dumps(body).encode("utf-8", "replace")
    )
    wire = Wire(running.path)
    try:
        return wire.ask(method, target, encoded)
    finally:
        wire.close()


def conforms(endpoint: Any, status: int, answer: Any) -> None:
    """The answer is one that the document declares for this endpoint, and of the declared form."""
    declared = DOCUMENT["paths"][endpoint.path][endpoint.method.lower()]["responses"]
    assert str(status) in declared, f"{status} is not declared: {answer}"
    assert status != 500, answer
    _validator(json.dumps(declared[str(status)]["content"]["application/json"]["schema"])).validate(answer)
    if status != 200:
        assert answer["message"] and answer["error"]


@cache
def _validator(schema: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**json.loads(schema), "components": DOCUMENT["components"]})


def intact(running: Running) -> None:
    """The engine still serves: it finishes a request, and its flags are valid ones."""
    reply(running, "POST", "/v1/actions/resume", None, {})
    done = len(running.engine.finished)
    running.engine.submit(2)
    assert running.engine.wait_finished(done + 1)


@pytest.mark.parametrize("endpoint", ASKABLE, ids=lambda each: f"{each.method} {each.path}")
@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "forbidden"]
)
def test_whatever_is_thrown_is_answered_as_declared(
    engine: Running, endpoint: Any, mode: GenerationMode
) -> None:
    operation = LOADED[endpoint.path][endpoint.method]
    has_negative = (
        endpoint.body is not None or DOCUMENT["paths"][endpoint.path][endpoint.method.lower()]["parameters"]
    )
    if mode is GenerationMode.NEGATIVE and not has_negative:
        return

    @thrown
    @given(case=operation.as_strategy(generation_mode=mode))
    def throw(case: Any) -> None:
        body = None if type(case.body).__name__ == "NotSet" else case.body
        status, answer = reply(engine, endpoint.method, case.formatted_path, case.query, body)
        if isinstance(match(endpoint.method, case.formatted_path), Match):
            conforms(endpoint, status, answer)
        else:
            assert status in (404, 405)

    throw()
    intact(engine)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["changes", "reason", "ttl", "expect_version", "dry_run", "ids", "all", "text", "deadline"]
)
FLAG_NAMES = st.sampled_from(
    ["sched.max_running", "sched.paused", "sched.order", "cache.page_cap", "model.path", "x"]
)
ODD_BODIES = JSON | st.dictionaries(NAMES, JSON | st.dictionaries(FLAG_NAMES, JSON), max_size=4)


@thrown
@given(endpoint=st.sampled_from([each for each in ASKABLE if each.body]), body=ODD_BODIES)
def test_any_json_is_answered(engine: Running, endpoint: Any, body: Any) -> None:
    status, answer = reply(engine, endpoint.method, endpoint.path, None, body)
    conforms(endpoint, status, answer)


@settings(thrown, max_examples=100)
@given(raw=st.binary(max_size=300), method=st.sampled_from(["PATCH", "POST"]))
def test_any_bytes_are_answered(engine: Running, raw: bytes, method: str) -> None:
    path = "/v1/flags" if method == "PATCH" else "/v1/actions/mark"
    status, answer = reply(engine, method, path, None, raw)
    assert status == 400 and answer["hint"]


def test_the_document_is_openapi_and_complete(running: Running) -> None:
    assert running.connect().get("/v1/schema")["paths"] == DOCUMENT["paths"]
    for endpoint in ENDPOINTS:
        assert DOCUMENT["paths"][endpoint.path][endpoint.method.lower()]["x-role"] == endpoint.role
    references = [value for value in _walk(DOCUMENT) if value.startswith("#/")]
    assert references
    for reference in references:
        node: Any = DOCUMENT
        for part in reference[2:].split("/"):
            node = node[part]


def _walk(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from _walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from _walk(value)


def test_the_page_of_messages_is_up_to_date() -> None:
    committed = (Path(__file__).parents[3] / "docs" / "control-messages.md").read_text(encoding="utf-8")
    assert committed == page(), "run `make docs`"


def test_every_message_and_field_is_on_the_page() -> None:
    documented = {message.name: message for message in messages()}
    for name, schema in DOCUMENT["components"]["schemas"].items():
        if name == "NoQuery":
            continue
        message: Message | None = documented[name]
        assert message is not None and message.text, name
        fields: set[str] = set()
        while message is not None:
            fields |= {field.name for field in message.fields}
            message = documented[message.base] if message.base else None
        assert set(schema.get("properties", {})) == fields
