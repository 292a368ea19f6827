"""`arc up`: an engine in the background and the console in front of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ...engine.config import ConfigError, Settings, load
from ...engine.control import paths
from ...engine.options import settings_options
from ...engine.preflight import preflight
from ..client import answers
from ..engine_process import BackgroundEngine, engine_command, require_engine
from ..exits import Failure
from ..top_options import has_terminal, unicode_terminal
from ..uncollected import uncollected
from .serve import become_engine


@click.command()
@settings_options
def up(profile: str | None, overrides: tuple[str, ...]) -> None:
    """Start an engine in the background, unless it runs already, and open the console.

    On leaving, the console asks whether to stop the engine that it started; it never stops one that ran before.
    Without a terminal this is `arc serve`.
    """
    if not has_terminal():
        become_engine(profile, overrides)
    settings = _settings(profile, overrides)
    name = settings.get_str("control.name")
    path = paths.socket_path(paths.runtime_folder(), name)
    if not answers(path):
        engine = _started(name, profile, overrides)
        greeting = f"{name} was started; its log is {engine.log}"
        stop = _console(path, greeting, engine)
        _leave(engine, stop)
    elif profile is not None or overrides:
        raise Failure(
            f"an engine named {name} runs already, with settings of its own: change them with `arc set`, or start "
            "another with --control.name"
        )
    else:
        _console(path, f"{name} ran already; it stays when you leave", None)


def _settings(profile: str | None, overrides: tuple[str, ...]) -> Settings:
    try:
        settings = load(folder=Path.cwd(), profile=profile, environ=os.environ, overrides=overrides)
        if missing := preflight(settings):
            raise ConfigError(missing)
    except ConfigError as error:
        raise Failure(str(error)) from None
    return settings


def _started(name: str, profile: str | None, overrides: tuple[str, ...]) -> BackgroundEngine:
    require_engine()
    engine = BackgroundEngine(name, engine_command(profile, overrides))
    shown = -1

    def waiting(seconds: float) -> None:
        nonlocal shown
        if int(seconds) > shown:
            shown = int(seconds)
            click.echo(f"\rstarting {name}, {shown} s; its log is {engine.log} ", nl=False)

    try:
        engine.wait_until_it_answers(waiting)
    except KeyboardInterrupt:
        click.echo(f"\n{name} is stopped again")
        engine.stop()
        engine.wait()
        sys.exit(130)  # as the shell reports Ctrl-C
    finally:
        click.echo()
    return engine


def _console(path: Path, greeting: str, engine: BackgroundEngine | None) -> bool:
    """Whether the engine is to be stopped."""
    with uncollected():
        from ..top.app import Console, Options
        from ..top.keys import keymap_path, read_keymap

    started = engine.name if engine else ""
    theme = os.environ.get("ARC_TOP_THEME", "arc-dark")
    options = Options(
        path, theme=theme, ascii_text=not unicode_terminal(), greeting=greeting, started=started
    )
    console = Console(options, keymap=read_keymap(keymap_path()))
    console.run()
    return console.stops_engine


def _leave(engine: BackgroundEngine, stop: bool) -> None:
    if not engine.alive:
        click.echo(f"{engine.name} has ended by itself: see {engine.log} and `arc dump --post-mortem`")
    elif not stop:
        option = "" if engine.name == "main" else f" --engine {engine.name}"
        click.echo(
            f"{engine.name} goes on in the background, pid {engine.pid}, log {engine.log}: "
            f"`arc top{option}` watches it, `arc drain{option}` ends it"
        )
    else:
        click.echo(f"{engine.name} lets its requests finish, at most 30 s; Ctrl-C cancels them")
        engine.stop()
        while engine.alive:
            try:
                engine.wait()
            except KeyboardInterrupt:
                engine.stop()
        click.echo(f"{engine.name} has ended")
