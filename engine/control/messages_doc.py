"""docs/control-messages.md, written from the message types: `make docs` runs this, a test compares it.

The types' docstrings and the comments behind their fields are the documentation, so they are read from the source.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from dataclasses import dataclass
from types import ModuleType

from ..telemetry import records
from . import allocator_messages, protocol, span_messages
from .endpoints import ENDPOINTS, EVERYWHERE, STREAMED

_MODULES = (protocol, span_messages, allocator_messages)

_HEAD = f"""\
# Messages of the control socket

Written by `make docs` from the messages in engine/control; edit there. How to use them is in [control.md](control.md).
Protocol {protocol.PROTOCOL}. Times of day are Unix seconds, durations and ages seconds, memory bytes.
"""


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    annotation: str
    default: str | None
    comment: str


@dataclass(frozen=True, slots=True)
class Message:
    name: str
    text: str
    fields: tuple[Field, ...]
    base: str | None  # another message, whose fields come first


def messages() -> list[Message]:
    """The structs of each module in the order of the file, then the step record, which is telemetry's own."""
    structs = [each for module in _MODULES for each in _structs(module)]
    step_record = [each for each in _structs(records) if each.name == "StepRecord"]
    return [each for each in structs if each.name != "NoQuery"] + step_record


def _structs(module: ModuleType) -> list[Message]:
    source = inspect.getsource(module)
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    return [_message(node, comments) for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]


def _message(node: ast.ClassDef, comments: dict[int, str]) -> Message:
    fields: list[Field] = []
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            comment = comments.get(each.end_lineno or each.lineno, "")
            default = None if each.value is None else ast.unparse(each.value)
            fields.append(Field(each.target.id, ast.unparse(each.annotation), default, comment))
    base = ast.unparse(node.bases[0]) if node.bases else "msgspec.Struct"
    text = " ".join((ast.get_docstring(node) or "").split())
    return Message(node.name, text, tuple(fields), None if base == "msgspec.Struct" else base)


def page() -> str:
    """The whole page in Markdown."""
    parts = [_HEAD, "\n## Endpoints\n\n", *_endpoints(), "\n## Types\n"]
    for message in messages():
        parts.append(f"\n### {message.name}\n\n")
        if message.text:
            parts.append(f"{message.text}\n")
        if message.base:
            parts.append(f"\nAll of {message.base}, and:\n")
        if message.fields:
            parts.append("\n| field | type | meaning |\n|---|---|---|\n")
            parts += [_row(field) for field in message.fields]
    return "".join(parts)


def _endpoints() -> list[str]:
    everywhere = ", ".join(map(str, EVERYWHERE))
    lines = [
        f"Every answer that is not 200 is a [Problem](#problem). Each endpoint may answer {everywhere};\n"
        "what else it may is under `also`.\n\n",
        "| method | path | role | query | body | answer | also | what |\n|---|---|---|---|---|---|---|---|\n",
    ]
    for endpoint in ENDPOINTS:
        answer = _link(endpoint.answer) if endpoint.answer else "OpenAPI 3.1"
        if endpoint.or_na:
            answer += f" or {_link(protocol.NA)}"
        if endpoint.stream:
            answer = "events: " + ", ".join(f"`{name}` {_link(each)}" for name, each in STREAMED.items())
        cells = (
            endpoint.method,
            f"`{endpoint.path}`",
            endpoint.role,
            "" if endpoint.query is protocol.NoQuery else _link(endpoint.query),
            _link(endpoint.body) if endpoint.body else "",
            answer,
            ", ".join(map(str, endpoint.errors)),
            endpoint.summary,
        )
        lines.append("| " + " | ".join(cells) + " |\n")
    return lines


def _link(message: type) -> str:
    return f"[{message.__name__}](#{message.__name__.lower()})"


def _row(field: Field) -> str:
    annotation = field.annotation.replace("|", "\\|")
    default = "" if field.default is None else f" = {field.default}"
    return f"| `{field.name}` | `{annotation}{default}` | {field.comment} |\n"


if __name__ == "__main__":
    print(page(), end="")
