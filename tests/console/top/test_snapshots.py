"""Each view in the real application as SVG, colours and all, at the three sizes: over recorded data and a fixed clock.

`python -m pytest tests/console/top/test_snapshots.py -n 0 --snapshot-update` writes them anew; look at them before they
are committed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .pictures import NAMES
from .recorded import SIZES
from .test_app import console


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same colours in every terminal and on CI."""
    for name in ("NO_COLOR", "COLORTERM", "TEXTUAL_COLOR_SYSTEM", "TEXTUAL_FILTERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", NAMES)
def test_view(snap_compare: Callable[..., bool], name: str, size: tuple[int, int]) -> None:
    app = console(view=NAMES.index(name))
    assert snap_compare(app, terminal_size=size)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_help(snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    assert snap_compare(console(), press=["question_mark"], terminal_size=size)


def test_apply(snap_compare: Callable[..., bool]) -> None:
    app = console()

    async def press(pilot) -> None:
        app.main.flags.choose("sched.paused")
        await pilot.press("5", "e", "a")
        await pilot.pause()

    assert snap_compare(app, run_before=press)


def test_no_snapshot_is_left_over() -> None:
    """A view that was renamed leaves none of its old pictures behind."""
    folder = Path(__file__).parent / "__snapshots__" / "test_snapshots"
    expected = {f"test_view[{name}-{width}x{height}].svg" for name in NAMES for width, height in SIZES}
    expected |= {f"test_help[{width}x{height}].svg" for width, height in SIZES} | {"test_apply.svg"}
    assert {path.name for path in folder.iterdir()} == expected
