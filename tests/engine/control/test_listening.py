"""The socket's owner, mode and place."""

from __future__ import annotations

import grp
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from arc.engine.control import paths
from arc.engine.control.listening import AlreadyRunning, Listening, peer_of
from arc.engine.control.paths import PathError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def test_only_the_owner_can_reach_it_and_the_umask_is_as_before(folders: Path) -> None:
    before = os.umask(0o002)
    try:
        listening = Listening("main")
        assert os.umask(0o002) == 0o002
    finally:
        os.umask(before)
    assert mode(listening.path) == 0o600
    assert mode(listening.path.parent) == 0o700
    assert connects(listening.path)
    listening.close()
    assert not listening.path.exists()


def test_a_live_owner_is_refused_by_pid(folders: Path) -> None:
    listening = Listening("main")
    with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
        Listening("main")
    assert connects(listening.path), "the second start must not have touched the first one's socket"
    other = Listening("other")
    other.close()
    listening.close()
    Listening("main").close()


_HOLDER = """
import sys, time
from arc.engine.control.listening import Listening
Listening("main")
print("up", flush=True)
time.sleep(60)
"""


def test_the_socket_of_a_killed_engine_is_replaced(folders: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, env=os.environ)
    assert holder.stdout is not None and holder.stdout.readline() == b"up\n"
    with pytest.raises(AlreadyRunning, match=f"pid {holder.pid}"):
        Listening("main")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    path = paths.socket_path(paths.runtime_folder(), "main")
    assert path.exists() and not connects(path)
    listening = Listening("main")
    assert connects(listening.path)
    listening.close()


def test_what_is_no_socket_is_left_alone(folders: Path) -> None:
    folder = paths.private_folder(paths.runtime_folder())
    (folder / "main.sock").write_text("precious")
    with pytest.raises(PathError, match="remove it"):
        Listening("main")
    assert (folder / "main.sock").read_text() == "precious"
    (folder / "main.sock").unlink()
    Listening("main").close()  # the failed start let the lock go


def test_a_folder_that_is_not_ours_alone_is_refused(folders: Path) -> None:
    folder = paths.runtime_folder()
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    with pytest.raises(PathError, match="chmod 700"):
        Listening("main")
    folder.rmdir()
    elsewhere = folders / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    with pytest.raises(PathError, match="not a folder"):
        Listening("main")


def test_another_owners_folder_is_refused(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths.private_folder(paths.runtime_folder())
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PathError, match="belongs to uid"):
        Listening("main")


def test_a_folder_that_cannot_be_made_says_what_to_set(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders / "file").touch()
    for base in ("file", "file/deeper"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folders / base))
        with pytest.raises(PathError, match="XDG_RUNTIME_DIR"):
            Listening("main")


def test_a_user_without_a_home_is_told_what_to_set(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(PathError, match="XDG_STATE_HOME"):
        paths.state_folder()


@pytest.mark.parametrize("name", ["", "../main", "a/b", "a.b", "-x", "x" * 33, "main\n", "ä"])
def test_odd_names_are_refused(folders: Path, name: str) -> None:
    with pytest.raises(PathError, match="no engine name"):
        Listening(name)


def test_a_path_too_long_for_a_socket_says_what_to_do(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folders / ("d" * 100)))
    with pytest.raises(PathError, match="XDG_RUNTIME_DIR"):
        Listening("main")


def test_without_a_runtime_folder_it_is_in_the_temp_folder(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    listening = Listening("main")
    assert listening.path == folders / f"arc-{os.geteuid()}" / "main.sock"
    assert paths.sockets() == [listening.path]
    listening.close()


def test_the_group_gets_a_second_socket(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    group = grp.getgrgid(os.getgid())
    listening = Listening("main", group.gr_name)
    watch = listening.watch_path
    assert watch is not None
    assert mode(watch) == 0o660 and watch.lstat().st_gid == group.gr_gid
    assert mode(watch.parent) == 0o750 and watch.parent.lstat().st_gid == group.gr_gid
    assert mode(listening.path) == 0o600
    listening.close()
    assert not watch.exists()


def test_an_unknown_group_is_named_and_the_name_stays_free(folders: Path) -> None:
    with pytest.raises(PathError, match="no group 'no-such-group'"):
        Listening("main", "no-such-group")
    Listening("main").close()


def test_a_planted_watch_folder_is_not_looked_into(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    planted = folders / f"arc-watch-{os.geteuid() + 1}"
    planted.mkdir()
    (planted / "main.sock").touch()
    assert paths.sockets() == []


def test_the_peer_is_what_the_kernel_says(folders: Path) -> None:
    listening = Listening("main")
    listening.socket.setblocking(True)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(listening.path))
        server, _ = listening.socket.accept()
        with server:
            peer = peer_of(server)
    assert (peer.pid, peer.uid, peer.gid) == (os.getpid(), os.getuid(), os.getgid())
    listening.close()
