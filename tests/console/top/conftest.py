from __future__ import annotations

import time

import pytest
from arc.console import shown


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of day as in UTC and without the date, wherever and whenever the tests run."""
    monkeypatch.setattr(shown, "clock", lambda moment: time.strftime("%H:%M:%S", time.gmtime(moment)))
