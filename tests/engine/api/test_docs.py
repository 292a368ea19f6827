"""docs/api.md says what the API does: every field, code and metric stands there, under the right heading."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from arc.engine.api import bodies
from arc.engine.api.bodies import Ignored, Refused
from prometheus_client.parser import text_string_to_metric_families

from .test_metrics import busy, page

ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs" / "api.md").read_text()


def section(heading: str) -> str:
    """The text from a heading to the next of its level."""
    return DOC.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def paragraph(text: str, start: str) -> str:
    return next((part for part in text.split("\n\n") if part.startswith(start)), "")


SECTIONS = [
    ("Fields of both `/v1/completions` and `/v1/chat/completions`", bodies.Generation, ()),
    ("Fields of `/v1/completions`", bodies.CompletionBody, bodies.Generation.__struct_fields__),
    ("Fields of `/v1/chat/completions`", bodies.ChatBody, bodies.Generation.__struct_fields__),
    ("Fields of `/v1/chat/completions`", bodies.Message, ()),
    ("Fields of `/v1/chat/completions`", bodies.Part, ()),
    ("`/tokenize` and `/detokenize`", bodies.TokenizeBody, ()),
    ("`/tokenize` and `/detokenize`", bodies.DetokenizeBody, ()),
]


@pytest.mark.parametrize(("heading", "struct", "elsewhere"), SECTIONS)
def test_every_field_stands_where_it_belongs(
    heading: str, struct: type[msgspec.Struct], elsewhere: tuple[str, ...]
):
    text = section(heading)
    ignored, refused = paragraph(text, "Ignored:"), paragraph(text, "Refused unless")
    served = text.replace(ignored, "").replace(refused, "") if ignored or refused else text
    marks = bodies.marks(struct)
    for field in set(struct.__struct_fields__) - set(elsewhere):
        mark = marks.get(field)
        where = ignored if isinstance(mark, Ignored) else refused if isinstance(mark, Refused) else served
        assert f"`{field}`" in where or f"`{field}." in where or f".{field}`" in where, field


def test_no_field_is_made_up():
    known = {
        field
        for _, struct, _ in [*SECTIONS, ("", bodies.StreamOptions, ())]
        for field in struct.__struct_fields__
    }
    for heading in {heading for heading, _, _ in SECTIONS}:
        for row in re.findall(r"^\| (`[^|]*) \|", section(heading), re.MULTILINE):
            for field in re.findall(r"`([^`]+)`", row):
                assert set(field.split(".")) <= known, field


def test_every_error_code_stands_there():
    source = "".join(path.read_text() for path in (ROOT / "engine" / "api").glob("*.py"))
    codes = {
        *re.findall(r'code="([a-z_]+)"', source),
        *re.findall(
            r'"((?:invalid|unknown|unsupported|missing|no|too|context)_[a-z_]+)"\)?$', source, re.MULTILINE
        ),
        *re.findall(r', "((?:invalid|unknown|unsupported|missing|no|too|context)_[a-z_]+)"\)', source),
    }
    assert len(codes) >= 18
    described = section("Errors")
    assert sorted(code for code in codes if f"`{code}`" not in described) == []


def test_every_metric_stands_there():
    described = section("`/metrics`")
    for family in text_string_to_metric_families(page(busy())):
        if not family.name.startswith("process_"):
            assert re.search(rf"`{re.escape(family.name)}(_total)?[`{{]", described), family.name
    for name in re.findall(r"`((?:vllm|arc):\w+)", described):
        assert name in page(busy()), name
