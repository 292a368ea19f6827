"""Where an engine's files are, by its name: the socket, its lock, the flight recorder, the audit log.

Standard library only: the console finds engines by it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)
_LONGEST_PATH = 107  # bytes of sun_path, without its closing zero


class PathError(Exception):
    """A folder or path cannot be trusted or used; the message says what to do."""


def runtime_folder() -> Path:
    """The folder of this user's sockets: $XDG_RUNTIME_DIR/arc, else arc-<uid> in the temp folder."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "arc" if base else Path(tempfile.gettempdir()) / f"arc-{os.geteuid()}"


def watch_folder(uid: int) -> Path:
    """The folder of the viewer sockets of one user's engines, reachable for a group: the runtime folder is not."""
    return Path(tempfile.gettempdir()) / f"arc-watch-{uid}"


def state_folder() -> Path:
    """The folder of what outlives the engine: flight recordings and audit logs."""
    base = os.environ.get("XDG_STATE_HOME")
    if base:
        return Path(base) / "arc"
    try:
        return Path.home() / ".local" / "state" / "arc"
    except RuntimeError:
        raise PathError("this user has no home folder: set XDG_STATE_HOME to a folder of yours") from None


def socket_path(folder: Path, name: str) -> Path:
    if not NAME.fullmatch(name):
        raise PathError(f"{name!r} is no engine name: letters, digits, _ and -, at most 32")
    path = folder / f"{name}.sock"
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise PathError(
            f"{path} is too long for a socket ({_LONGEST_PATH} bytes at most): set XDG_RUNTIME_DIR to a shorter folder"
        )
    return path


def recording_path(name: str) -> Path:
    return state_folder() / f"{name}.rec"


def log_path(name: str) -> Path:
    """What an engine that `arc up` started in the background writes to its terminal."""
    return state_folder() / f"{name}.log"


def audit_path(name: str) -> Path:
    return state_folder() / f"{name}.audit.jsonl"


def saved_path(name: str) -> Path:
    """Which arc.toml `arc save` wrote for the engine that runs under this name."""
    return state_folder() / f"{name}.saved"


def private_folder(path: Path) -> Path:
    """`path`, made with mode 0700 where it is not there; PathError unless it is ours alone.

    Looked at by lstat: a link planted in the temp folder is refused, not followed.
    """
    status = _own_folder(path)
    if status.st_mode & 0o077:
        raise PathError(
            f"{path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}): chmod 700 {path}"
        )
    return path


def group_folder(path: Path, gid: int, group: str) -> Path:
    """`path` with mode 0750 and the group's, so that its members find sockets there and only we make them."""
    status = _own_folder(path)
    try:
        if status.st_gid != gid:
            path.chmod(0o700)
            os.chown(path, -1, gid)
        path.chmod(0o750)
    except PermissionError:
        raise PathError(f"control.group: you are not a member of {group!r}") from None
    return path


def _own_folder(path: Path) -> os.stat_result:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    except OSError as error:
        raise PathError(
            f"{path} cannot be made: {error.strerror}; XDG_RUNTIME_DIR (sockets) and XDG_STATE_HOME (recordings, "
            "audit) say where these folders are"
        ) from None
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise PathError(f"{path} is not a folder: remove it")
    if status.st_uid != os.geteuid():
        raise PathError(
            f"{path} belongs to uid {status.st_uid}, not to you: set XDG_RUNTIME_DIR to a folder of yours"
        )
    return status


def sockets() -> list[Path]:
    """The control sockets that this user may find: its own engines' and those it may watch. Some may be dead."""
    own = sorted(runtime_folder().glob("*.sock"))
    watched: list[Path] = []
    for folder in sorted(Path(tempfile.gettempdir()).glob("arc-watch-*")):
        if folder != watch_folder(os.geteuid()) and _belongs_to_its_name(folder):
            watched += sorted(folder.glob("*.sock"))
    return own + watched


def _belongs_to_its_name(folder: Path) -> bool:
    """Anyone may make a folder in the temp folder: one that claims another's uid is not looked into."""
    try:
        status = folder.lstat()
        return (
            stat.S_ISDIR(status.st_mode)
            and folder.name == f"arc-watch-{status.st_uid}"
            and os.access(folder, os.R_OK)
        )
    except OSError:
        return False
