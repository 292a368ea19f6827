"""A recording tells a store again what it was told; cut off or damaged anywhere, it shows what is whole and says so."""

from __future__ import annotations

import math
import resource
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from arc.console.exits import Failure
from arc.console.top.host import Card, Host
from arc.console.top.recording import FRAME, MAGIC, RECORDED_SEQUENCES, RecordingStore, read
from arc.console.top.store import Picture, Store
from arc.console.top.tape import open_tape
from arc.engine.control import protocol as p
from hypothesis import given
from hypothesis import strategies as st

from .recorded import picture, recorded, snapshot

READ = recorded()
CARD = Card("H200", 80, 1 << 30, p.NA("NVML: not supported"), 350.5, 61, "power cap")

Told = Callable[[Store], None]


def _event(number: int) -> p.Event:
    return p.Event(
        number=number, time=READ.time + number, kind="flags", text=f"event {number}", uid=7, data={"a": 1}
    )


def _attached(started: float) -> Told:
    hello = msgspec.structs.replace(READ.hello, started=started)
    return lambda store: store.attached(hello, READ.history, READ.events, started)


def _part(name: str, value: Any) -> Told:
    return lambda store: store.put(**{name: value})


TOLD: dict[str, Told] = {
    "attached": _attached(READ.time - 100),
    "attached anew": _attached(READ.time - 3),
    "snapshot": lambda store: store.snapshot(snapshot(running=3), READ.time),
    "another": lambda store: store.snapshot(snapshot(running=9, waiting=2), READ.time + 1),
    "history": lambda store: store.history(
        msgspec.structs.replace(
            READ.history, samples=(msgspec.structs.replace(READ.history.samples[-1], time=READ.time + 5),)
        )
    ),
    "event": lambda store: store.entry(_event(90)),
    "reset": lambda store: store.entry(msgspec.structs.replace(_event(91), kind="reset")),
    "gap": lambda store: store.entry(p.Gap(3, 92, 94)),
    "lost": lambda store: store.lost("it went away", READ.time),
    **{name: _part(name, getattr(picture(), name)) for name in ("sequences", "flags", "memory", "spans", "allocator")},
    "no spans": _part("spans", p.NA("profile.enabled is off")),
    "host": _part("host", picture().host),
    "card": _part("host", Host(p.NA("another container"), 1.0, 8, 5, 9, CARD)),
}  # fmt: skip


class Clock:
    """Rises by a quarter second with each look, so that each record has a moment of its own."""

    def __init__(self) -> None:
        self.now = READ.time

    def __call__(self) -> float:
        self.now += 0.25
        return self.now


def record(path: Path, calls: list[str], *, close: bool = True) -> list[Picture]:
    """Each call's picture in a store that is told the same at the times that the recording states."""
    clock = Clock()
    store = RecordingStore(path, clock)
    pictures = []
    for name in calls:
        TOLD[name](store)
        pictures.append(store.picture)
    if close:
        store.close()
    return pictures


def parts(picture: Picture) -> dict[str, Any]:
    """All of it but the times at which this process was told, which the recording states by its own clock."""
    kept = {field.name: getattr(picture, field.name) for field in fields(picture)}
    kept["link"] = replace(picture.link, since=0.0, heard=None, restarted=None)
    kept["restarted"] = picture.link.restarted is not None
    return kept


def replayed(path: Path) -> list[dict[str, Any]]:
    tape = open_tape(path)
    return [parts(tape.picture_at(moment)) for moment in tape.moments]


def test_every_part_of_the_picture_is_recorded() -> None:
    """A new part has a line in TOLD, or this fails."""
    told = Store()
    for call in TOLD.values():
        call(told)
    untold = {field.name for field in fields(Picture) if getattr(told.picture, field.name) == field.default}
    assert untold <= {
        "lacks",
        "page",
        "own_bounds",
    }  # --record is refused for a metrics page  # of a flight recorder's file alone


@given(calls=st.lists(st.sampled_from(sorted(TOLD)), max_size=25))
def test_what_was_told_is_told_again(tmp_path_factory: pytest.TempPathFactory, calls: list[str]) -> None:
    path = tmp_path_factory.mktemp("told") / "a.top"
    wanted = [parts(each) for each in record(path, ["attached", *calls])]
    found = replayed(path)
    assert [each for index, each in enumerate(found) if index == 0 or each != found[index - 1]] == [
        each for index, each in enumerate(wanted) if index == 0 or each != wanted[index - 1]
    ]
    assert open_tape(path).cut == ""


def test_going_back_shows_what_going_on_showed(tmp_path: Path) -> None:
    path = tmp_path / "a.top"
    store = RecordingStore(path, Clock())
    TOLD["attached"](store)
    for number in range(700):  # past two of the pictures that are kept
        store.snapshot(snapshot(running=number), READ.time)
    store.close()
    tape = open_tape(path)
    onward = [tape.picture_at(moment).snapshot for moment in tape.moments]
    back = [tape.picture_at(moment).snapshot for moment in reversed(tape.moments)]
    assert onward == back[::-1] and len(onward) > 700
    assert [each.running for each in onward if each][:700] == list(range(700))


CALLS = [
    "attached",
    "snapshot",
    "event",
    "sequences",
    "another",
    "flags",
    "card",
    "gap",
    "lost",
    "attached anew",
    "host",
]


@cache
def whole() -> tuple[bytes, list[dict[str, Any]]]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.top")
        record(path, CALLS)
        return path.read_bytes(), replayed(path)


def _shown(path: Path, content: bytes) -> list[dict[str, Any]] | None:
    """What is shown of it, which is the beginning of what the whole shows; None when it is refused, by a Failure."""
    path.write_bytes(content)
    try:
        tape = open_tape(path)
    except Failure as failure:
        assert str(path) in failure.message
        return None
    found = [parts(tape.picture_at(moment)) for moment in tape.moments]
    assert found == whole()[1][: len(found)]
    if content != whole()[0]:
        assert tape.cut or found == whole()[1]
    return found


@given(share=st.floats(0, 1, exclude_max=True))
def test_cut_off_anywhere_it_shows_what_is_whole(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    content = whole()[0]
    _shown(tmp_path_factory.mktemp("cut") / "a.top", content[: int(share * len(content))])


def test_cut_off_later_it_shows_more(tmp_path: Path) -> None:
    content = whole()[0]
    shown = [
        _shown(tmp_path / "a.top", content[:size]) for size in range(0, len(content), len(content) // 60)
    ]
    counts = [len(each) if each else 0 for each in shown]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] >= len(whole()[1]) - 2


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_damaged_bit_ends_it_there(
    tmp_path_factory: pytest.TempPathFactory, place: float, bit: int
) -> None:
    content = bytearray(whole()[0])
    content[int(place * len(content))] ^= 1 << bit
    _shown(tmp_path_factory.mktemp("bit") / "a.top", bytes(content))


def _at(moment: float, *, checked: bool) -> bytes:
    """The whole recording, but its fourth record says that it is of `moment`, with its checksum or another's."""
    frames = zlib.decompressobj().decompress(whole()[0][len(MAGIC) :])
    place = 0
    for _ in range(3):
        place += FRAME.size + FRAME.unpack_from(frames, place)[0]
    length, crc, _ = FRAME.unpack_from(frames, place)
    packed = frames[place + FRAME.size :][:length]
    if checked:
        crc = zlib.crc32(struct.pack("<d", moment) + packed)
    start, end = frames[:place], frames[place + FRAME.size :]
    return MAGIC + zlib.compress(start + FRAME.pack(length, crc, moment) + end)


@pytest.mark.parametrize("moment", [math.nan, math.inf, -1.0, 1e300])
@pytest.mark.parametrize("checked", [True, False])
def test_a_record_of_a_damaged_or_impossible_time_ends_it_there(
    tmp_path: Path, moment: float, checked: bool
) -> None:
    shown = _shown(tmp_path / "a.top", _at(moment, checked=checked))
    assert shown is not None
    assert len(shown) == 2  # the first record shows nothing yet
    why = "impossible time" if checked else "checksum differs"
    assert why in open_tape(tmp_path / "a.top").cut


def test_killed_it_keeps_all_that_was_received(tmp_path: Path) -> None:
    path = tmp_path / "a.top"
    code = f"""
import os, signal
from pathlib import Path
from tests.console.top.test_recording import record, CALLS
record(Path({str(path)!r}), CALLS, close=False)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == -signal.SIGKILL
    tape = open_tape(path)
    assert "cut off" in tape.cut
    assert (
        replayed(path)[-1]["link"].state == "attached" and tape.picture_at(tape.moments[-1]).host is not None
    )


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "a.top"
    path.write_text("mine")
    with pytest.raises(Failure, match="not written over"):
        RecordingStore(path)
    assert path.read_text() == "mine"
    with pytest.raises(Failure, match="cannot be written"):
        RecordingStore(tmp_path / "nowhere" / "a.top")


def test_others_may_not_read_it(tmp_path: Path) -> None:
    record(tmp_path / "a.top", ["attached"])
    assert (tmp_path / "a.top").stat().st_mode & 0o777 == 0o600


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses to write past it, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_disk_that_refuses_ends_the_recording_and_not_the_console(tmp_path: Path) -> None:
    path = tmp_path / "a.top"
    store = RecordingStore(path, Clock())
    TOLD["attached"](store)
    with files_of_at_most(path.stat().st_size + 100):
        for number in range(50):
            store.snapshot(snapshot(running=number, waiting=number * 7919), READ.time)
    assert "a.top" in store.trouble and store.picture.snapshot is not None
    assert store.picture.snapshot.running == 49
    store.close()
    assert "cut off" in open_tape(path).cut


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"hello world", "no recording of `arc top --record`"),
        (b"ARCREC01" + bytes(100), "no recording of this version"),
        (b"ARCTOP99" + bytes(100), "another version"),
        (MAGIC, "nothing whole to show"),
        (MAGIC + bytes(100), "nothing whole to show"),
        (bytes(range(255, -1, -1)) * 20, "no recording of `arc top --record`"),
    ],
    ids=["empty", "text", "short flight recording", "newer", "magic alone", "magic and nothing", "binary"],
)  # fmt: skip
def test_what_is_no_recording_is_refused_with_what_it_is(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.top"
    path.write_bytes(content)
    with pytest.raises(Failure, match=says) as caught:
        open_tape(path)
    assert str(path) in caught.value.message and "\n" not in caught.value.message


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="No such file"):
        open_tape(tmp_path / "none")


def test_a_recording_is_compact(tmp_path: Path) -> None:
    """Snapshots of a second are alike: a tenth of their JSON is more than they take."""
    path = tmp_path / "a.top"
    store = RecordingStore(path, Clock())
    TOLD["attached"](store)
    start = path.stat().st_size
    plain = 0
    for number in range(400):
        each = snapshot(running=number % 17, step=number, step_age=number * 0.001)
        plain += len(msgspec.json.encode(each))
        store.snapshot(each, READ.time)
    assert (path.stat().st_size - start) * 10 < plain


def test_of_a_long_table_the_first_thousand_are_kept_and_how_many_there_were(tmp_path: Path) -> None:
    row = recorded().sequences.sequences[0]
    rows = tuple(msgspec.structs.replace(row, id=f"r{number}", number=number) for number in range(3000))
    table = msgspec.structs.replace(recorded().sequences, total=3000, listed=3000, sequences=rows)
    store = RecordingStore(tmp_path / "long")
    nothing = p.History(step=1.0, bounds=(), samples=(), marks=())
    store.attached(recorded().hello, nothing, p.Events(last=0, gap=None, events=()), 0.0)
    store.put(sequences=table)
    assert store.picture.sequences is table  # the console itself shows all
    store.close()
    replayed = Store()
    for frame in read(tmp_path / "long", (tmp_path / "long").read_bytes()).frames:
        frame.tell(replayed)
    kept = replayed.picture.sequences
    assert kept is not None and (kept.total, kept.listed) == (3000, RECORDED_SEQUENCES)
    assert kept.sequences == rows[:RECORDED_SEQUENCES]
