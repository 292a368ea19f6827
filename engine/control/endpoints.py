"""What there is to ask, in one table: the server dispatches by it and the schema is generated from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from . import allocator_messages as a
from . import protocol as p
from . import span_messages as s

Method = Literal["GET", "PATCH", "POST", "DELETE"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`handler` is the name of the method of `Handlers`. GET never changes anything and a viewer may ask it."""

    method: Method
    path: str  # "/v1/flags/{name}": a part in braces matches one segment
    handler: str
    summary: str
    answer: type[msgspec.Struct] | None  # None: the OpenAPI document
    query: type[msgspec.Struct] = p.NoQuery
    body: type[msgspec.Struct] | None = None
    stream: bool = False
    or_na: bool = False  # or NA in its place: there is nothing to answer with, and why
    errors: tuple[int, ...] = ()  # beside those that every endpoint may give

    @property
    def role(self) -> p.Role:
        return "viewer" if self.method == "GET" else "operator"


EVERYWHERE = (400, 403, 404, 405, 408, 413, 500, 503)
_ON_ENGINE = (504,)  # no step border in time; 503 also when the engine thread has ended
_FLAGS = (409, 422, *_ON_ENGINE)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/hello", "hello", "Who answers, and what this connection may do", p.Hello),
    Endpoint("GET", "/v1/schema", "schema", "This interface as an OpenAPI document", None),
    Endpoint("GET", "/v1/snapshot", "snapshot", "Everything of one glance", p.Snapshot, p.SnapshotQuery),
    Endpoint("GET", "/v1/history", "history", "What came before", p.History, p.HistoryQuery),
    Endpoint("GET", "/v1/sequences", "sequences", "What runs and what waits, and why", p.Sequences, p.SequencesQuery),
    Endpoint("GET", "/v1/events", "events", "What happened", p.Events, p.EventsQuery),
    Endpoint("GET", "/v1/flags", "flags", "Every flag: value, source, bounds, reach, meaning", p.Flags),
    Endpoint("GET", "/v1/config", "config", "Effective values and all their layers", p.Config),
    Endpoint("GET", "/v1/kernels", "kernels", "Which backend runs each operation, and why others do not", p.Kernels),
    Endpoint("GET", "/v1/memory", "memory", "Memory by component", p.Memory),
    Endpoint("GET", "/v1/spans", "spans", "Where a step's time goes", s.SpanReport, s.SpansQuery, or_na=True),
    Endpoint("GET", "/v1/trace", "trace", "Single calls, for a timeline", s.Trace, s.TraceQuery, or_na=True),
    Endpoint("GET", "/v1/allocator", "allocator", "What the allocator holds", a.Allocator, a.AllocatorQuery),
    Endpoint("GET", "/v1/stream", "stream", "Snapshots and events as they come", None, p.StreamQuery, stream=True),
    Endpoint(
        "PATCH", "/v1/flags", "patch_flags", "Change flags: all or none", p.Applied, body=p.FlagsPatch, errors=_FLAGS
    ),
    Endpoint(
        "DELETE", "/v1/flags/{name}", "delete_flag", "Back to the layer below", p.Applied, p.DeleteQuery, errors=_FLAGS
    ),
    Endpoint(
        "POST", "/v1/actions/pause", "pause", "Admit nothing; what runs goes on", p.Applied,
        body=p.ReasonBody, errors=_FLAGS,
    ),
    Endpoint(
        "POST", "/v1/actions/resume", "resume", "Admit again", p.Applied, body=p.ReasonBody, errors=_FLAGS
    ),
    Endpoint(
        "POST", "/v1/actions/drain", "drain", "Take no new work, end the rest, stop", p.DrainStarted,
        body=p.DrainBody, errors=_ON_ENGINE,
    ),
    Endpoint(
        "POST", "/v1/actions/cancel", "cancel", "End sequences by id, or all", p.Cancelled,
        body=p.CancelBody, errors=_ON_ENGINE,
    ),
    Endpoint(
        "POST", "/v1/actions/flush", "flush", "Drop the prefix cache", p.Flushed, body=p.ReasonBody, errors=_ON_ENGINE
    ),
    Endpoint(
        "POST", "/v1/actions/trim", "trim", "Give free buffers back", p.Trimmed,
        body=p.ReasonBody, errors=(501, *_ON_ENGINE),
    ),
    Endpoint("POST", "/v1/actions/reset", "reset", "Begin the shown counters anew", p.CountersReset, body=p.ReasonBody),
    Endpoint("POST", "/v1/actions/mark", "mark", "A named line in the history", p.Marked, body=p.MarkBody),
    Endpoint("POST", "/v1/actions/dump", "dump", "Everything known, for a report", p.Dump, body=p.ReasonBody),
)  # fmt: skip

# the stream's events: name -> type of the data
STREAMED = {"snapshot": p.Snapshot, "event": p.Event, "gap": p.Gap, "heartbeat": p.Heartbeat, "bye": p.Bye}


@dataclass(frozen=True, slots=True)
class Match:
    endpoint: Endpoint
    parts: dict[str, str]


def match(method: str, path: str) -> Match | tuple[Method, ...]:
    """The endpoint, or the methods that the path does have: none when there is no such path."""
    segments = path.split("/")
    methods: list[Method] = []
    for endpoint in ENDPOINTS:
        parts = _parts(endpoint.path.split("/"), segments)
        if parts is None:
            continue
        if endpoint.method == method:
            return Match(endpoint, parts)
        methods.append(endpoint.method)
    return tuple(methods)


def _parts(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    parts: dict[str, str] = {}
    for wanted, given in zip(pattern, segments, strict=True):
        if wanted.startswith("{") and given:
            parts[wanted[1:-1]] = given
        elif wanted != given:
            return None
    return parts


def openapi(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the table above."""
    types = {endpoint.answer for endpoint in ENDPOINTS} | {endpoint.body for endpoint in ENDPOINTS}
    types |= {endpoint.query for endpoint in ENDPOINTS} | {p.Problem, p.NA, *STREAMED.values()}
    ordered = sorted((each for each in types if each is not None), key=lambda each: each.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    reference = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        operation = _operation(endpoint, reference, components)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "arc control socket",
            "version": version,
            "description": f"Protocol {p.PROTOCOL}, HTTP/1.1 over a unix socket. docs/control.md explains it.",
        },
        "servers": [{"url": "http://arc"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(
    endpoint: Endpoint, reference: dict[type[msgspec.Struct], dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    problem = {"application/json": {"schema": reference[p.Problem]}}
    if endpoint.stream:
        content: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
    elif endpoint.answer is None:
        content = {"application/json": {"schema": {"type": "object"}}}
    else:
        answer = reference[endpoint.answer]
        schema = {"anyOf": [answer, reference[p.NA]]} if endpoint.or_na else answer
        content = {"application/json": {"schema": schema}}
    responses: dict[str, Any] = {"200": {"description": endpoint.summary, "content": content}}
    for status in sorted({*EVERYWHERE, *endpoint.errors}):
        responses[str(status)] = {"description": "not done", "content": problem}
    operation: dict[str, Any] = {
        "operationId": endpoint.handler,
        "summary": endpoint.summary,
        "x-role": endpoint.role,
        "parameters": _parameters(endpoint, components),
        "responses": responses,
    }
    if endpoint.stream:
        operation["x-events"] = {name: reference[each] for name, each in STREAMED.items()}
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": bool(msgspec.structs.fields(endpoint.body)) and _has_required(endpoint.body),
            "content": {"application/json": {"schema": reference[endpoint.body]}},
        }
    return operation


def _parameters(endpoint: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    for segment in endpoint.path.split("/"):
        if segment.startswith("{"):
            parameters.append(
                {"name": segment[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
            )
    for name, schema in components[endpoint.query.__name__].get("properties", {}).items():
        parameters.append({"name": name, "in": "query", "required": False, "schema": schema})
    return parameters


def _has_required(body: type[msgspec.Struct]) -> bool:
    return any(field.required for field in msgspec.structs.fields(body))
