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


@pytest.mark.parametrize("keys", [["question_mark"], ["5", "e", "a"]], ids=["help", "apply"])
def test_dialog(snap_compare: Callable[..., bool], keys: list[str]) -> None:
    app = console()

    async def press(pilot) -> None:
        app.main.flags.choose("sched.paused")
        await pilot.press(*keys)
        await pilot.pause()

    assert snap_compare(app, run_before=press)


def test_no_snapshot_is_left_over() -> None:
    """A view that was renamed leaves none of its old pictures behind."""
    folder = Path(__file__).parent / "__snapshots__" / "test_snapshots"
    expected = {f"test_view[{name}-{width}x{height}].svg" for name in NAMES for width, height in SIZES}
    expected |= {"test_dialog[help].svg", "test_dialog[apply].svg"}
    assert {path.name for path in folder.iterdir()} == expected
