from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.make_checkpoint import TINY, write_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DeepSeek-V3-shaped checkpoint of random weights, small enough to run by the hundred."""
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, TINY, seed=0)
    return folder
