"""The spans of one kind of step as a tree: in the engine's order or sorted, siblings among each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from ..engine.control import span_messages as s
from ..engine.control.protocol import NA

SortKey = Literal["tree", "name", "calls", "wall", "self", "sync", "device", "joined"]
SORT_KEYS: tuple[SortKey, ...] = ("tree", "wall", "self", "device", "sync", "calls", "name")

Number = float | NA


@dataclass(frozen=True, slots=True)
class Node:
    """One span per step of its kind; times in seconds."""

    kind: s.Kind
    path: str
    name: str
    depth: int
    calls: float
    wall: float
    host_self: float
    sync: Number
    device: Number
    share: float  # of the step's wall, 0 to 1
    leaf: bool
    per_row: Number  # what one more sequence adds; decode steps alone

    @property
    def key(self) -> str:
        return f"{self.kind} {self.path}"


def nodes(kind: s.KindSpans, report: s.SpanReport) -> list[Node]:
    """In the order of the tree."""
    law = report.law
    step = kind.spans[0].wall
    marginal = {} if law is None or kind.kind != "decode" else {m.path: m.per_row for m in law.spans}
    missing = report.no_law or NA("the law is fitted over decode steps")
    return [
        Node(
            kind=kind.kind,
            path=row.path,
            name=row.name,
            depth=row.depth,
            calls=row.calls / kind.steps,
            wall=row.wall / kind.steps,
            host_self=row.host_self / kind.steps,
            sync=_each(row.sync, kind.steps),
            device=_each(row.device, kind.device_steps),
            share=row.wall / step if step else 0.0,
            leaf=index + 1 == len(kind.spans) or kind.spans[index + 1].depth <= row.depth,
            per_row=marginal.get(row.path, missing),
        )
        for index, row in enumerate(kind.spans)
    ]


def _each(total: Number, steps: int) -> Number:
    return total if isinstance(total, NA) else total / steps


_SORTS: dict[SortKey, Callable[[Node], tuple[int, float | str]]] = {
    "name": lambda node: (0, node.name),
    "calls": lambda node: (0, -node.calls),
    "wall": lambda node: (0, -node.wall),
    "self": lambda node: (0, -node.host_self),
    "sync": lambda node: _unknown_last(node.sync),
    "device": lambda node: _unknown_last(node.device),
}


def _unknown_last(number: Number) -> tuple[int, float]:
    return (1, 0.0) if isinstance(number, NA) else (0, -number)


def arranged(tree: Iterable[Node], key: SortKey, *, turned: bool = False) -> list[Node]:
    """Siblings by `key`, largest first, each followed by what is under it. `joined`: in the order in which they come,
    for nodes of two trees one after the other."""
    tree = list(tree)
    if key == "tree" and not turned:
        return tree
    under: dict[str, list[Node]] = {}
    for node in tree:
        under.setdefault(f"{node.kind} {node.path.rpartition('/')[0]}", []).append(node)
    ordered: list[Node] = []
    sort = _SORTS.get(key)

    def walk(siblings: list[Node]) -> None:
        if sort is not None:
            siblings = sorted(siblings, key=sort)
        for node in reversed(siblings) if turned else siblings:
            ordered.append(node)
            walk(under.get(node.key, []))

    for root in tree:
        if not root.depth:
            walk([root])
    return ordered


def build_line(build: s.Build) -> str:
    """What was measured, in one line."""
    flags = ", ".join(f"{name}={_shown(value)}" for name, value in build.flags.items())
    differ = f" with {flags}" if flags else ""
    return (
        f"arc {build.version} ({build.revision})  {build.model} {build.dtype} on {build.device}  "
        f"profile {build.profile}{differ}"
    )


def _shown(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def proof_line(proof: s.Proof, *, brief: bool = False) -> str:
    """Whether the numbers can be trusted, and what was looked at to know. `brief` leaves out why something is NA."""
    test = proof.self_test
    if test is None:
        tested = "NA" if brief or proof.no_self_test is None else f"NA ({proof.no_self_test.na})"
    else:
        tested = f"{'pass' if test.passed else 'FAIL'} {test.ratio:.1f}x"
    unresolved = proof.unresolved_device_spans
    facts = (
        {"pass": "proof PASS", "fail": "proof FAIL", "none": "proof --"}[proof.verdict],
        f"self-test {tested}",
        f"unresolved {'NA' if isinstance(unresolved, NA) else f'{unresolved:,}'}",
        f"misnested {proof.misnested_spans:,}",
        f"lost {proof.lost_spans:,}",
        f"violations {sum(proof.violations.values()):,}",
        *proof.failures,
    )
    return " · ".join(facts)
