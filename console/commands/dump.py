"""`arc dump`: everything known about a running engine in one file, or what the flight recorder kept of a dead one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click
import msgspec

from ...engine.control import paths, recording
from ...engine.control import protocol as p
from ...engine.flags import DEFAULTS, show
from .. import shown
from ..client import connect
from ..engine_option import engine_option, json_option, print_json, why_option
from ..exits import Failure
from ..files import write_whole

_LAST_STEPS = 10
_LAST_EVENTS = 20


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--post-mortem",
    is_flag=True,
    help="Read a flight recording (FILE, else that of --engine, else of `main`): what was the last step doing?",
)
@why_option
@engine_option
@json_option
def dump(file: Path | None, post_mortem: bool, reason: str, engine: str | None, as_json: bool) -> None:
    """Write everything known about the engine to FILE (arc-dump-NAME-TIME.json) for a report.

    Works while the engine hangs: no step border is needed.
    """
    if post_mortem:
        _post_mortem(file or paths.recording_path(engine or "main"), as_json)
        return
    with connect(engine) as client:
        raw = client.raw("POST", "/v1/actions/dump", msgspec.json.encode(p.ReasonBody(reason=reason)))
        name = client.path.stem
    if as_json and file is None:
        print_json(raw)
        return
    target = file or Path(time.strftime(f"arc-dump-{name}-%Y%m%d-%H%M%S.json"))
    write_whole(target, raw, mode=0o600)
    click.echo(
        f"{target} ({len(raw):,} bytes): it names files, users and request ids, but holds no text of requests"
    )


def _post_mortem(path: Path, as_json: bool) -> None:
    try:
        recorded = recording.read(path)
    except FileNotFoundError:
        raise Failure(f"there is no recording at {path}; {_others(path)}") from None
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None
    except recording.RecordingError as error:
        raise Failure(str(error)) from None
    if as_json:
        print_json(msgspec.json.encode(recorded))
        return
    for line in _report(recorded):
        click.echo(line)


def _others(path: Path) -> str:
    found = sorted(str(each) for each in path.parent.glob("*.rec*")) if path.parent.is_dir() else []
    return f"there are {', '.join(found)}" if found else f"{path.parent} has none"


def _report(recorded: recording.Recording) -> list[str]:
    header = recorded.header
    lines = [
        f"{header.name}  {shown.plain(header.model)} on {header.device}  arc {header.version} ({header.revision})  "
        f"pid {header.pid}  started {shown.clock(header.started)}",
        _end(recorded),
        _last_step(recorded),
    ]
    if recorded.torn:
        lines.append(f"{recorded.torn} records were cut off in the middle of being written and are left out")
    if recorded.steps:
        lines += ["", f"the last {min(_LAST_STEPS, len(recorded.steps))} of {len(recorded.steps)} kept steps"]
        lines += shown.table(
            _STEPS, [_step(recorded, each) for each in recorded.steps[-_LAST_STEPS:]], _STEPS_RIGHT
        )
    differing = {name: value for name, value in recorded.values.items() if value != DEFAULTS.get(name)}
    lines += ["", "flags in force that are not the defaults" if differing else "all flags had their defaults"]
    lines += [f"  {name} = {show(value)}" for name, value in differing.items()]
    for title, events in (("flag changes", recorded.flags), ("events", recorded.events)):
        if events:
            lines += ["", f"the last {title}"]
            lines += [
                f"  {shown.clock(each.time)}  {each.kind:<10} {shown.plain(each.text)}"
                for each in events[-_LAST_EVENTS:]
            ]
    return lines


def _end(recorded: recording.Recording) -> str:
    if recorded.ended is not None:
        return f"it ended on purpose at {shown.clock(recorded.ended)}"
    if _lives(recorded.header):
        return f"pid {recorded.header.pid} still lives: this is a picture of now"
    return f"it was killed or crashed; the last sign of it is of {shown.clock(recorded.last_sign)}"


def _last_step(recorded: recording.Recording) -> str:
    if recorded.open_step is not None:
        return (
            f"step {recorded.open_step:,} was under way with {recorded.open_rows} rows, begun at "
            f"{shown.clock(recorded.last_sign)}"
            + ("" if recorded.ended is None and _lives(recorded.header) else ": the engine ended inside it")
        )
    if not recorded.steps:
        return "no step ever ran"
    return f"no step was under way; the last one, {int(recorded.steps[-1]['index']):,}, had ended"


_STEPS = (
    "step",
    "at",
    "wall",
    "forward",
    "rows",
    "prompt tokens",
    "waiting",
    "preempted",
    "pages used",
    "free",
)
_STEPS_RIGHT = frozenset(range(2, len(_STEPS)))


def _step(recorded: recording.Recording, step: dict[str, float]) -> tuple[str, ...]:
    return (
        f"{step['index']:,.0f}",
        shown.clock(recorded.wall(step["started"])),
        shown.seconds(step["wall"]),
        shown.seconds(step["forward"]),
        *(
            f"{step[name]:,.0f}"
            for name in ("rows", "prompt_tokens", "waiting", "preempted", "pages_used", "pages_free")
        ),
    )


def _lives(header: recording.Header) -> bool:
    """Whether the recording process is still there: not a zombie, and no later process under its number."""
    try:
        state, *rest = Path(f"/proc/{header.pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, StopIteration):
        return False
    began = int(boot.split()[1]) + int(rest[18]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5): starttime
    return state not in "ZX" and began <= header.started + 1
