"""One screen without a terminal: as text, or as the data behind it. No Textual is loaded."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from ...engine.control import protocol as p
from ..client import Client
from . import header
from .host import Host, HostReader
from .lines import ascii_only, text_of
from .reader import attach
from .scene import SPANS, Scene
from .store import Picture, Store
from .views.catalogue import make_views

_BETWEEN = 0.1  # seconds between the two readings that a process's CPU share needs


class Data(msgspec.Struct, frozen=True):
    """What `arc top --json` prints. `window` is the snapshot's: the last 60 seconds."""

    hello: p.Hello
    snapshot: p.Snapshot
    flags: p.Flags
    memory: p.Memory
    host: Host
    events: p.Events


def picture_of(path: Path) -> Picture:
    """Everything that a screen shows, asked once."""
    store = Store()
    with Client(path) as client:
        hello = attach(client, store)
        host = HostReader(hello.pid, hello.device)
        host.read()
        time.sleep(_BETWEEN)
        store.put(
            sequences=client.get_fresh("/v1/sequences", p.Sequences, _all_listed),
            memory=client.get("/v1/memory", p.Memory),
            host=host.read(),
        )
        store.snapshot(client.get("/v1/snapshot", p.Snapshot), time.time())
    return store.picture


def _all_listed(found: p.Sequences) -> bool:
    return found.listed >= found.total


def _lists_all(found: p.Snapshot) -> bool:
    return found.sequences is not None and len(found.sequences) >= found.running + found.waiting


def screen(path: Path, view: int, size: tuple[int, int], ascii_text: bool) -> str:
    return draw(picture_of(path), view, size, ascii_text)


def draw(picture: Picture, view: int, size: tuple[int, int], ascii_text: bool) -> str:
    width, height = max(80, size[0]), max(24, size[1])
    views = make_views()
    scene = Scene(picture, SPANS[1], None, time.time(), ascii_text)
    names = [(each.name, each.short) for each in views]
    lines = [header.header(scene, width), header.tabs(names, view, scene, 0, width), *header.alarms(scene)]
    lines += views[view].lines(scene, width, height - len(lines) - 1)
    text = "\n".join(text_of(line).rstrip() for line in lines)
    return ascii_only(text) if ascii_text else text


def data(path: Path) -> str:
    with Client(path) as client:
        hello = client.get("/v1/hello", p.Hello)
        host = HostReader(hello.pid, hello.device)
        host.read()
        time.sleep(_BETWEEN)
        shown = Data(
            hello=hello,
            snapshot=client.get_fresh("/v1/snapshot", p.Snapshot, _lists_all, window=60.0, sequences=True),
            flags=client.get("/v1/flags", p.Flags),
            memory=client.get("/v1/memory", p.Memory),
            host=host.read(),
            events=client.get("/v1/events", p.Events, limit=1000),
        )
    return msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()
