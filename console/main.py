"""The `arc` command. Nothing heavy is imported here: every subcommand brings its own imports."""

from __future__ import annotations

import click

from .lazy import LazyCommand

# name: (module:command, summary). A module is relative to this package and imported when its command runs.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": (".commands.up:up", "Start an engine unless it runs, and open the console."),
    "serve": (".commands.serve:serve", "Start an engine in this folder."),
    "check": (".commands.check:check", "Check this folder's configuration without starting."),
    "profiles": (".commands.profiles:profiles", "List profiles, or show one with each value's source."),
    "status": (".commands.status:status", "Show what the engine is doing now."),
    "top": (".commands.top:top", "Open the console: watch an engine and change it while it runs."),
    "replay": (
        ".commands.replay:replay",
        "Replay a recording of the console or of an engine's last minutes.",
    ),
    "ps": (".commands.ps:ps", "List the engines on this machine."),
    "flags": (".commands.flags:flags", "List flags: value, source, bounds, reach, meaning."),
    "get": (".commands.flags:get", "Print one flag's value."),
    "set": (".commands.change:set_", "Change flags while the engine runs."),
    "unset": (".commands.change:unset", "Take runtime values away."),
    "apply": (".commands.change:apply", "Apply a profile's live flags at once."),
    "save": (".commands.save:save", "Write runtime values to arc.toml."),
    "events": (".commands.events:events", "Show what happened, and with -f what happens."),
    "sequences": (".commands.sequences:sequences", "List what runs and what waits, and why."),
    "spans": (".commands.spans:spans", "Show where the time of a step goes, span by span."),
    "profile": (".commands.profile:profile", "Record a timeline of some seconds, or compare two."),
    "cancel": (".commands.sequences:cancel", "Cancel sequences by id."),
    "pause": (".commands.change:pause", "Admit nothing; what runs goes on."),
    "resume": (".commands.change:resume", "Admit again."),
    "drain": (".commands.drain:drain", "Finish the work there is, then stop the engine."),
    "trim": (".commands.trim:trim", "Give the allocator's free buffers back to the system."),
    "kernels": (".commands.kernels:kernels", "Show which backend runs what; check and measure kernels."),
    "mark": (".commands.mark:mark", "Put a named line into events and charts."),
    "bench": (".commands.bench:bench", "Send load and measure, or run an experiment on an engine."),
    "ab": (".commands.ab:ab", "Find the better of two values of a flag, on live traffic."),
    "dump": (".commands.dump:dump", "Write everything known to a file, or read a flight recording."),
}


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from ..engine.version import revision, version

    click.echo(f"arc {version()} ({revision()})")
    context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the git revision.",
)
def arc() -> None:
    """Serve DeepSeek-family models, and operate the engine while it runs."""


for _name, (_target, _summary) in COMMANDS.items():
    arc.add_command(LazyCommand(_name, _target, _summary))


def main() -> None:
    arc(prog_name="arc")
