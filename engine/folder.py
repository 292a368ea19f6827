"""The JSON files of a checkpoint folder, with one clear error for whatever is wrong with them. Torch-free.

A checkpoint comes from anywhere: every value is checked for type and bounds where it is read, and the error
names the file, the key, the value found and what is allowed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

CARRIED = Path(__file__).resolve().parent / "carried" / "austen"
INT_MAX = 2**31 - 1  # no count in these files comes near it, and a larger one fits no kernel's index
BEYOND = (
    1e100  # keeps out infinities, integers beyond the floats, and overflow in what is computed from a number
)


class CheckpointError(Exception):
    """A checkpoint folder cannot be served as it is. The message names file, fault and what is allowed."""


def model_folder(path: str) -> Path:
    """The folder that `model.path` names. Raises CheckpointError for the home folder of a user that is not there."""
    try:
        return CARRIED if path == "carried" else Path(path).expanduser()
    except RuntimeError as error:
        raise CheckpointError(f"{path} cannot be found: {error}") from error


def read_json(path: Path) -> JsonObject:
    """The JSON object in `path`. Raises CheckpointError when it is missing, unreadable, or not an object."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, an absurd number, nested without end
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {shown(value)}")
    return JsonObject(path, value)


def read_eos_ids(folder: Path) -> frozenset[int]:
    """The ids that end a text, of generation_config.json or else config.json; empty when neither has any."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists() and (ids := read_json(folder / name).token_ids("eos_token_id")):
            return ids
    return frozenset()


def shown(value: object) -> str:
    """`value` as JSON, where it fits in a message."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
        return "a nested list"
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object that knows its file. null counts as an absent key, as in the published files.

    Each getter raises CheckpointError when the key is absent and no `default` is given, or when the value is
    of the wrong type or out of bounds.
    """

    path: Path
    values: dict[str, Any]
    prefix: str = ""  # the keys of the enclosing objects, "rope_scaling."

    def error(self, key: str, allowed: str) -> CheckpointError:
        found = shown(self.values[key]) if key in self.values else "missing"
        return CheckpointError(f"{self.path}: {self.prefix}{key} is {found}; {allowed}")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, *, at_least: int, at_most: int = INT_MAX, default: int | None = None) -> int:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
            bounds = f"at least {at_least}" if at_most == INT_MAX else f"{at_least} to {at_most}"
            raise self.error(key, f"it must be an integer, {bounds}")
        return value

    def number(
        self,
        key: str,
        *,
        above: float = -BEYOND,
        at_least: float = -BEYOND,
        at_most: float = BEYOND,
        default: float | None = None,
    ) -> float:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and above < value
            and at_least <= value <= at_most
        ):
            return float(value)
        bounds = ((above, "above"), (at_least, "at least"), (at_most, "at most"))
        named = [f"{word} {bound:g}" for bound, word in bounds if abs(bound) < BEYOND]
        raise self.error(key, ", ".join(["it must be a number", *named]))

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        value = self.values.get(key)
        if value is None:
            value = default
        if type(value) is not bool:
            raise self.error(key, "it must be true or false")
        return value

    def choice(self, key: str, choices: Collection[str], *, default: str | None = None, why: str = "") -> str:
        value = self.values.get(key)
        if value is None:
            value = default
        if not isinstance(value, str) or value not in choices:
            listed = ", ".join(sorted(choices))
            raise self.error(key, f"{'only ' if len(choices) == 1 else 'one of '}{listed} is served{why}")
        return value

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, "it must be a string")
        return value

    def object(self, key: str) -> JsonObject | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "it must be an object or null")
        return JsonObject(self.path, value, f"{self.prefix}{key}.")

    def token_ids(self, key: str) -> frozenset[int]:
        """The one id or the list of ids at `key`; empty when absent."""
        value = self.values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(id_) is int and 0 <= id_ <= INT_MAX for id_ in ids):
            raise self.error(key, "it must be a token id or a list of token ids")
        return frozenset(ids)
