"""Writing files so that a crash or a full disk leaves the old one or the new one, never half of either."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .exits import Failure


def write_whole(
    path: Path, content: bytes, *, mode: int | None = None, still_right: Callable[[], None] = lambda: None
) -> None:
    """`content` to `path` by a temporary file, fsync and rename. A file that is there keeps its mode and owner.

    `still_right` is called last before the rename and may raise to stop it. Raises Failure when the disk refuses.
    """
    try:
        before = _there(path)
        target = path.resolve()  # a link stays a link
        if before is not None and not stat.S_ISREG(before.st_mode):
            still_right()
            target.write_bytes(content)  # a device or a pipe: what took its place would be a plain file
            return
        with _beside(target) as (descriptor, temporary):
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
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


def check_place(path: Path) -> None:
    """Raise Failure unless a file can be made at `path`: before the work whose result it is to keep."""
    try:
        before = _there(path)
        if before is None or stat.S_ISREG(before.st_mode):
            with _beside(path.resolve()):
                pass
        elif stat.S_ISDIR(before.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}; choose another place") from None


def _there(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[tuple[int, Path]]:
    """An open file of a name of its own in the same folder, mode 0600; it is gone afterwards unless it was renamed."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".arc-", suffix=".tmp")
    try:
        yield descriptor, Path(name)
    finally:
        os.close(descriptor)
        Path(name).unlink(missing_ok=True)


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
