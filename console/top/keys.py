"""Every key, once: the bindings, the help screen, the footer and the palette are made from this table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...engine.flags import did_you_mean
from ..exits import Failure


@dataclass(frozen=True, slots=True)
class Key:
    """`id` is what a keymap names; the main screen has a method for it, or for `call`. `what` is short enough for a
    third of the smallest screen, `more` is said where there is room."""

    id: str
    keys: str  # as Textual writes them, commas between
    shown: str  # as people read it
    what: str
    group: str
    more: str = ""
    changes_engine: bool = False  # refused for a viewer
    call: str = ""

    @property
    def action(self) -> str:
        return self.call or self.id

    @property
    def explained(self) -> str:
        return f"{self.what}: {self.more}" if self.more else self.what


_VIEWS = ("Overview", "Sequences", "Spans", "Allocator", "Flags", "Events")


def _change(id_: str, keys: str, shown: str, what: str, more: str = "", group: str = "Changes") -> Key:
    return Key(id_, keys, shown, what, group, more, changes_engine=True)


KEYS: tuple[Key, ...] = (
    *(
        Key(f"view_{index + 1}", str(index + 1), str(index + 1), name, "Views", call=f"view({index})")
        for index, name in enumerate(_VIEWS)
    ),
    Key("view_next", "tab", "Tab", "next view", "Views"),
    Key("view_previous", "shift+tab", "S-Tab", "previous view", "Views"),
    Key("enter", "enter", "Enter", "open", "Views", "the row, the panel's own view, the flag's editor"),
    Key("back", "escape", "Esc", "back out", "Views", "of a detail, a filter, the freeze, the past"),
    Key("maximise", "M", "M", "maximise", "Views", "the panel has the whole place"),
    Key("help", "question_mark", "?", "this help", "Views"),
    Key("palette", "ctrl+p", "^p", "palette", "Views", "every action and every flag by name"),
    Key("quit", "q", "q", "quit", "Views"),
    Key("up", "up,k", "Up", "up", "Tables"),
    Key("down", "down,j", "Down", "down", "Tables"),
    Key("page_up", "pageup", "PgUp", "a page up", "Tables"),
    Key("page_down", "pagedown", "PgDn", "a page down", "Tables"),
    Key("first", "home", "Home", "first row", "Tables"),
    Key("last", "end", "End", "last row, or now", "Tables", "in the past it comes back to now"),
    Key("filter", "slash", "/", "filter", "Tables", "by a regular expression; /! shows the rest"),
    Key("sort_previous", "comma", ",", "column before", "Tables", "sorts by it; on the Overview the panel"),
    Key("sort_next", "full_stop", ".", "column after", "Tables", "sorts by it; on the Overview the panel"),
    Key("sort_turn", "r", "r", "turn the order", "Tables"),
    Key("freeze", "space", "Space", "freeze", "Time", "the view stands, collection goes on"),
    Key("history_back", "left", "Left", "back in history", "Time"),
    Key("history_forward", "right", "Right", "forward, to now", "Time"),
    Key("window_shorter", "left_square_bracket", "[", "shorter window", "Time"),
    Key("window_longer", "right_square_bracket", "]", "longer window", "Time", "from 30 s to 60 min"),
    Key("pin", "P", "P", "pin the spans", "Time", "compares with this moment; once more lets go"),
    _change("mark", "m", "m", "drop a mark", "a name in the events and on every plot", "Time"),
    Key("replay_back", "less_than_sign,shift+left", "<", "a picture back", "Replay", call="replay_step(-1)"),
    Key("replay_on", "greater_than_sign,shift+right", ">", "a picture on", "Replay", call="replay_step(1)"),
    Key("replay_slower", "minus", "-", "slower", "Replay", call="replay_speed(-1)"),
    Key("replay_faster", "plus,equals_sign", "+", "faster", "Replay", call="replay_speed(1)"),
    Key("replay_seek", "g", "g", "go to a time", "Replay", "Space plays and stands, Left and Right move"),
    _change("cancel", "c,delete", "c", "cancel", "the sequence under the cursor"),
    _change("edit", "e", "e", "edit the flag", "under the cursor"),
    _change("drop", "backspace", "Bksp", "drop an edit"),
    _change("apply", "a", "a", "apply the edits", "difference, dry run, reason, time limit"),
    _change("unset", "u", "u", "unset the flag", "back to the layer below runtime"),
    _change("undo", "z", "z", "undo", "this console's last change"),
    _change("profile", "p", "p", "take a profile", "its live flags, as a difference"),
    _change("experiment", "b", "b", "A/B two values", "of the flag on live traffic; watch, stop"),
    _change("demo", "L", "L", "demo load", "starts it, stops it"),
    _change("trim", "t", "t", "trim the allocator", "free buffers to the system, an auto cap anew"),
    Key("export", "x", "x", "export", "Out", "the view to a file, CSV or JSON"),
    Key("copy", "y", "y", "copy the row", "Out", "through the terminal, OSC 52"),
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
    import tomli

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
