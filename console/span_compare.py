"""Two span reports against each other: one step of each, span by span, and whether the two may be compared at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..engine.control import span_messages as s
from .exits import Failure
from .span_tree import Node, arranged, nodes

_KINDS: tuple[s.Kind, ...] = ("decode", "prompt", "mixed")


@dataclass(frozen=True, slots=True)
class Pair:
    """The same span in both; None where one of them has none."""

    before: Node | None
    after: Node | None

    @property
    def node(self) -> Node:
        node = self.after or self.before
        assert node is not None
        return node

    @property
    def difference(self) -> float | None:
        """Seconds a step that `after` takes more."""
        if self.before is None or self.after is None:
            return None
        return self.after.wall - self.before.wall

    @property
    def ratio(self) -> float | None:
        if self.before is None or self.after is None or not self.before.wall:
            return None
        return self.after.wall / self.before.wall


def pairs(before: s.SpanReport, after: s.SpanReport) -> dict[s.Kind, list[Pair]]:
    """By kind of step, as one tree: of siblings, those of `after` come first."""
    found: dict[s.Kind, list[Pair]] = {}
    old, new = _by_kind(before), _by_kind(after)
    for kind in _KINDS:
        left, right = old.get(kind, {}), new.get(kind, {})
        if left or right:
            union = [*right.values(), *(node for path, node in left.items() if path not in right)]
            found[kind] = [Pair(left.get(n.path), right.get(n.path)) for n in arranged(union, "joined")]
    return found


def _by_kind(report: s.SpanReport) -> dict[s.Kind, dict[str, Node]]:
    return {kind.kind: {node.path: node for node in nodes(kind, report)} for kind in report.kinds}


def differences(before: s.Build, after: s.Build) -> list[str]:
    """In what the two builds are not the same: "revision abc against def"."""
    found = [
        f"{name} {_plain(getattr(before, name))} against {_plain(getattr(after, name))}"
        for name in ("version", "revision", "model", "dtype", "device", "profile")
        if getattr(before, name) != getattr(after, name)
    ]
    for name in sorted({*before.flags, *after.flags}):
        old, new = before.flags.get(name, "the profile's"), after.flags.get(name, "the profile's")
        if old != new:
            found.append(f"{name} {_plain(old)} against {_plain(new)}")
    return found


def _plain(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def read_report(path: Path) -> s.SpanReport:
    """The report in a file that `arc profile --out` or `arc spans --json` has written. Raises Failure."""
    try:
        content: Any = msgspec.json.decode(path.read_bytes())
        return msgspec.convert(_report_in(content), s.SpanReport)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise Failure(
            f"{path}: this is neither a trace of `arc profile --out` nor a report of `arc spans --json` ({error})"
        ) from None


def _report_in(content: Any) -> Any:
    return content["otherData"]["report"] if "traceEvents" in content else content
