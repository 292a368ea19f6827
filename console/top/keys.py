"""Every key, once: the bindings, the help screen, the footer and the palette are made from this table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tomli

from ...engine.flags import did_you_mean
from ..exits import Failure


@dataclass(frozen=True, slots=True)
class Key:
    """`id` is what a keymap names; the main screen has a method for it, or for `call`."""

    id: str
    keys: str  # as Textual writes them, commas between
    shown: str  # as people read it
    what: str
    group: str
    changes_engine: bool = False  # refused for a viewer
    call: str = ""

    @property
    def action(self) -> str:
        return self.call or self.id


_VIEWS = ("Overview", "Sequences", "Spans", "Allocator", "Flags", "Events")

KEYS: tuple[Key, ...] = (
    *(
        Key(f"view_{index + 1}", str(index + 1), str(index + 1), name, "Views", call=f"view({index})")
        for index, name in enumerate(_VIEWS)
    ),
    Key("view_next", "tab", "Tab", "next view", "Views"),
    Key("view_previous", "shift+tab", "S-Tab", "previous view", "Views"),
    Key("enter", "enter", "Enter", "drill into it", "Views"),
    Key("back", "escape", "Esc", "back out", "Views"),
    Key("maximise", "M", "M", "give the panel the whole place", "Views"),
    Key("help", "question_mark", "?", "this help", "Views"),
    Key("palette", "ctrl+p", "^p", "palette: every action and every flag", "Views"),
    Key("quit", "q", "q", "quit", "Views"),
    Key("up", "up,k", "Up", "up", "Tables"),
    Key("down", "down,j", "Down", "down", "Tables"),
    Key("page_up", "pageup", "PgUp", "a page up", "Tables"),
    Key("page_down", "pagedown", "PgDn", "a page down", "Tables"),
    Key("first", "home", "Home", "first row", "Tables"),
    Key("last", "end", "End", "last row; in the past: back to now", "Tables"),
    Key("filter", "slash", "/", "filter by a regular expression; /! shows the rest", "Tables"),
    Key(
        "sort_previous",
        "comma",
        ",",
        "sort by the column before; on the Overview: the panel before",
        "Tables",
    ),
    Key("sort_next", "full_stop", ".", "sort by the next column; on the Overview: the next panel", "Tables"),
    Key("sort_turn", "r", "r", "turn the order round", "Tables"),
    Key("freeze", "space", "Space", "freeze the view; collection goes on", "Time"),
    Key("history_back", "left", "Left", "back in the engine's history", "Time"),
    Key("history_forward", "right", "Right", "forward, at last to now", "Time"),
    Key("window_shorter", "left_square_bracket", "[", "shorter window", "Time"),
    Key("window_longer", "right_square_bracket", "]", "longer window: 30 s to 60 min", "Time"),
    Key("pin", "P", "P", "pin this moment's spans to compare with, or let them go", "Time"),
    Key("mark", "m", "m", "drop a named mark", "Time", changes_engine=True),
    Key("replay_back", "less_than_sign,shift+left", "<", "a picture back", "Replay", call="replay_step(-1)"),
    Key("replay_on", "greater_than_sign,shift+right", ">", "a picture on", "Replay", call="replay_step(1)"),
    Key("replay_slower", "minus", "-", "slower", "Replay", call="replay_speed(-1)"),
    Key("replay_faster", "plus,equals_sign", "+", "faster", "Replay", call="replay_speed(1)"),
    Key("replay_seek", "g", "g", "go to a time; Space plays and stands, Left and Right move", "Replay"),
    Key("cancel", "c,delete", "c", "cancel the sequence under the cursor", "Changes", changes_engine=True),
    Key("edit", "e", "e", "edit the flag under the cursor", "Changes", changes_engine=True),
    Key("drop", "backspace", "Bksp", "drop an edit", "Changes", changes_engine=True),
    Key(
        "apply",
        "a",
        "a",
        "apply the edits: difference, dry run, reason, time limit",
        "Changes",
        changes_engine=True,
    ),
    Key("unset", "u", "u", "take the runtime value away", "Changes", changes_engine=True),
    Key("undo", "z", "z", "undo this console's last change", "Changes", changes_engine=True),
    Key("profile", "p", "p", "take over a profile's live flags", "Changes", changes_engine=True),
    Key(
        "experiment",
        "b",
        "b",
        "A/B: try two values of the flag on live traffic; watch, stop",
        "Changes",
        changes_engine=True,
    ),
    Key("demo", "L", "L", "start or stop a small demo load", "Changes", changes_engine=True),
    Key(
        "trim",
        "t",
        "t",
        "trim the allocator: free buffers to the system, an auto cap anew",
        "Changes",
        changes_engine=True,
    ),
    Key("export", "x", "x", "write the view to a file (CSV or JSON)", "Out"),
    Key("copy", "y", "y", "copy the row (OSC 52)", "Out"),
    Key("theme", "T", "T", "next theme", "Out"),
)

# For the footer of a replay, before the view's own.
REPLAY_HINTS = (
    ("freeze", "play"), ("history_back", "back"), ("replay_on", "step"), ("replay_faster", "faster"),
    ("replay_seek", "go to"),
)  # fmt: skip

BY_ID: Mapping[str, Key] = {key.id: key for key in KEYS}


def keymap_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "arc" / "keys.toml"


def read_keymap(path: Path) -> dict[str, str]:
    """The keys that the operator has chosen: `[keys]`, then `id = "key"`. An unknown id or a key twice is a Failure."""
    if not path.exists():
        return {}
    try:
        tables = tomli.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomli.TOMLDecodeError) as error:
        raise Failure(f"{path}: {error}") from None
    chosen = tables.get("keys", {})
    if not isinstance(chosen, dict) or set(tables) - {"keys"}:
        raise Failure(f'{path}: write one table [keys] with lines such as freeze = "f"')
    for name, key in chosen.items():
        if name not in BY_ID:
            raise Failure(f"{path}: there is no action {name!r}{did_you_mean(name, BY_ID)}")
        if not isinstance(key, str) or not key:
            raise Failure(f'{path}: the key of {name} is text, such as "f" or "ctrl+f"')
    taken: dict[str, str] = {}
    for key in KEYS:
        for each in chosen.get(key.id, key.keys).split(","):
            if each in taken:
                raise Failure(
                    f"{path}: {each!r} is both {taken[each]} and {key.id}: choose another key for one"
                )
            taken[each] = key.id
    return chosen
