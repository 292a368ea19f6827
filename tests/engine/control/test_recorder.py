"""The flight recorder: what was written is there after kill -9, and what is half there is not believed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from arc.engine.control import recorder as recorder_module
from arc.engine.control import recording as r
from arc.engine.control.events import EventLog
from arc.engine.control.recorder import Recorder
from arc.engine.flags import DEFAULTS
from arc.engine.telemetry.records import StepRecord
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .simulated import SimulatedEngine
from .test_history import step

INFO = SimulatedEngine("rec").info


def begin(path: Path) -> Recorder:
    return Recorder(path, INFO, DEFAULTS)


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    recorder = begin(tmp_path / "a.rec")
    log = EventLog(sink=recorder.event)
    for index in range(20):
        recorder.opened(index, index + 1)
        recorder.closed(step(index, index + 1, wall=0.25))
    log.add("mark", "hello", uid=7, pid=8, where="here")
    log.add("flags", "sched.max_running 64→3", changes={"sched.max_running": {"old": 64, "new": 3}})
    found = r.read(tmp_path / "a.rec")
    assert [each["index"] for each in found.steps] == list(range(20))
    assert msgspec.convert(found.steps[4], StepRecord, strict=False) == step(4, 5, wall=0.25)
    assert [event.text for event in found.events] == ["hello", "sched.max_running 64→3"]
    assert found.events[0].data == {"where": "here"} and found.events[0].uid == 7
    assert [event.text for event in found.flags] == ["sched.max_running 64→3"]
    assert found.values == {**DEFAULTS, "sched.max_running": 3}
    assert (found.open_step, found.ended, found.torn) == (None, None, 0)
    assert (found.header.name, found.header.pid) == ("rec", os.getpid())


def test_an_open_step_is_told_with_its_rows(tmp_path: Path) -> None:
    recorder = begin(tmp_path / "a.rec")
    recorder.closed(step(41))
    before = time.time()
    recorder.opened(42, 17)
    found = r.read(tmp_path / "a.rec")
    assert (found.open_step, found.open_rows) == (42, 17)
    assert before - 0.5 <= found.last_sign <= time.time() + 0.5
    recorder.close()
    found = r.read(tmp_path / "a.rec")
    assert found.open_step is None and found.ended is not None and found.ended >= before
    recorder.event(EventLog().add("mark", "late"))
    recorder.closed(step(43))
    assert r.read(tmp_path / "a.rec").ended is not None, "who still writes does not undo the end"


def test_the_newest_are_kept(tmp_path: Path) -> None:
    recorder = begin(tmp_path / "a.rec")
    log = EventLog(sink=recorder.event)
    for index in range(r.STEPS.slots + 100):
        recorder.closed(step(index))
    for number in range(r.EVENTS.slots + 10):
        log.add("mark", str(number))
    found = r.read(tmp_path / "a.rec")
    assert [each["index"] for each in found.steps] == list(range(100, r.STEPS.slots + 100))
    assert [event.number for event in found.events] == list(range(11, r.EVENTS.slots + 11))


def test_the_recording_before_is_kept_beside(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    first = begin(path)
    first.closed(step(1))
    second = begin(path)
    second.closed(step(2))
    assert [each["index"] for each in r.read(path).steps] == [2]
    assert [each["index"] for each in r.read(tmp_path / "a.rec.prev").steps] == [1]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["x" * 5000, "\x01" * 5000, "é" * 5000, '"' * 5000], ids=lambda text: repr(text[0])
)
def test_an_event_too_large_for_its_slot_is_cut_and_says_so(tmp_path: Path, text: str) -> None:
    recorder = begin(tmp_path / "a.rec")
    log = EventLog(sink=recorder.event)
    log.add("mark", text)
    log.add("mark", "short", big="y" * 5000)
    first, second = r.read(tmp_path / "a.rec").events
    assert first.data == {"cut": True} and first.text and text.startswith(first.text)
    assert (second.text, second.data) == ("short", {"cut": True})


@pytest.mark.parametrize(
    "ring", [r.STEPS, r.EVENTS, r.FLAGS, r.VALUES], ids=["steps", "events", "flags", "values"]
)
@pytest.mark.parametrize("cut", [8, 20, 60])
def test_a_record_cut_off_in_the_middle_is_left_out_and_counted(
    tmp_path: Path, ring: r.Ring, cut: int
) -> None:
    """The writer dies after `cut` bytes of the second record: the first one before it is all there."""
    path = tmp_path / "a.rec"
    recorder = begin(path)
    log = EventLog(sink=recorder.event)

    def write() -> None:
        recorder.closed(step(5))
        log.add("flags", "x", changes={"sched.paused": {"old": False, "new": True}})

    write()
    before = path.read_bytes()
    write()
    after = path.read_bytes()
    number = 3 if ring is r.VALUES else 2  # one was written at the start
    place = ring.place(number)
    torn = bytearray(after)
    torn[place + cut : place + ring.size] = before[place + cut : place + ring.size]
    path.write_bytes(torn)
    found = r.read(path)
    assert found.torn == 1
    assert len(found.steps) == (1 if ring is r.STEPS else 2)
    assert len(found.events) == (1 if ring is r.EVENTS else 2)
    assert len(found.flags) == (1 if ring is r.FLAGS else 2)
    assert found.values["sched.paused"] is True


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, r.FILE_SIZE - 1), st.integers(0, 255)), max_size=30),
    head=st.lists(st.tuples(st.integers(0, r.STEPS.offset + 400), st.integers(0, 255)), max_size=10),
    blanks=st.lists(st.tuples(st.integers(0, r.FILE_SIZE - 1), st.integers(1, 5000)), max_size=3),
)
def test_a_damaged_file_is_read_or_refused_by_name(
    tmp_path: Path, flips: list[tuple[int, int]], head: list[tuple[int, int]], blanks: list[tuple[int, int]]
) -> None:
    path = tmp_path / "a.rec"
    data = bytearray(_written(tmp_path))
    for place, value in (*flips, *head):
        data[place] = value
    for place, length in blanks:
        data[place : place + length] = b"\xff" * len(data[place : place + length])
    path.write_bytes(data)
    try:
        found = r.read(path)
    except r.RecordingError:
        return
    assert len(found.steps) <= r.STEPS.slots


_CACHE: list[bytes] = []


def _written(folder: Path) -> bytes:
    if not _CACHE:
        recorder = begin(folder / "original.rec")
        log = EventLog(sink=recorder.event)
        for index in range(30):
            recorder.opened(index, 3)
            recorder.closed(step(index))
            log.add("flags", "x", changes={"sched.paused": {"old": False, "new": True}})
        _CACHE.append((folder / "original.rec").read_bytes())
    return _CACHE[0]


@pytest.mark.parametrize(
    "content", [b"", b"x" * 100, b"\0" * r.FILE_SIZE, b"ARCREC99" + b"\0" * (r.FILE_SIZE - 8)], ids=len
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.rec").write_bytes(content)
    with pytest.raises(r.RecordingError, match=r"no recording|damaged"):
        r.read(tmp_path / "a.rec")


_ENGINE = """
import sys
from pathlib import Path
import msgspec
from arc.engine.control.recorder import Recorder
from arc.engine.core.interface import EngineInfo
from arc.engine.telemetry.records import StepRecord
info = msgspec.json.decode(sys.argv[2], type=EngineInfo)
record = msgspec.json.decode(sys.argv[3], type=StepRecord)
recorder = Recorder(Path(sys.argv[1]), info, {})
print("up", flush=True)
index = 0
while True:
    recorder.opened(index, index % 64)
    recorder.closed(msgspec.structs.replace(record, index=index, rows=index % 64))
    index += 1
"""


def test_it_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    for attempt in range(4):
        engine = subprocess.Popen(
            [sys.executable, "-c", _ENGINE, str(path), *map(msgspec.json.encode, (INFO, step(0)))],
            stdout=subprocess.PIPE,
            env=os.environ,
        )
        assert engine.stdout is not None and engine.stdout.readline() == b"up\n"
        while r.read(path).steps == []:
            time.sleep(0.002)
        time.sleep(0.003 * attempt)
        engine.send_signal(signal.SIGKILL)
        engine.wait()
        engine.stdout.close()
        found = r.read(path)
        assert found.torn <= 1, "at most the record that it was writing"
        indexes = [int(each["index"]) for each in found.steps]
        assert indexes == list(range(indexes[0], indexes[0] + len(indexes)))
        assert all(each["rows"] == each["index"] % 64 for each in found.steps)
        assert found.ended is None
        if found.open_step is not None and found.torn == 0:
            assert found.open_step in (indexes[-1], indexes[-1] + 1), "closed a moment ago, or open"


def test_without_room_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks are taken at the start: a hole in the file would kill the engine when the disk is full later."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a.rec"
    begin(path).close()
    assert path.stat().st_blocks * 512 >= r.FILE_SIZE
    monkeypatch.setattr(recorder_module.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        begin(path)
    assert not path.exists() and (tmp_path / "a.rec.prev").exists()


def test_a_cut_off_word_on_the_open_step_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    recorder = begin(path)  # word 1
    recorder.opened(6, 3)  # word 2
    before = path.read_bytes()
    recorder.closed(step(6))  # word 3, in the place of word 1
    data = bytearray(path.read_bytes())
    place = r.NOWS.place(3)
    data[place + 8 : place + r.NOWS.size] = before[place + 8 : place + r.NOWS.size]
    path.write_bytes(data)
    found = r.read(path)
    assert (found.open_step, found.open_rows, found.torn) == (6, 3, 1)
