"""The tree of spans: a node is a name under a parent, made when it is first met."""

from __future__ import annotations

ROOT = 0
ROOT_NAME = "step"


class Tree:
    """Nodes are numbered from 0, the step, a parent before its children. They are never taken away."""

    def __init__(self) -> None:
        self.names = [ROOT_NAME]
        self.parents = [-1]
        self._known: dict[tuple[int, str], int] = {}

    def __len__(self) -> int:
        return len(self.names)

    def node(self, parent: int, name: str) -> int:
        node = self._known.get((parent, name))
        if node is None:
            node = len(self.names)
            self.parents.append(parent)
            self.names.append(name)
            self._known[parent, name] = node
        return node

    def find(self, parent: int, name: str) -> int | None:
        return self._known.get((parent, name))

    def path(self, node: int) -> str:
        """step/decode/pipeline.step"""
        parts: list[str] = []
        while node >= 0:
            parts.append(self.names[node])
            node = self.parents[node]
        return "/".join(reversed(parts))

    def depth(self, node: int) -> int:
        depth = -1
        while node >= 0:
            node = self.parents[node]
            depth += 1
        return depth

    def in_order(self) -> list[int]:
        """All nodes, each followed by what is under it."""
        under: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            under.setdefault(parent, []).append(node)
        ordered: list[int] = []
        left = [ROOT]
        while left:
            node = left.pop()
            ordered.append(node)
            left.extend(reversed(under.get(node, ())))
        return ordered
