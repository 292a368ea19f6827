"""Writing files so that a crash or a full disk leaves the old one or the new one, never half of either."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from .exits import Failure


def write_whole(
    path: Path, content: bytes, *, mode: int | None = None, still_right: Callable[[], None] = lambda: None
) -> None:
    """`content` to `path` by a temporary file, fsync and rename. A file that is there keeps its mode and owner.

    `still_right` is called last before the rename and may raise to stop it. Raises Failure when the disk refuses.
    """
    target = path.resolve()  # a link stays a link
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        before = target.stat() if target.exists() else None
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if before is not None:
                _keep_owner(descriptor, before)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            elif mode is not None:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        still_right()
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise Failure(
            f"{path} was not written: {error.strerror}; what was there before is untouched. "
            "Make room or choose another place, and try again"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _keep_owner(descriptor: int, before: os.stat_result) -> None:
    """Only root may give files away; anyone may keep what is theirs already."""
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, before.st_uid, before.st_gid)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
