"""`arc serve`: one process from its settings to its exit code.

Order: settings, the two addresses (so that a name or port in use is said at once), the model, then the threads. It ends
by a drain: no new work, what runs ends, and then the parts stop in the reverse order.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from tqdm import tqdm

from . import environment
from .config import ConfigError, Settings, load
from .control.listening import AlreadyRunning, Listening
from .control.paths import PathError, private_folder, recording_path, state_folder
from .folder import CheckpointError
from .options import settings_options
from .preflight import preflight

environment.prepare()

log = logging.getLogger("arc")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class StartError(Exception):
    """The engine cannot start; the message says why and what to do."""


@click.command(help="Run the engine in the foreground until Ctrl-C or SIGTERM; both drain first.")
@settings_options
def main(profile: str | None, overrides: tuple[str, ...]) -> None:
    # Until the event loop takes them over, a signal ends the start at once: there is nothing to drain yet.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: sys.exit(0))
    _raise_file_limit()
    try:
        settings = load(folder=Path.cwd(), profile=profile, environ=os.environ, overrides=overrides)
        if missing := preflight(settings):
            raise ConfigError(missing)
        _set_up_log(settings)
        sys.exit(_run(settings))
    except (ConfigError, StartError) as error:
        for line in str(error).splitlines():
            click.echo(f"arc serve: {line}", err=True)
        sys.exit(1)


def _raise_file_limit() -> None:
    """Every stream is a descriptor, and the usual soft limit of 1,024 is below sched and http's own bounds."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _set_up_log(settings: Settings) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr)
    _set_log_level(settings)


def _set_log_level(settings: Settings) -> None:
    logging.getLogger().setLevel(_LEVELS[settings.get_str("log.level")])


def _run(settings: Settings) -> int:
    api_key = os.environ.get("ARC_API_KEY") or None
    http, control = _bind(settings)
    # Imported here: torch takes a second, and a wrong setting or a port in use is known without it.
    from ..kernels.dispatch import KernelError
    from .core.assembly import assemble
    from .core.capacity import CapacityError
    from .model.weights import WeightError
    from .service import Service

    service = Service(http, control, api_key)
    try:
        with loading_bar() as show:
            assembly = assemble(
                settings,
                progress=show,
                on_drained=service.drained,
                put_in_force=_set_log_level,
                recording=recording_path(settings.get_str("control.name")),
            )
    except (CheckpointError, WeightError, CapacityError, KernelError, ValueError) as error:
        control.close()
        raise StartError(str(error)) from error
    return service.run(assembly)


def _bind(settings: Settings) -> tuple[socket.socket, Listening]:
    host, port = settings.get_str("http.host"), settings.get_int("http.port")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host} port {port}: {error.strerror}; set http.host or http.port"
        ) from error
    group = settings.get_str("control.group")
    try:
        private_folder(state_folder())  # of the flight recorder and the audit log
        control = Listening(settings.get_str("control.name"), None if group == "none" else group)
    except (AlreadyRunning, PathError) as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(f"cannot open the control socket: {error}") from error
    return bound, control


@contextmanager
def loading_bar() -> Iterator[Callable[[int, int], None]]:
    """Shows bytes read of bytes to read while the model loads; silent where nobody looks."""
    with tqdm(
        unit="B", unit_scale=True, desc="loading", file=sys.stderr, disable=None, leave=False, delay=0.5
    ) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


if __name__ == "__main__":
    main()
