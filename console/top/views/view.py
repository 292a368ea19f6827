"""What the app expects of a view. The base answers every key with nothing, so that a view says only what it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..lines import Line, fit
from ..scene import Scene
from ..table import Filter, Table


@dataclass(frozen=True, slots=True)
class Exported:
    """A view as a file: rows for CSV, or any JSON value."""

    name: str
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    value: Any = None


class View:
    """`lines` gives at most `height` lines; the rest is about keys."""

    name = ""
    short = ""
    hints: Sequence[tuple[str, str]] = ()  # for the footer: action and one word, most useful first

    def lines(self, scene: Scene, width: int, height: int) -> list[Line]:
        raise NotImplementedError

    def wants_sequences(self, width: int) -> bool:
        """Whether the view shows single sequences: they are asked for only then."""
        return False

    wants_spans = False  # whether the view shows spans: they are asked for only then

    def pin(self, scene: Scene) -> bool:
        """Keep this moment to compare with, or let the kept one go. False where there is nothing to keep."""
        return False

    def note(self) -> str:
        """What the view says of itself in the footer, such as the rows in sight."""
        return ""

    @property
    def table(self) -> Table[Any] | None:
        """The table under the cursor keys, if there is one."""
        return None

    @property
    def filter(self) -> Filter | None:
        return self.table.filter if self.table else None

    def step(self, by: int, width: int) -> None:
        """The keys `,` and `.`: the sort column of a table."""
        if self.table:
            self.table.move_sort(by, width)

    def click(self, x: int, y: int, width: int) -> None:
        """A mouse click; `y` counts from the view's first line."""

    def enter(self) -> str | None:
        """Drill: inside the view (None), or the name of the view to go to."""
        return None

    def back(self) -> bool:
        """Esc: whether there was something to back out of."""
        return False

    def maximise(self) -> bool:
        """Whether the view has a panel to give the whole place to."""
        return False

    def copied(self, scene: Scene) -> str:
        """What `y` copies; empty when there is nothing."""
        return ""

    def export(self, scene: Scene) -> Exported | None:
        return None


NO_REQUESTS = "a metrics page has totals, no single requests"


def not_on_a_page(why: str, width: int) -> list[Line]:
    """What a view shows that an engine's metrics page cannot feed."""
    lines: list[Line] = [[], [("  NA", "here"), (f"  {why}", "text")], []]
    return [fit(line, width) for line in lines]
