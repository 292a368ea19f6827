"""The answers, built from what the port shows. Pure reads: nothing here changes the engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ..config import Origin, Settings
from ..flags import FLAGS
from ..telemetry.records import SECONDS, Counters
from .changes import Pending
from .engine_port import ControlPort, Published, Table
from .history import History
from .listening import Peer
from .protocol import (
    NA,
    PROTOCOL,
    Config,
    ConfigEntry,
    Flags,
    FlagView,
    Hello,
    KernelLine,
    Kernels,
    LayerView,
    Memory,
    MemoryPart,
    OriginView,
    Role,
    Sequences,
    Snapshot,
    State,
)

LATENCY_BOUNDS = SECONDS

_CAPABILITIES = (
    "actions", "allocator", "config", "events", "flags", "history", "kernels", "memory", "sequences", "snapshot",
    "spans", "stream", "trace",
)  # fmt: skip


def hello(port: ControlPort, peer: Peer, role: Role, recorder: str | NA, api: str | NA) -> Hello:
    info = port.info
    return Hello(
        protocol=PROTOCOL,
        name=info.name,
        version=info.version,
        revision=info.revision,
        pid=info.pid,
        model=info.model,
        model_path=info.model_path,
        model_type=info.model_type,
        parameters=info.parameters,
        dtype=info.dtype,
        device=info.device,
        max_model_len=info.max_model_len,
        page_size=info.page_size,
        pages=info.pages,
        profile=info.profile,
        started=info.started,
        config_version=port.settings.version,
        role=role,
        uid=peer.uid,
        capabilities=_CAPABILITIES,
        recorder=recorder,
        api=api,
    )


def kernels(port: ControlPort) -> Kernels:
    info = port.info
    return Kernels(
        device=info.device,
        dtype=info.dtype,
        operations=tuple(
            KernelLine(operation=use.operation, backend=use.backend, refused=use.refused)
            for use in info.kernels
        ),
        graphs=port.graphs(),
    )


def snapshot(port: ControlPort, history: History, window: float) -> Snapshot:
    """Everything of one glance. The gauges are the newest published ones; the rates go up to now."""
    published = port.published()
    counters, settings = port.counters, port.settings
    recent, life = history.window(window)
    now = time.monotonic()
    wall = time.time()
    open_since, last_step_at = counters.step_open_since, counters.last_step_at
    steps = port.step_ring
    return Snapshot(
        time=wall,
        uptime=wall - port.info.started,
        state=state(counters, settings, published, now),
        age=now - published.taken,
        step=published.step,
        step_age=None if last_step_at is None else now - last_step_at,
        step_open=None if open_since is None else now - open_since,
        running=published.running,
        waiting=published.waiting,
        waiting_by_reason=published.waiting_by_reason,
        effective_batch=published.effective_batch,
        pages=published.pages,
        window=recent,
        life=life,
        last_step=steps[-1] if steps else None,
        config_version=settings.version,
        changed=settings.differs(),
        last_event=port.events.last,
        speculation=published.speculation,
        instruments=port.instruments(),
    )


def state(counters: Counters, settings: Settings, published: Published, now: float) -> State:
    """What the engine is up to, worst first."""
    paused = settings.get_bool("sched.paused")
    has_work = counters.running > 0 or (counters.waiting > 0 and not paused)
    since = max(
        each or 0.0 for each in (counters.step_open_since, counters.last_step_at, counters.work_since)
    )
    if has_work and since and now - since > settings.get_float("http.stall_s"):
        return "stalled"
    if published.draining:
        return "draining"
    return "paused" if paused else "serving"


def sequences(table: Table, limit: int | None = None) -> Sequences:
    listed = table.rows[:limit]
    return Sequences(
        step=table.step,
        age=time.monotonic() - table.taken,
        took=table.taken - table.began,
        total=table.total,
        listed=len(listed),
        sequences=listed,
    )


def flags(settings: Settings, pending: Sequence[Pending]) -> Flags:
    ends = {each.flag: each for each in pending}
    differs = frozenset(settings.differs())
    views: list[FlagView] = []
    for name, flag in FLAGS.items():
        end = ends.get(name)
        views.append(
            FlagView(
                name=name,
                value=settings[name],
                default=flag.default,
                origin=origin_view(settings.origin(name)),
                changed=name in differs,
                kind=flag.kind,
                unit=flag.unit,
                allowed=flag.allowed,
                low=flag.low,
                high=flag.high,
                choices=flag.choices,
                words=flag.words,
                reach=flag.reach.value,
                meaning=flag.meaning,
                danger=flag.danger,
                until=end.until if end else None,
                then=end.back_to if end else None,
            )
        )
    return Flags(version=settings.version, flags=tuple(views))


def config(settings: Settings) -> Config:
    return Config(
        version=settings.version,
        profile=settings.profile,
        profile_from=origin_view(settings.profile_from),
        folder=str(Path.cwd()),
        file_sha256=settings.file_sha256,
        values={
            name: ConfigEntry(
                value=settings[name],
                layers=tuple(
                    LayerView(value=layered.value, origin=origin_view(layered.origin))
                    for layered in settings.layers(name)
                ),
            )
            for name in settings
        },
    )


def origin_view(origin: Origin) -> OriginView:
    return OriginView(
        layer=origin.layer.value,
        where=origin.where,
        uid=origin.uid,
        pid=origin.pid,
        reason=origin.reason,
        step=origin.step,
        time=origin.time,
    )


def memory(parts: Sequence[MemoryPart]) -> Memory:
    """The named parts, and on the host what is left of the resident memory beside those that are resident."""
    resident, peak = _resident()
    on_host = [part.bytes for part in parts if part.place == "host" and not part.reserved]
    rest: int | NA
    if isinstance(resident, NA):
        rest = resident
    elif any(isinstance(part, NA) for part in on_host):
        rest = NA("a part of the host's memory is not known")
    else:
        rest = max(0, resident - sum(part for part in on_host if isinstance(part, int)))
    return Memory(
        resident=resident,
        peak=peak,
        parts=(*parts, MemoryPart(component="rest", place="host", bytes=rest)),
    )


def _resident() -> tuple[int | NA, int | NA]:
    """Resident memory now and at its highest, as the kernel counts it."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return (_kib(fields, "VmRSS"), _kib(fields, "VmHWM"))
    except OSError as error:
        unknown = NA(f"/proc/self/status cannot be read: {error.strerror}")
        return unknown, unknown


def _kib(fields: dict[str, str], name: str) -> int | NA:
    if name not in fields:
        return NA(f"the kernel does not state {name}")
    return int(fields[name].split()[0]) * 1024
