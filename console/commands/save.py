"""`arc save`: what was changed at runtime, back into arc.toml. Comments, order and file mode are kept."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AbstractTable

from ...engine.config import FILE_NAME, digest
from ...engine.control import paths
from ...engine.control import protocol as p
from ...engine.flags import Value, show
from ..client import connect
from ..engine_option import engine_option
from ..exits import Failure
from ..files import write_whole

_COVERING = ("environment", "command line")


@click.command()
@click.argument("names", nargs=-1, metavar="[FLAG]...")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@engine_option
def save(names: tuple[str, ...], dry_run: bool, engine: str | None) -> None:
    """Write the flags that were changed at runtime to the engine's arc.toml, so that the next start has them.

    Values that came from the command line or the environment are never written, nor are time-limited ones. Refuses when
    arc.toml was changed since the engine read it, other than by `arc save`.
    """
    with connect(engine) as client:
        hello = client.get("/v1/hello", p.Hello)
        config = client.get("/v1/config", p.Config)
        flags = client.get("/v1/flags", p.Flags)
    if config.version != flags.version:
        raise Failure("the settings are being changed right now: try again")
    changed = _changed(config, flags, names)
    if not changed:
        click.echo("nothing to save: no flag has a lasting runtime value")
        return
    path = Path(config.folder) / FILE_NAME
    written = write_changes(path, changed, Saves(hello, config), dry_run=dry_run)
    if not written:
        click.echo(f"nothing to write: {path} has these values already")
        return
    for name, value in changed.items():
        click.echo(f"{name} = {show(value)}")
        for layer in config.values[name].layers:
            if layer.origin.layer in _COVERING:
                where = layer.origin.where
                click.echo(
                    f"  mind: {where} says {show(layer.value)} and covers {FILE_NAME} at the next start"
                )
    click.echo("dry run: nothing was written" if dry_run else f"written to {path}")


def _changed(config: p.Config, flags: p.Flags, names: tuple[str, ...]) -> dict[str, Value]:
    """The lasting runtime values, of `names` alone if any are given."""
    changed: dict[str, Value] = {}
    for flag in flags.flags:
        if flag.origin.layer != "runtime" or (names and flag.name not in names):
            continue
        if flag.until is None:
            changed[flag.name] = flag.value
        else:
            click.echo(f"{flag.name} is not saved: its runtime value is limited in time", err=True)
    for name in names:
        if name not in config.values:
            raise Failure(f"there is no flag {name!r}; `arc flags` lists them")
        if name not in changed:
            raise Failure(f"{name} has no lasting runtime value: there is nothing to save for it")
    return changed


class _Noted(msgspec.Struct, frozen=True, kw_only=True):
    """What <name>.saved holds: the contents that an `arc save` found right, and that it was about to write."""

    started: float  # the engine's: notes for an earlier engine of the same name say nothing about this one
    sha256: tuple[str | None, ...]


class Saves:
    """Which contents of arc.toml are the engine's own: what it read at its start, and what was saved for it since.

    Any other content is somebody's edit that the engine has not seen, and not to be written over.
    """

    def __init__(self, hello: p.Hello, config: p.Config) -> None:
        self._started = hello.started
        self._read = config.file_sha256
        self._path = paths.saved_path(hello.name)

    def check(self, path: Path, content: bytes | None) -> None:
        """Raises Failure when the file is not as the engine knows it."""
        if digest(content) not in (self._read, *self._noted()):
            raise Failure(
                f"{path} was {'removed' if content is None else 'changed'} since the engine read it: nothing was "
                "written. Put the values in by hand (`arc flags --changed` lists them), or restart the engine, make "
                "the changes again with `arc set`, and save"
            )

    def note(self, before: bytes | None, after: bytes) -> None:
        """Written before the file itself, so both contents are named: the write may still fail."""
        noted = _Noted(started=self._started, sha256=(digest(before), digest(after)))
        paths.private_folder(self._path.parent)
        write_whole(self._path, msgspec.json.encode(noted), mode=0o600)

    def _noted(self) -> tuple[str | None, ...]:
        content = _content(self._path)
        if content is None:
            return ()
        try:
            noted = msgspec.json.decode(content, type=_Noted)
        except msgspec.DecodeError as error:
            raise Failure(f"{self._path} is damaged ({error}): remove it and try again") from None
        return noted.sha256 if noted.started == self._started else ()


def write_changes(path: Path, changed: dict[str, Value], saves: Saves, *, dry_run: bool) -> bool:
    """Whether there was something to write.

    Raises Failure when the file cannot be read as TOML, is not as the engine knows it, or cannot be written.
    """
    before = _content(path)
    after = edited(before or b"", changed, path)
    if after == before:
        return False
    saves.check(path, before)

    def unchanged() -> None:
        if _content(path) != before:
            raise Failure(f"{path} was changed by someone else just now: nothing was written, try again")

    if not dry_run:
        saves.note(before, after)
        write_whole(path, after, mode=0o644, still_right=unchanged)
    return True


def edited(before: bytes, changed: dict[str, Value], path: Path) -> bytes:
    """The file's content with the changes in it and nothing else changed, which is checked."""
    try:
        text = before.decode("utf-8")
        document = tomlkit.parse(text)
        wanted = document.unwrap()
        for name, value in changed.items():
            table, _, key = name.rpartition(".")
            place, plain = document, wanted
            for part in table.split("."):
                if part not in place:
                    place[part] = tomlkit.table()
                child = place[part]
                if not isinstance(child, AbstractTable | dict):
                    raise Failure(f"{path}: {table} is no table there; correct the file and try again")
                place = child
                plain = plain.setdefault(part, {})
            place[key] = value
            plain[key] = value
        after = tomlkit.dumps(document)
        if tomlkit.parse(after).unwrap() != wanted:
            raise Failure(
                f"{path} is written in a way that cannot be edited safely; add these by hand: "
                + ", ".join(f"{name} = {show(value)}" for name, value in changed.items())
            )
    except (UnicodeDecodeError, TOMLKitError) as error:
        raise Failure(f"{path} is not TOML: {error}; correct it and try again") from None
    return after.encode("utf-8")


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None
