"""View 3: the tree of spans, over a report of a real engine and reports that are made."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from arc.console.top.lines import CURSOR, Line, text_of
from arc.console.top.scene import Scene
from arc.console.top.table import parse_filter
from arc.console.top.views.spans import Spans
from arc.engine.control import protocol as p
from arc.engine.control import span_messages as s
from arc.engine.profiler.sites import Detail

from tests.engine.profiler.simulated import Work, on_a_device

from .recorded import recorded, scene, span_report, texts, widths

SIZE = (120, 100)


def drawn(view: Spans, seen: Scene | None = None) -> list[str]:
    return texts(view.lines(seen or scene(), *SIZE))


def rows(view: Spans, seen: Scene | None = None) -> list[str]:
    """The names in sight, in order."""
    lines = drawn(view, seen)
    head = next(index for index, line in enumerate(lines) if "wall ms" in line)
    end = next(index for index, line in enumerate(lines) if line.startswith("────"))
    return [line[2:40].strip(" ▼▸") for line in lines[head + 1 : end] if line]


def put_cursor_on(view: Spans, path: str) -> None:
    drawn(view)
    table = view.table
    assert table is not None
    table.go(next(index for index, node in enumerate(table.shown) if node.path == path))


def changed(**spans: Callable[[s.SpanRow], s.SpanRow]) -> s.SpanReport:
    """The recorded report with some spans of its decode steps replaced, by name."""
    report = span_report()
    kinds = tuple(
        msgspec.structs.replace(
            kind, spans=tuple(spans[row.name](row) if row.name in spans else row for row in kind.spans)
        )
        if kind.kind == "decode"
        else kind
        for kind in report.kinds
    )
    return msgspec.structs.replace(report, kinds=kinds)


def longer(times: float) -> Callable[[s.SpanRow], s.SpanRow]:
    return lambda row: msgspec.structs.replace(row, wall=row.wall * times)


def test_decode_and_prompt_stand_apart_each_as_a_tree() -> None:
    names = rows(Spans())
    assert names[:5] == ["decode step", "scheduler.inbox", "scheduler.schedule", "decode", "pipeline.step"]
    assert names.index("decode step") < names.index("prompt step")
    assert names.index("mla_attn") < names.index("kv_down") < names.index("moe")


def test_the_head_has_the_proof_and_the_law_and_na_has_its_reason() -> None:
    lines = drawn(Spans())
    assert "proof PASS" in lines[0] and "self-test NA" in lines[0]
    assert "recording" in lines[1] and "op" in lines[1]
    assert "× rows" in lines[2] and "±" in lines[2]
    assert "device NA: cpu has no stream" in lines[-2]
    step = next(line for line in lines if "▼ decode step" in line)
    assert step.split().count("NA") == 2


def test_sorting_keeps_children_under_their_parent() -> None:
    view = Spans()
    view.step(2, SIZE[0])  # calls, then wall
    view.step(1, SIZE[0])
    names = rows(view)
    tree = rows(Spans())
    assert names != tree and sorted(names) == sorted(tree)
    attention = names.index("mla_attn")
    under = {"kv_down", "q_proj", "norm_rope", "cache_write", "absorb", "attend", "v_up", "o_proj"}
    assert set(names[attention + 1 : attention + 9]) == under
    assert names.index("pipeline.step") < names.index("model_forward") < names.index("batch.layout")


def test_folding_hides_what_is_under_and_esc_unfolds() -> None:
    view = Spans()
    before = rows(view)
    put_cursor_on(view, "step/decode/pipeline.step/model_forward/mla_attn")
    view.enter()
    folded = rows(view)
    assert len(before) - len(folded) == 8 and "mla_attn" in folded
    assert folded.count("kv_down") == before.count("kv_down") - 1, "that of the other kinds stays"
    assert view.back() and rows(view) == before
    assert not view.back()


def test_a_filter_finds_spans_in_folded_trees() -> None:
    view = Spans()
    put_cursor_on(view, "step")
    view.enter()
    assert "kv_down" not in rows(view)[: rows(view).index("prompt step")]
    table = view.table
    assert table is not None
    table.filter = parse_filter("kv_down$")
    assert rows(view) == ["kv_down"] * 3


def test_a_pinned_moment_is_compared_with_what_came_after() -> None:
    view = Spans()
    assert view.pin(scene())
    assert all(
        line.rstrip().endswith(("=", "█", "--")) or "=" in line for line in drawn(view) if "kv_down" in line
    )
    slower = changed(attend=longer(2.0), gate=longer(0.25))
    lines = drawn(view, scene(spans=slower, later=5.0))
    assert any("pinned 5.0 s ago" in line and "same build and flags" in line for line in lines)
    attend = next(line for line in lines if " attend " in line)
    gate = next(line for line in lines if " gate " in line)
    assert "+" in attend and "-" in gate
    other = msgspec.structs.replace(slower, build=msgspec.structs.replace(slower.build, revision="fedcba"))
    assert any("against: revision" in line and "fedcba" in line for line in drawn(view, scene(spans=other)))
    assert view.pin(scene())
    assert not any("pinned " in line and "ago" in line for line in drawn(view))


def test_there_is_nothing_to_pin_where_nothing_was_recorded() -> None:
    assert not Spans().pin(scene(spans=p.NA("off")))
    assert not Spans().pin(scene(spans=msgspec.structs.replace(span_report(), kinds=())))


def test_without_a_report_the_view_says_why_and_what_to_do() -> None:
    lines = drawn(Spans(), scene(spans=p.NA("nothing was recorded yet")))
    assert "nothing was recorded yet" in lines[1]
    assert any("profile.enabled" in line for line in lines)
    assert "asking the engine" in drawn(Spans(), scene(spans=None))[1]
    past = drawn(Spans(), scene(at=recorded().time - 30))
    assert "no past spans" in past[0]


def test_off_is_said_and_the_steps_of_before_stay() -> None:
    lines = drawn(Spans(), scene(spans=msgspec.structs.replace(span_report(), on=False)))
    assert "off" in lines[1] and any("decode step" in line for line in lines)


def test_a_failed_proof_is_red_and_names_what_is_wrong() -> None:
    report = span_report()
    proof = msgspec.structs.replace(report.proof, verdict="fail", failures=("7 x negative self",))
    (line, *_) = Spans().lines(scene(spans=msgspec.structs.replace(report, proof=proof)), 160, 40)
    assert line[0][1] == "bad" and "proof FAIL" in text_of(line) and "7 x negative self" in text_of(line)


def test_a_device_has_its_columns() -> None:
    bench = on_a_device().on(Detail.LAYER)
    bench.engine.run(*[Work()] * 20)
    bench.clock.pass_(10**9)
    lines = drawn(Spans(), scene(spans=bench.report()))
    attention = next(line for line in lines if "mla_attn" in line).split()
    assert "NA" not in attention[:6]
    assert "self-test pass" in lines[0] and "unresolved 0" in lines[0]
    publish = next(line for line in lines if "publish" in line).split()
    assert publish[3] == "NA", "a span of the host alone has no device time"


@pytest.mark.parametrize("width", [80, 97, 120, 200])
@pytest.mark.parametrize("milliseconds", [0.0, 0.0004, 3.2, 43_200.0, 9_999_999.0])
def test_no_number_is_clipped_however_long_a_step_is(width: int, milliseconds: float) -> None:
    report = span_report()
    per_step = report.kinds[0].steps * milliseconds / 1000
    huge = changed(**{
        row.name: lambda row: msgspec.structs.replace(row, wall=per_step, host_self=per_step)
        for row in report.kinds[0].spans
    })  # fmt: skip
    lines = Spans().lines(scene(spans=huge), width, 40)
    assert widths(lines) == {width}
    for line in lines[3:-4]:
        for text, _ in line:
            assert not text.rstrip().endswith("…") or any(letter.isalpha() for letter in text), text


def test_two_thousand_spans_cost_the_rows_in_sight() -> None:
    report = span_report()
    kind = report.kinds[0]
    root, leaf = kind.spans[0], kind.spans[1]
    many = (root, *(msgspec.structs.replace(leaf, path=f"step/s{n}", name=f"s{n}") for n in range(2000)))
    large = msgspec.structs.replace(report, kinds=(msgspec.structs.replace(kind, spans=many),))
    view, seen = Spans(), scene(spans=large)
    table = view.table
    assert table is not None
    lines: list[Line] = []
    for _ in range(10):
        lines = view.lines(seen, *SIZE)
        table.move(1)
    assert table.lines_made <= 10 * SIZE[1]
    assert len(table.shown) == 2001
    assert sum(line[0] == CURSOR for line in lines) == 1


def test_what_is_copied_and_exported() -> None:
    view = Spans()
    put_cursor_on(view, "step/publish")
    assert view.copied(scene()).startswith("decode step/publish ") and "ms a step" in view.copied(scene())
    exported = view.export(scene())
    assert exported is not None and exported.value is span_report()
    assert view.export(scene(spans=p.NA("off"))) is None


def test_a_click_chooses_a_row_and_sorts_by_a_head() -> None:
    view = Spans()
    lines = drawn(view)
    head = next(index for index, line in enumerate(lines) if "wall ms" in line)
    view.click(5, head + 3, SIZE[0])
    table = view.table
    assert table is not None and table.chosen is not None and table.chosen.name == "scheduler.schedule"
    view.click(lines[head].index("wall ms"), head, SIZE[0])
    assert table.sorted_by == 2
