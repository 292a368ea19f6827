"""What a profile sets, read from its file and checked against the registry."""

from __future__ import annotations

from pathlib import Path

from ..engine.config import Problem, no_profile, profile_files, read_toml
from ..engine.flags import FlagError, Value, check, lookup
from .exits import Failure


def profile_values(profile: str) -> dict[str, Value]:
    """Flag -> value. Profiles are looked for in ./profiles, then among the shipped ones. Raises Failure."""
    files = profile_files(Path.cwd())
    path = files.get(profile)
    if path is None:
        raise Failure(no_profile(profile, files))
    entries, problems = read_toml(path, str(path))
    values: dict[str, Value] = {}
    for entry in entries:
        if entry.path == ("description",) or entry.value == {}:  # an empty table sets nothing
            continue
        try:
            values[entry.name] = check(lookup(entry.name), entry.value)
        except FlagError as error:
            problems.append(Problem(f"{path}:{entry.line}", error.message))
    if problems:
        raise Failure("\n".join(["the profile cannot be applied:", *map(str, problems)]))
    return values
