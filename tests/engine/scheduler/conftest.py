from __future__ import annotations

import pytest
from arc.engine.scheduler import pressure


@pytest.fixture
def short_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts sequences of toy length under pressure: theirs is a toy's horizon."""
    monkeypatch.setattr(pressure, "HORIZON", 32)
