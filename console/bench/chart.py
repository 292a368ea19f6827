"""Curves of a result: in the terminal in braille dots, and as a PNG."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..exits import Failure
from ..top.lines import ascii_only, text_of
from ..top.plots import plot, top_of

_ROWS = 8
_AXIS = 8  # cells left of a plot


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. A None is a hole: that point was not measured."""

    name: str
    values: tuple[float | None, ...]
    line_only: bool = False  # in a picture: dashed and without marks, for what was computed and not measured


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over the same points. In text the first is drawn as a fill, the second as a line; a picture has all."""

    title: str
    x: str  # what the points are
    points: tuple[str, ...]
    series: tuple[Series, ...]
    y: str = ""
    bars: bool = False  # the points are arms beside each other, and nothing lies between two of them
    logarithmic: bool = False  # in a picture: the axis of what was measured


def lines(chart: Chart, width: int, *, ascii_text: bool = False) -> list[str]:
    """The chart as text, at most `width` cells wide."""
    per_cell = 1 if ascii_text else 2
    cells = max(1, (width - _AXIS) // len(chart.points))
    gap = per_cell if chart.bars and cells > 1 else 0
    dots = [_stretched(each.values, cells * per_cell, gap) for each in chart.series[:2]]
    top = top_of(*dots)
    drawn = plot(dots[0], dots[1] if len(dots) > 1 else None, _ROWS, top, ascii_dots=ascii_text)
    names = "   ".join(
        f"{how}: {each.name}" for how, each in zip(("fill", "line"), chart.series, strict=False)
    )
    said = [
        f"{chart.title}   {names}",
        *(_labelled(index, text_of(row), top) for index, row in enumerate(drawn)),
    ]
    said.append(" " * _AXIS + _below(chart.points, cells) + f"  {chart.x}")
    return [ascii_only(line) if ascii_text else line for line in said]


def _labelled(row: int, text: str, top: float) -> str:
    label = f"{top:g}" if row == 0 else "0" if row == _ROWS - 1 else ""
    return f"{label:>{_AXIS - 1}} {text}"


def _below(points: Sequence[str], cells: int) -> str:
    """The points' names, each under its place; those for which there is no room are left out."""
    line = ""
    for index, point in enumerate(points):
        start = index * cells
        if len(line) <= start:
            line = line.ljust(start) + point + " "
    return line.rstrip()


def _stretched(values: Sequence[float | None], times: int, gap: int) -> list[float | None]:
    return [value if place < times - gap else None for value in values for place in range(times)]


def require_matplotlib(path: Path) -> None:
    """Raises Failure that names the extra where matplotlib is missing. Looks without importing: that takes a second."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Failure(
            f"{path} needs matplotlib, which is not installed: pip install 'arc-console[bench]'; "
            "--plot without a file draws in the terminal"
        )


def png(charts: Sequence[Chart], path: Path, caption: str) -> None:
    """One picture, the charts below each other and under them `caption`: what was measured.

    Raises Failure where matplotlib is missing or the disk refuses.
    """
    require_matplotlib(path)
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]  # an extra

    figure = Figure(figsize=(8, 3.2 * len(charts) + 0.3), layout="constrained")
    figure.supxlabel(caption, fontsize=7, color="0.4", wrap=True)
    for chart, axes in zip(charts, figure.subplots(len(charts), 1, squeeze=False)[:, 0], strict=True):
        for series in chart.series:
            values = [math.nan if value is None else value for value in series.values]
            if chart.bars:
                axes.bar(range(len(values)), values, width=0.5, label=series.name)
            elif series.line_only:
                axes.plot(range(len(values)), values, linestyle="--", color="0.4", label=series.name)
            else:
                axes.plot(range(len(values)), values, marker="o", markersize=3, label=series.name)
        axes.set_xticks(range(len(chart.points)), chart.points)
        names = [series.name for series in chart.series]
        axes.set_title(chart.title if len(names) > 1 else f"{chart.title}: {names[0]}")
        axes.set_xlabel(chart.x)
        axes.set_ylabel(chart.y)
        axes.margins(y=0.1)  # room above the highest point
        if chart.logarithmic:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        if len(chart.series) > 2:
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
        elif len(chart.series) > 1:
            axes.legend()
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise Failure(f"{path} was not written: {error.strerror}") from None
