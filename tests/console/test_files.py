"""Files that are written whole or not at all, and places where none can be."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from arc.console.exits import Failure
from arc.console.files import check_place, write_whole


def _loop(folder: Path) -> Path:
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


def _under_a_file(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file" / "name"


_IMPOSSIBLE: dict[str, Callable[[Path], Path]] = {
    "no such folder": lambda folder: folder / "missing" / "name",
    "a folder": lambda folder: folder,
    "under a file": _under_a_file,
    "a loop of links": _loop,
    "too long a name": lambda folder: folder / ("x" * 300),
    "too long a path": lambda folder: folder / ("d/" * 3000) / "name",
    "a file system without files": lambda folder: Path("/proc/name"),
}


@pytest.mark.parametrize("why", _IMPOSSIBLE)
def test_a_place_where_no_file_can_be_is_a_failure_before_the_work_and_after_it(
    tmp_path: Path, why: str
) -> None:
    path = _IMPOSSIBLE[why](tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Failure, match="cannot be written"):
        check_place(path)
    with pytest.raises(Failure, match="was not written"):
        write_whole(path, b"content")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["a", "x" * 255, " ", "\udcff"])
def test_a_place_that_was_checked_is_as_it_was_and_takes_a_file(tmp_path: Path, name: str) -> None:
    check_place(tmp_path / name)
    assert not list(tmp_path.iterdir())
    write_whole(tmp_path / name, b"content")
    check_place(tmp_path / name)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"content"]


def test_what_is_no_plain_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    """By rename, root's `--out /dev/null` would leave the machine with a plain file of that name."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    check_place(pipe)
    reader.start()
    write_whole(pipe, b"content")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join()
    assert read == [b"content"]
