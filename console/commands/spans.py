"""`arc spans`: where a step's time goes."""

from __future__ import annotations

import click
import msgspec

from ...engine.control import span_messages as s
from ...engine.control.protocol import NA
from .. import shown
from ..client import Client, connect
from ..engine_option import engine_option, json_option, print_json
from ..exits import Failure
from ..parameters import FiniteRange
from ..span_tree import SORT_KEYS, Node, Number, SortKey, arranged, build_line, nodes, proof_line


@click.command()
@engine_option
@json_option
@click.option(
    "--window", default=10.0, show_default=True, type=FiniteRange(1, 900), help="Seconds to look at."
)
@click.option("--sort", "key", default="tree", show_default=True, type=click.Choice(SORT_KEYS),
              help="Spans of one parent by this, largest first.")  # fmt: skip
@click.option(
    "--fit", is_flag=True, help="The law of a decode step: what it costs at once, and for each row."
)
def spans(engine: str | None, as_json: bool, window: float, key: SortKey, fit: bool) -> None:
    """Show where the time of a step goes: calls, wall, device, sync and host time of each span.

    It is recorded while profile.enabled is on: `arc set profile.enabled=on`, and `profile.detail` says how deep.
    """
    with connect(engine) as client:
        raw = client.raw("GET", "/v1/spans", query={"window": window})
        if as_json:
            print_json(raw)
            return
        report = read(raw)
    for line in _fit(report) if fit else _tree(report, key):
        click.echo(line)


def read(raw: bytes) -> s.SpanReport:
    """The report; Failure where the engine has none."""
    answer = msgspec.json.decode(raw)
    if "na" in answer:
        raise Failure(answer["na"])
    return msgspec.convert(answer, s.SpanReport)


def ask(client: Client, window: float) -> s.SpanReport:
    return read(client.raw("GET", "/v1/spans", query={"window": window}))


def _head(report: s.SpanReport) -> list[str]:
    state = "" if report.on else "   profiling is off: these are steps of before"
    return [
        build_line(report.build),
        f"last {shown.seconds(report.seconds)}   detail {report.detail}{state}",
        proof_line(report.proof),
    ]


def _tree(report: s.SpanReport, key: SortKey) -> list[str]:
    lines = _head(report)
    if not report.kinds:
        return [*lines, "", "no step was recorded in this time"]
    steps = sum(kind.steps for kind in report.kinds)
    lines.append(f"the profiler itself took {_ms(report.own / steps)} ms a step beside these")
    for kind in report.kinds:
        lines += ["", _kind_line(kind)]
        rows = [_row(node) for node in arranged(nodes(kind, report), key)]
        head = ("span", "calls", "wall ms", "device ms", "sync ms", "host self ms", "share %")
        lines += shown.table(head, rows, frozenset(range(1, len(head))))
    return [*lines, *_missing(report)]


def _kind_line(kind: s.KindSpans) -> str:
    rows, tokens = kind.rows / kind.steps, kind.tokens / kind.steps
    return f"{kind.kind}: {kind.steps:,} steps of {rows:.1f} rows and {tokens:.1f} tokens; figures are for one step"


def _row(node: Node) -> tuple[str, ...]:
    return (
        "  " * node.depth + shown.plain(node.name),
        f"{node.calls:,.4g}",
        _ms(node.wall),
        _ms(node.device),
        _ms(node.sync),
        _ms(node.host_self),
        f"{100 * node.share:.1f}",
    )


def _ms(seconds: Number) -> str:
    return "NA" if isinstance(seconds, NA) else f"{1000 * seconds:,.3f}"


def _missing(report: s.SpanReport) -> list[str]:
    """Why a column or a span is not there, each reason once."""
    rows = [row for kind in report.kinds for row in kind.spans]
    reasons: dict[str, str] = {}
    for name, numbers in (("device", [row.device for row in rows]), ("sync", [row.sync for row in rows])):
        for each in numbers:
            if isinstance(each, NA):
                reasons[f"{name}: {each.na}"] = ""
    if report.detail == "op":
        for name, why in report.not_timed.items():
            reasons[why] = ", ".join(filter(None, (reasons.get(why), name)))
    lines = [f"NA  {f'{names}: ' if names else ''}{why}" for why, names in reasons.items()]
    return ["", *lines] if lines else []


def _fit(report: s.SpanReport) -> list[str]:
    lines, law = _head(report), report.law
    if law is None:
        return [*lines, "", f"no law: {report.no_law.na if report.no_law else 'not known'}"]
    lines += [
        "",
        f"a decode step = {_pm(law.base, law.base_error)} ms + {_pm(law.per_row, law.per_row_error)} ms x rows",
        f"least squares over {law.steps:,} steps of {law.rows:.1f} rows on average; standard errors; r2 {law.r2:.3f}",
        "",
    ]
    step = law.per_row
    rows = [
        (
            "  " * each.path.count("/") + shown.plain(each.path.rpartition("/")[2]),
            f"{1000 * each.per_row:+,.4f}",
            f"{1000 * each.per_row_error:,.4f}",
            f"{100 * each.per_row / step:.1f}" if step else "--",
        )
        for each in law.spans
    ]
    head = ("one more row adds to", "ms", "+-", "share %")
    return [*lines, *shown.table(head, rows, frozenset((1, 2, 3)))]


def _pm(value: float, error: float) -> str:
    return f"{1000 * value:,.3f} (+-{1000 * error:,.3f})"
