"""How the `arc` command ends: its exit codes, and the error that carries one."""

from __future__ import annotations

import enum

import click


class Exit(enum.IntEnum):
    """Exit codes are part of the interface: scripts rely on them (docs/operations.md)."""

    OK = 0
    ERROR = 1  # the work could not be done; the message says why and what to do next
    USAGE = 2  # the command line itself is wrong
    NO_ENGINE = 3  # no engine answers under this name
    REFUSED = 4  # the engine answered, and refused


class Failure(click.ClickException):
    """The work could not be done: a message on stderr. Subclasses have exit codes of their own."""

    exit_code = Exit.ERROR
