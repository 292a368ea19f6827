"""Chat templates, rendered as transformers renders them, and everything that a template may do wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from arc.engine.folder import CheckpointError
from arc.engine.text.chat import ChatTemplate, ChatTemplateError
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from ..peers.make_checkpoint import CHAT_TEMPLATE, byte_level_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

# In the style of DeepSeek-V3's: system prompts gathered into a namespace, tool calls told by `content is none`.
DEEPSEEK_STYLE = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(system='', after_tool=false) -%}
{%- for message in messages if message['role'] == 'system' -%}
    {%- set ns.system = ns.system + ('\\n\\n' if ns.system else '') + message['content'] -%}
{%- endfor -%}
{{ bos_token }}{{ ns.system }}
{%- for message in messages -%}
    {%- if message['role'] == 'user' -%}
        {%- set ns.after_tool = false -%}
        {{ '<|User|>' + message['content'] }}
    {%- elif message['role'] == 'assistant' and message['content'] is none -%}
        {%- for call in message['tool_calls'] -%}
            {{ '<|call|>' + call['function']['name'] + '\\n```json\\n' + call['function']['arguments'] + '\\n```' }}
        {%- endfor -%}
        {{ eos_token }}
    {%- elif message['role'] == 'assistant' -%}
        {%- set content = message['content'].split('</think>')[-1] -%}
        {{ ('' if ns.after_tool else '<|Assistant|>') + content + eos_token }}
    {%- elif message['role'] == 'tool' -%}
        {%- set ns.after_tool = true -%}
        {{ '<|output|>' + message['content'] }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not ns.after_tool -%}{{ '<|Assistant|>' }}{%- endif -%}
"""
CHATML_STYLE = """\
{%- if tools %}
    {{- '<|start|>system\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\\n' }}
    {%- endfor %}
    {{- '<|end|>\\n' }}
{%- endif %}
{% for message in messages %}
    {% if loop.index > 20 %}{% break %}{% endif %}
    <|start|>{{ message.role }}{{ '\\n' + message.content | trim }}
    {%- if message.role == 'assistant' %}{% generation %}{{ '<|end|>' }}{% endgeneration %}{% else %}<|end|>{% endif %}

{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\\n' }}
{%- endif %}
"""
STRICT_STYLE = """\
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate: ' ~ loop.index0) }}
{% endif %}
[{{ message.role | upper }}] {{ message.content }}{{ eos_token if loop.last else '' }}
{% endfor %}
{{ date | default('no date') }}{{ nothing }}
"""
TEMPLATES = {
    "deepseek": DEEPSEEK_STYLE,
    "chatml": CHATML_STYLE,
    "strict": STRICT_STYLE,
    "ours": CHAT_TEMPLATE,
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

USER = {"role": "user", "content": "What is <b>2 & 2</b>?\n"}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "turns": [
        USER,
        {"role": "assistant", "content": "<think>sum</think>Four."},
        {"role": "user", "content": " ok "},
    ],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "unicode": [{"role": "user", "content": "世界 \U0001f600 {{ 7 * 7 }} {% raw %}"}],
    "extra keys": [{"role": "user", "content": "a", "name": None, "tool_calls": None}],
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "<ü & 'é'>", "parameters": {}}}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, SPECIAL)


def reference(source: str) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(512), **SPECIAL)
    tokenizer.chat_template = source
    return tokenizer


def write(folder: Path, **config: Any) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL | config))
    return folder


# As transformers does


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("prompted", [True, False])
def test_prompts_are_those_of_transformers(name: str, chat: str, prompted: bool) -> None:
    source, messages = TEMPLATES[name], CHATS[chat]
    kwargs: dict[str, Any] = {"tools": TOOLS, "add_generation_prompt": prompted}
    try:
        expected = reference(source).apply_chat_template(messages, tokenize=False, date="today", **kwargs)
    except Exception as error:
        with pytest.raises(ChatTemplateError, match=str(error)):
            template(source).render(messages, variables={"date": "today"}, **kwargs)
        assert name == "strict"
        return
    assert template(source).render(messages, variables={"date": "today"}, **kwargs) == expected


@pytest.mark.parametrize("name", ["deepseek", "chatml", "ours"])
@pytest.mark.parametrize("content", ["The answer is", "The answer is  ", "a\n"])
def test_a_continued_message_is_that_of_transformers(name: str, content: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    expected = reference(TEMPLATES[name]).apply_chat_template(
        messages, tokenize=False, continue_final_message=True
    )
    rendered = template(TEMPLATES[name]).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert rendered == expected
    assert rendered.rstrip().endswith(content.rstrip())


def test_tool_calls_without_content() -> None:
    """transformers drops the key, so that DeepSeek's own templates lose the calls; here None stays None."""
    call = {"function": {"name": "weather", "arguments": '{"city": "Bath"}'}}
    messages = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "no"},
    ]
    assert template(DEEPSEEK_STYLE).render(messages) == (
        '<s><|User|>Rain?<|call|>weather\n```json\n{"city": "Bath"}\n```</s><|output|>no'
    )


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    rendered = template(DEEPSEEK_STYLE).render([{"role": "user", "content": parts}])
    assert rendered == "<s><|User|>a\nb<|Assistant|>"
    for part in ({"type": "image_url", "image_url": {"url": "x"}}, {"type": "text"}, "a", {}):
        with pytest.raises(ChatTemplateError, match="only text is served"):
            template(DEEPSEEK_STYLE).render([{"role": "user", "content": [part]}])


def test_rendering_leaves_the_messages_alone() -> None:
    messages = [USER, {"role": "assistant", "content": [{"type": "text", "text": "a"}], "name": None}]
    before = json.dumps(messages)
    template(CHATML_STYLE).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert json.dumps(messages) == before


@given(content=st.text())
@settings(deadline=None, max_examples=50)
def test_content_is_never_code(content: str) -> None:
    rendered = template("{{ messages[0].content }}").render([{"role": "user", "content": content}])
    assert rendered == content


# Where a template is found


def test_no_template(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None
    assert ChatTemplate.load(write(tmp_path)) is None


def test_the_jinja_file_comes_first(tmp_path: Path) -> None:
    loaded = ChatTemplate.load(write(tmp_path, chat_template="config {{ bos_token }}"))
    assert loaded is not None
    assert loaded.render([USER]) == "config <s>"
    (tmp_path / "chat_template.jinja").write_text("file {{ eos_token }} ü", encoding="utf-8")
    loaded = ChatTemplate.load(tmp_path)
    assert loaded is not None
    assert loaded.render([USER]) == "file </s> ü"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    loaded = ChatTemplate.load(write(tmp_path, chat_template=named))
    assert loaded is not None
    assert loaded.render([USER]) == "plain"
    assert loaded.render([USER], tools=[]) == "plain"
    assert loaded.render([USER], tools=TOOLS) == "tools"


@pytest.mark.parametrize(
    "value", [3, [], [3], [{"name": "rag", "template": "a"}], [{"name": "default"}], {"a": "b"}]
)
def test_a_bad_template_entry_is_named(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match="chat_template is"):
        ChatTemplate.load(write(tmp_path, chat_template=value))


def test_an_unreadable_template_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja cannot be read"):
        ChatTemplate.load(tmp_path)


def test_special_tokens_as_objects_and_overrides(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<bos>"},
        "pad_token": None,
        "chat_template": "{{ bos_token }}{{ pad_token }}",
    }
    loaded = ChatTemplate.load(write(tmp_path, **config))
    assert loaded is not None
    assert loaded.render([USER]) == "<bos>"
    assert loaded.render([USER], variables={"bos_token": "x"}) == "x"


# What may go wrong

FAILING = {
    "its own refusal": ("{{ raise_exception('no tools here') }}", "refuses these messages: no tools here"),
    "undefined attribute": ("{{ messages[0].no.such }}", "no"),
    "undefined call": ("{{ no_such() }}", "no_such"),
    "wrong types": ("{{ 'a' + 1 }}", "TypeError"),
    "division": ("{{ 1 / 0 }}", "ZeroDivisionError"),
    "huge range": ("{% for i in range(10 ** 12) %}x{% endfor %}", "[Rr]ange"),
    "endless output": (
        "{% for i in range(90000) %}{% for j in range(90000) %}{{ 'x' * 10000 }}{% endfor %}{% endfor %}",
        "more than",
    ),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "internals": ("{{ ''.__class__.__mro__ }}", "unsafe|forbids"),
    "code": ("{{ raise_exception.__globals__['json'] }}", "unsafe|forbids"),
    "a changed message": ("{{ messages.append(1) }}", "unsafe|forbids"),
    "a file": ("{% include '/etc/passwd' %}", "fails|loader"),
    "not JSON": ("{{ raise_exception | tojson }}", "TypeError"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_failing_template_gives_one_error(case: str) -> None:
    source, match = FAILING[case]
    with pytest.raises(ChatTemplateError, match=match):
        template(source).render([USER])


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ a", "{% endfor %}", "\n\n{% nope %}", "{{ a | nope }}", "{% generation %}a"]
)
def test_a_syntax_error_is_refused_at_load(tmp_path: Path, source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"'default' has an error in line \d"):
        ChatTemplate.load(write(tmp_path, chat_template=source))


def test_bad_requests_are_refused() -> None:
    chat = template(CHAT_TEMPLATE)
    with pytest.raises(ChatTemplateError, match="at least one message"):
        chat.render([])
    with pytest.raises(ChatTemplateError, match="excludes"):
        chat.render([USER], continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="cannot be named messages"):
        chat.render([USER], variables={"messages": []})
    with pytest.raises(ChatTemplateError, match="content to continue"):
        chat.render([{"role": "assistant"}], add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="cannot be continued"):
        template("fixed").render([USER], add_generation_prompt=False, continue_final_message=True)


def test_the_sandbox_shows_no_internals() -> None:
    source = "{{ raise_exception.__globals__ }}{{ '{0.__class__}'.format(1) }}{{ messages.__class__ }}"
    assert template(source).render([USER]) == ""


def test_the_clock() -> None:
    assert len(template("{{ strftime_now('%Y-%m-%d') }}").render([USER])) == 10
