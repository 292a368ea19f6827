"""docs/flags.md, written from the registry: `make docs` runs this, a test compares it with what is committed."""

from __future__ import annotations

from itertools import groupby

from .flags import ENVIRONMENT, FLAGS, Flag, environment_name, show

_HEAD = """\
# Flags

Written by `make docs` from the registry (engine/flags.py); edit there.

A flag's value is the highest of: default < profile < arc.toml < environment < command line < runtime. In a TOML file
`sched.max_running` is `max_running` in the table `[sched]`; on the command line it is `--sched.max_running 8` or
`--set sched.max_running=8`. On and off are `true` and `false` in TOML. `live` flags also change while the engine runs,
at the next step border; `restart` flags are refused at runtime, by name.
"""


def page() -> str:
    """The whole page in Markdown."""
    parts = [_HEAD]
    for group, flags in groupby(FLAGS.values(), key=lambda flag: flag.group):
        parts.append(f"\n## {group}\n")
        parts.extend(_entry(flag) for flag in flags)
    parts.append("\n## Environment names that are no flags\n\n")
    parts.extend(f"- `{name}`: {meaning}.\n" for name, meaning in ENVIRONMENT.items())
    parts.append(
        "\nAny other name that starts with `ARC_` is refused, so that a misspelt one is not overlooked.\n"
    )
    return "".join(parts)


def _entry(flag: Flag) -> str:
    lines = [
        f"\n### {flag.name}\n",
        f"{flag.meaning[0].upper()}{flag.meaning[1:]}.\n",
        f"- values: {flag.allowed}; default `{show(flag.default)}`",
        f"- reach: {flag.reach}; environment: `{environment_name(flag)}`",
    ]
    if flag.form:
        lines.append(f"- form: `{flag.form}`")
    if flag.danger is not None:
        lines.append(f"- when changed live: {flag.danger}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
