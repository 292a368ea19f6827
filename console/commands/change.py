"""`arc set`, `arc unset`, `arc apply`, `arc pause`, `arc resume`: changes to a running engine, all of each or none."""

from __future__ import annotations

import click
import msgspec

from ...engine.control import protocol as p
from ...engine.flags import FLAGS, Reach, Value, show
from ...engine.options import complete_profile
from .. import shown
from ..client import connect
from ..durations import Duration
from ..engine_option import complete_flag, engine_option, json_option, print_json, why_option
from ..profile_values import profile_values

for_option = click.option(
    "--for",
    "ttl",
    type=Duration(),
    metavar="TIME",
    help="Let the engine itself take it back after 30s, 5m, 2h ...",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would happen and do nothing.")


@click.command("set")
@click.argument("assignments", nargs=-1, required=True, metavar="FLAG=VALUE...", shell_complete=complete_flag)
@why_option
@for_option
@dry_run_option
@click.option(
    "--expect", "expect_version", type=int, metavar="VERSION", help="Only if nobody changed anything since."
)
@engine_option
@json_option
def set_(
    *,
    assignments: tuple[str, ...],
    reason: str,
    ttl: float | None,
    dry_run: bool,
    expect_version: int | None,
    engine: str | None,
    as_json: bool,
) -> None:
    """Change flags while the engine runs: all of them at one step border, or none."""
    patch = p.FlagsPatch(
        changes=_assigned(assignments), reason=reason, expect_version=expect_version, ttl=ttl, dry_run=dry_run
    )
    with connect(engine) as client:
        _show(client.patch("/v1/flags", patch, p.Applied), as_json)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="FLAG...", shell_complete=complete_flag)
@why_option
@engine_option
@json_option
def unset(names: tuple[str, ...], reason: str, engine: str | None, as_json: bool) -> None:
    """Take runtime values away: back to the command line's, the environment's, arc.toml's or the profile's value."""
    with connect(engine) as client:
        for name in names:
            if "/" in name or not name:
                raise click.BadParameter(f"{name!r} is no flag's name")
            _show(client.delete(f"/v1/flags/{name}", p.Applied, reason=reason or None), as_json)


@click.command()
@click.argument("profile", shell_complete=complete_profile)
@why_option
@for_option
@dry_run_option
@engine_option
@json_option
def apply(
    *, profile: str, reason: str, ttl: float | None, dry_run: bool, engine: str | None, as_json: bool
) -> None:
    """Apply a profile's live flags at once, and list those that need a restart.

    Profiles are searched in ./profiles, then among the shipped ones.
    """
    wanted = profile_values(profile)
    with connect(engine) as client:
        now = {flag.name: flag.value for flag in client.get("/v1/flags", p.Flags).flags}
        differing = {name: value for name, value in wanted.items() if now.get(name) != value}
        live = {name: value for name, value in differing.items() if FLAGS[name].reach is Reach.LIVE}
        if live:
            patch = p.FlagsPatch(
                changes=live, reason=reason or f"profile {profile}", ttl=ttl, dry_run=dry_run
            )
            _show(client.patch("/v1/flags", patch, p.Applied), as_json)
        elif not as_json:
            click.echo("every live flag has the profile's value already")
    restart = [name for name in differing if name not in live]
    if restart:
        click.echo("a restart is needed for:", err=as_json)
        for name in restart:
            click.echo(f"  {name} {_known(now, name)} → {show(differing[name])}", err=as_json)


@click.command()
@why_option
@engine_option
@json_option
def pause(reason: str, engine: str | None, as_json: bool) -> None:
    """Admit nothing; what runs goes on, what arrives waits."""
    with connect(engine) as client:
        _show(client.post("/v1/actions/pause", p.ReasonBody(reason=reason), p.Applied), as_json)


@click.command()
@why_option
@engine_option
@json_option
def resume(reason: str, engine: str | None, as_json: bool) -> None:
    """Admit again after `arc pause`."""
    with connect(engine) as client:
        _show(client.post("/v1/actions/resume", p.ReasonBody(reason=reason), p.Applied), as_json)


def _assigned(assignments: tuple[str, ...]) -> dict[str, Value]:
    """The changes as text: the engine's own registry reads them, so that console and engine may differ in version."""
    changes: dict[str, Value] = {}
    for assignment, following in zip(assignments, (*assignments[1:], ""), strict=True):
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            value = following if following and "=" not in following else "VALUE"
            right = f"{assignment}={value}" if name else "FLAG=VALUE"
            raise click.BadParameter(f"{assignment!r} gives no flag a value: write {right}")
        if name in changes:
            raise click.BadParameter(f"{name} is given twice")
        changes[name] = text
    return changes


def _known(values: dict[str, Value], name: str) -> str:
    return show(values[name]) if name in values else "(unknown to this engine)"


def _show(applied: p.Applied, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.json.encode(applied))
        return
    changed = {name: change for name, change in applied.changes.items() if change.old != change.new}
    for name, change in changed.items():
        click.echo(f"{name} {show(change.old)} → {show(change.new)}")
    same = [name for name in applied.changes if name not in changed]
    if same:
        click.echo(f"unchanged: {', '.join(f'{name} is {show(applied.changes[name].new)}' for name in same)}")
    for drain in applied.drains:
        click.echo(f"  {drain}")
    if applied.dry_run:
        click.echo(f"dry run: nothing was changed; it would take effect at step {applied.step:,}")
    else:
        click.echo(f"from step {applied.step:,} on, version {applied.version}{_until(applied)}")


def _until(applied: p.Applied) -> str:
    return "" if applied.until is None else f"; the engine takes it back at {shown.clock(applied.until)}"
