"""What leaves the console: exported files, one screen as text and as data; and what comes in: the keymap."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pytest
from arc.console.exits import Failure
from arc.console.top.export import content, write
from arc.console.top.keys import BY_ID, KEYS, read_keymap
from arc.console.top.views.catalogue import make_views
from arc.console.top.views.view import Exported

from .recorded import recorded, scene

MOMENT = time.gmtime(recorded().time)


def test_tables_are_exported_whole_as_csv() -> None:
    view = make_views()[1]
    view.lines(scene(), 80, 4)  # two rows in sight
    exported = view.export(scene())
    assert exported is not None
    rows = list(csv.reader(io.StringIO(content(exported).decode())))
    assert rows[0][0] == "id" and len(rows) == 1 + len(recorded().sequences.sequences)
    assert {row[0] for row in rows[1:]} == {each.id for each in recorded().sequences.sequences}


def test_the_overview_is_exported_as_json() -> None:
    exported = make_views()[0].export(scene())
    assert exported is not None
    value = json.loads(content(exported))
    assert value["now"]["running"] == recorded().snapshot.running
    assert value["window"]["generation_tokens"] == scene().totals.generation_tokens


def test_no_cell_is_a_formula() -> None:
    exported = Exported("x", ["a"], [["=cmd|' /C calc'!A0"], ["+1"], ["@x"], ["-1+2"], ["--"], ["plain"]])
    cells = [row[0] for row in csv.reader(io.StringIO(content(exported).decode()))][1:]
    assert cells == ["'=cmd|' /C calc'!A0", "'+1", "'@x", "'-1+2", "--", "plain"]


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    exported = Exported("flags", ["a"], [["b"]])
    first, second = write(exported, tmp_path, MOMENT), write(exported, tmp_path, MOMENT)
    assert first != second and first.read_bytes() == second.read_bytes() == b"a\nb\n"
    assert first.name.startswith("arc-flags-2026") and first.suffix == ".csv"


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="not written"):
        write(Exported("flags", ["a"], []), tmp_path / "nowhere", MOMENT)


# -- keys ---------------------------------------------------------------------------------------------------------


def test_no_key_is_given_twice() -> None:
    keys = [each for key in KEYS for each in key.keys.split(",")]
    assert len(keys) == len(set(keys)) and len(BY_ID) == len(KEYS)


def test_a_keymap_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    assert read_keymap(path) == {}
    path.write_text('[keys]\nfreeze = "f"\nquit = "ctrl+q"\n')
    assert read_keymap(path) == {"freeze": "f", "quit": "ctrl+q"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[keys]\nfreze = "f"', "did you mean freeze"),
        ("[keys]\nfreeze = 3", "the key of freeze is text"),
        ('[keys]\nfreeze = "q"', "'q' is both freeze and quit|'q' is both quit and freeze"),
        ("freeze = 'f'", "one table"),
        ("[keys\n", "keys.toml: "),
    ],
)
def test_a_wrong_keymap_is_refused_with_the_reason(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(Failure, match=says):
        read_keymap(path)
