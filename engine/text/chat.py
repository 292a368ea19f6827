"""Chat messages to one prompt, by the template that a checkpoint carries.

A template is Jinja code from whoever published the checkpoint. It runs in Jinja's immutable sandbox, with the
names that transformers gives it, so that the same template gives the same prompt.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..folder import CheckpointError, JsonObject
from .tokenizer import read_config, special_token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from jinja2.parser import Parser

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
PROMPT_CHARS_MAX = 64 << 20  # no context is that long: a template that writes more has lost its way
# Marks where a continued message ends. The blank tells whether the template strips what it is given.
END = "\u2063END OF THE FINAL MESSAGE\u2063 "


class ChatTemplateError(Exception):
    """A chat cannot be rendered: the template refuses it, or fails. The message says which, and where."""


class GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks text for training; for serving it is only a block."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON. Jinja's own filter escapes <, >, & and ' for HTML, which is wrong in a prompt."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def environment() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return env


class ChatTemplate:
    """The compiled templates of one folder. Rendering holds no state: any thread may call it."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, object]) -> None:
        """`sources`: Jinja source by name, with a "default". Raises ChatTemplateError for a syntax error."""
        self.special_tokens = dict(special_tokens)
        env = environment()
        self.templates: dict[str, jinja2.Template] = {}
        for name, source in sources.items():
            try:
                self.templates[name] = env.from_string(source)
            except (jinja2.TemplateError, RecursionError) as error:
                raise ChatTemplateError(
                    f"the chat template {name!r} has an error{at_line(error)}: {error}"
                ) from error

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """The template of chat_template.jinja, or else of tokenizer_config.json; None when there is neither.

        Raises CheckpointError when a file is malformed, ChatTemplateError for a syntax error in a template.
        """
        config = read_config(folder)
        path = folder / "chat_template.jinja"
        if path.exists():
            try:
                sources = {"default": path.read_text(encoding="utf-8")}
            except (OSError, UnicodeDecodeError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}") from error
        else:
            sources = named_sources(config)
        return cls(sources, read_special_tokens(config)) if sources else None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. It holds the model's special tokens: encode it with add_special=False.

        messages: JSON objects with at least "role"; "content" is a string, a list of text parts, which are
            joined by newlines, or None.
        continue_final_message: the prompt ends within the last message, for the model to go on.
        variables: the client's own template variables, over the folder's special tokens.
        Raises ChatTemplateError with what the template says, or why it failed.
        """
        if not messages:
            raise ChatTemplateError("a chat needs at least one message")
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError("continue_final_message excludes add_generation_prompt")
        if taken := RESERVED & (variables or {}).keys():
            raise ChatTemplateError(f"template variables cannot be named {', '.join(sorted(taken))}")
        chat = [plain_message(message) for message in messages]
        if continue_final_message:
            chat[-1] = marked(chat[-1])
        prompt = self.run(
            "tool_use" if tools and "tool_use" in self.templates else "default",
            {
                **self.special_tokens,
                **(variables or {}),
                "messages": chat,
                "tools": tools,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            },
        )
        return cut_at_mark(prompt) if continue_final_message else prompt

    def run(self, name: str, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        try:
            for piece in self.templates[name].generate(variables):
                pieces.append(piece)
                length += len(piece)
                if length > PROMPT_CHARS_MAX:
                    raise ChatTemplateError(
                        f"the chat template writes more than {PROMPT_CHARS_MAX} characters"
                    )
        except ChatTemplateError:
            raise
        except jinja2.exceptions.SecurityError as error:
            raise ChatTemplateError(f"the chat template does what its sandbox forbids: {error}") from error
        except jinja2.TemplateError as error:  # what the template itself raises, and undefined values
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error
        except Exception as error:  # foreign code: whatever it does is its failure, not the server's
            raise ChatTemplateError(f"the chat template fails on these messages: {error!r}") from error
        return "".join(pieces)


def at_line(error: Exception) -> str:
    return f" in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""


def named_sources(config: JsonObject) -> dict[str, str]:
    """The templates of tokenizer_config.json: one string, or a list of {"name", "template"}."""
    value = config.values.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else []
    sources = {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    }
    if len(sources) != len(entries) or "default" not in sources:
        raise config.error(
            "chat_template", 'it must be a string, or a list of {"name", "template"} with one named "default"'
        )
    return sources


def read_special_tokens(config: JsonObject) -> dict[str, object]:
    tokens: dict[str, object] = {}
    for key in SPECIAL_TOKENS:
        token = special_token(config, key)
        if token is not None:
            tokens[key] = token
    return tokens


def plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as templates expect it: absent keys are absent, and the content is one string.

    `content` alone stays None: DeepSeek's templates tell a message of tool calls by `content is none`.
    """
    plain = {key: value for key, value in message.items() if value is not None or key == "content"}
    parts = plain.get("content")
    if isinstance(parts, list):
        plain["content"] = "\n".join(text_of(part) for part in parts)
    return plain


def text_of(part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise ChatTemplateError(f"a message's content holds a part of type {kind!r}; only text is served")


def marked(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        raise ChatTemplateError("continue_final_message needs a last message with content to continue")
    return message | {"content": content + END}


def cut_at_mark(prompt: str) -> str:
    before, mark, after = prompt.rpartition(END.rstrip())
    if not mark:
        raise ChatTemplateError(
            "the chat template changes the last message, which therefore cannot be continued"
        )
    return before if after.startswith(" ") else before.rstrip()
