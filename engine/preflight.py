"""What valid settings name and this machine must have: looked at before anything heavy is loaded.

`arc check` and `arc serve` ask here alike, so that the one does not call right what the other refuses. Torch-free: the
weights, the devices and the memory they take are known to the engine alone, once it loads.
"""

from __future__ import annotations

import grp
import os
from collections.abc import Iterator

from .config import Problem, Settings
from .control import paths
from .folder import CheckpointError, model_folder, read_json


def preflight(settings: Settings) -> list[Problem]:
    """Everything that is missing, each with the place of the value that names it."""
    faults = {
        "model.path": _model(settings.get_str("model.path")),
        "control.name": _socket(settings.get_str("control.name")),
        "control.group": _group(settings.get_str("control.group")),
    }
    return [
        Problem(settings.origin(flag).where, f"{flag}: {message}", flag)
        for flag, messages in faults.items()
        for message in messages
    ]


def _model(path: str) -> Iterator[str]:
    try:
        folder = model_folder(path)
        if not folder.is_dir():
            yield f"{folder} is {'no folder' if folder.exists() else 'not there'}; it is a folder with config.json"
        else:
            read_json(folder / "config.json")
    except (
        CheckpointError,
        OSError,
    ) as error:  # a path too long for the system, a folder that may not be entered
        yield str(error)


def _socket(name: str) -> Iterator[str]:
    try:
        paths.socket_path(paths.runtime_folder(), name)
        paths.state_folder()
    except paths.PathError as error:
        yield str(error)


def _group(name: str) -> Iterator[str]:
    if name == "none":
        return
    try:
        gid = grp.getgrnam(name).gr_gid
    except KeyError:
        yield f"this machine has no group {name!r}"
    else:
        if os.geteuid() != 0 and gid not in {os.getegid(), *os.getgroups()}:
            yield f"you are not a member of {name!r}"
