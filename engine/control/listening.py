"""The control socket itself: who may own it, and how it is bound so that nobody else can ever reach it.

Bound before the process starts threads: the umask, which makes the mode right from the first moment, is the process's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import paths

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_BACKLOG = 64


class AlreadyRunning(Exception):
    """A live engine has this name."""

    def __init__(self, name: str, pid: str) -> None:
        super().__init__(
            f"an engine named {name} already runs here as pid {pid}; start this one with another control.name"
        )
        self.pid = pid


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, as the kernel states it."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """SO_PEERCRED: fixed when the peer connected; a message cannot change it."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


class Listening:
    """The bound sockets of one engine and the lock that says that they are alive.

    The lock lasts as long as the process, however it ends; a socket without it is a dead one's and is replaced.
    """

    def __init__(self, name: str, group: str | None = None) -> None:
        """Raises AlreadyRunning, PathError, or OSError of the bind. `group`: who may watch through a second socket."""
        folder = paths.private_folder(paths.runtime_folder())
        self.path = paths.socket_path(folder, name)
        self._lock = _locked(folder / f"{name}.lock", name)
        self._closed = False
        self.watch_path: Path | None = None
        self.watch_socket: socket.socket | None = None
        try:
            self.socket = _bound(self.path, 0o177)
            if group is not None:
                self.watch_path, self.watch_socket = _watch_socket(name, group)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Take the sockets away and release the name. The lock file stays: without it two owners could lock two."""
        if self._closed:
            return
        self._closed = True
        for path, bound in ((self.path, self.socket), (self.watch_path, self.watch_socket)):
            if bound is not None and path is not None:
                path.unlink(missing_ok=True)
                bound.close()
        os.close(self._lock)


def _locked(path: Path, name: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise AlreadyRunning(name, pid) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _bound(path: Path, umask: int) -> socket.socket:
    """A listening socket at `path`, born with mode 0777 & ~umask. The caller has the lock: what lies there is dead."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise paths.PathError(f"{path} is no socket: remove it")
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with _umask(umask):
            bound.bind(os.fspath(path))
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _watch_socket(name: str, group: str) -> tuple[Path, socket.socket]:
    """A second socket, 0660 and the group's, in a folder that the group may enter and only the owner may write."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise paths.PathError(f"control.group: this machine has no group {group!r}") from None
    folder = paths.group_folder(paths.watch_folder(os.geteuid()), gid, group)
    path = paths.socket_path(folder, name)
    bound = _bound(path, 0o177)
    try:
        os.chown(path, -1, gid)  # still 0600: the group comes in only once both are right
        path.chmod(0o660)
    except OSError as error:
        bound.close()
        path.unlink(missing_ok=True)
        if error.errno == errno.EPERM:
            raise paths.PathError(f"control.group: you are not a member of {group!r}") from error
        raise
    return path, bound
