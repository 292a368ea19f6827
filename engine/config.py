"""The settings of one engine, and where each value came from.

Layers, lowest first: default < profile < arc.toml < environment < command line < runtime. Every layer that
sets a flag is kept, so that taking a runtime value away uncovers the one below. `load` reports all problems at
once, each with its place. Settings are immutable: a change makes new ones with a higher version, and readers of
the old see one consistent set.
"""

from __future__ import annotations

import codecs
import enum
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from .flags import (
    ENVIRONMENT,
    FLAGS,
    FlagError,
    FlagReason,
    Reach,
    Value,
    check,
    check_together,
    did_you_mean,
    environment_name,
    lookup,
    nearest,
    parse,
)

FILE_NAME = "arc.toml"
DEFAULT_PROFILE = "default"
# Beside this package's folder in a checkout and in an installed wheel alike.
SHIPPED_PROFILES = Path(__file__).resolve().parent.parent / "profiles"
_NAMES_A_PROFILE = 'the profile is named by a first line `extends = "default"` of arc.toml'
_TABLES = frozenset((flag.group,) for flag in FLAGS.values())
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SENDABLE = re.compile(r"[!-~]+", re.ASCII)  # an API key that arrives as it was sent
_LARGEST_FILE = 1 << 20  # bytes; a settings file is a page of text


class Layer(enum.StrEnum):
    """Lowest first: a later layer covers an earlier one."""

    DEFAULT = "default"
    PROFILE = "profile"
    FILE = "arc.toml"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from. The fields after `where` are known for runtime changes only."""

    layer: Layer
    where: str  # "engine/flags.py", "arc.toml:12", "ARC_SCHED_ORDER", "uid 1000"
    uid: int | None = None
    pid: int | None = None
    reason: str | None = None
    step: int | None = None  # the step border at which it took effect
    time: float | None = None  # time.time()


@dataclass(frozen=True, slots=True)
class Layered:
    """One layer's value of one flag."""

    value: Value
    origin: Origin


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the configuration, and its place: "arc.toml:12", "ARC_SCHED_ORDR"."""

    where: str
    message: str
    flag: str | None = None
    reason: FlagReason | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class ConfigError(Exception):
    """The configuration cannot be used; `problems` holds every reason, never only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class Refused(Exception):
    """A runtime change was refused as a whole; `errors` has one reason for each flag at fault."""

    def __init__(self, errors: Sequence[FlagError]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = tuple(errors)


@dataclass(frozen=True, slots=True)
class Settings:
    """A complete set of valid values. `settings["sched.max_running"]` is the effective value."""

    profile: str
    profile_from: Origin  # who chose the profile
    version: int  # 0 as loaded; rises with each runtime change
    file_sha256: str | None  # of the arc.toml that was read, in hex; None: there was none
    _layers: Mapping[str, tuple[Layered, ...]]  # of every flag, lowest layer first, at least the default

    def __getitem__(self, name: str) -> Value:
        return self._of(name)[-1].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def values(self) -> dict[str, Value]:
        return {name: layered[-1].value for name, layered in self._layers.items()}

    def origin(self, name: str) -> Origin:
        """Where the effective value came from."""
        return self._of(name)[-1].origin

    def layers(self, name: str) -> tuple[Layered, ...]:
        """All layers that set the flag, lowest first; the last one is in effect."""
        return self._of(name)

    def get_bool(self, name: str) -> bool:
        value = self[name]
        assert isinstance(value, bool), name
        return value

    def get_int(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int) and not isinstance(value, bool), name
        return value

    def get_int_or_none(self, name: str) -> int | None:
        """A number, or None where a word ("auto", "none") stands."""
        return None if isinstance(self[name], str) else self.get_int(name)

    def get_float(self, name: str) -> float:
        value = self[name]
        assert isinstance(value, float), name
        return value

    def get_str(self, name: str) -> str:
        value = self[name]
        assert isinstance(value, str), name
        return value

    def with_runtime(self, changes: Mapping[str, object], origin: Origin) -> Settings:
        """These settings with live flags changed: all of them, or Refused with a reason for each flag at fault."""
        return self.with_layers({name: Layered(value, origin) for name, value in changes.items()})  # pyright: ignore[reportArgumentType]  # checked there

    def without_runtime(self, names: Iterable[str]) -> Settings:
        """These settings with the flags back at the layer below; the same object when none had a runtime value."""
        return self.with_layers(dict.fromkeys(names))

    def with_layers(self, runtime: Mapping[str, Layered | None]) -> Settings:
        """These settings with the runtime layers of some flags replaced, or taken away where None stands.

        All of them, or Refused with a reason for each flag at fault. The same object when nothing was there to take.
        """
        errors: list[FlagError] = []
        changed: dict[str, tuple[Layered, ...]] = {}
        for name, layered in runtime.items():
            try:
                top = () if layered is None else (_checked(name, layered),)
                layers = (*self._below(name), *top)
                if layered is not None or layers != self._of(name):
                    changed[name] = layers
            except FlagError as error:
                errors.append(error)
        if errors:
            raise Refused(errors)
        return self._changed(changed)

    def differs(self) -> tuple[str, ...]:
        """The flags whose value is not the profile's own (the default where the profile is silent)."""
        return tuple(name for name in self._layers if self[name] != self._profile_value(name))

    def _of(self, name: str) -> tuple[Layered, ...]:
        layered = self._layers.get(name)
        if layered is None:
            lookup(name)  # raises with the nearest names
            raise KeyError(name)
        return layered

    def _below(self, name: str) -> tuple[Layered, ...]:
        return tuple(layered for layered in self._of(name) if layered.origin.layer is not Layer.RUNTIME)

    def _profile_value(self, name: str) -> Value:
        low = [each for each in self._of(name) if each.origin.layer in (Layer.DEFAULT, Layer.PROFILE)]
        return low[-1].value

    def _changed(self, layers: Mapping[str, tuple[Layered, ...]]) -> Settings:
        if not layers:
            return self
        changed = replace(
            self, version=self.version + 1, _layers=MappingProxyType({**self._layers, **layers})
        )
        if conflicts := check_together(changed.values()):
            raise Refused([_blame(conflict, layers) for conflict in conflicts])
        return changed


def _checked(name: str, layered: Layered) -> Layered:
    """A runtime layer with its value checked, or FlagError."""
    assert layered.origin.layer is Layer.RUNTIME
    flag = lookup(name)
    if flag.reach is not Reach.LIVE:
        message = f"{name} is read at start only; set it in {FILE_NAME} and restart"
        raise FlagError(name, FlagReason.RESTART, message)
    return Layered(check(flag, layered.value), layered.origin)


def _blame(conflict: FlagError, changed: Mapping[str, object]) -> FlagError:
    """The conflict under the name of a flag that was changed: the settings before the change had none."""
    names = (conflict.flag, *conflict.related)
    flag = next((name for name in names if name in changed), conflict.flag)
    related = tuple(name for name in names if name != flag)
    return FlagError(flag, conflict.reason, conflict.message, related)


def load(
    *, folder: Path, profile: str | None = None, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> Settings:
    """The settings of an engine that starts in `folder`, or ConfigError with all problems.

    `profile` and `overrides` ("flag=value") come from the command line. The profile is the one that the command
    line names, else ARC_PROFILE, else what arc.toml extends, else "default"; `folder`/profiles is searched before
    the shipped ones.
    """
    return _Loader(folder).load(profile, environ, overrides)


def profile_files(folder: Path) -> dict[str, Path]:
    """All profiles by name: those of `folder`/profiles, then the shipped ones that they do not cover."""
    files: dict[str, Path] = {}
    for place in (folder / "profiles", SHIPPED_PROFILES):
        for path in sorted(place.glob("*.toml")):
            if _PROFILE_NAME.fullmatch(path.stem) and path.is_file():
                files.setdefault(path.stem, path)
    return files


def no_profile(name: str, files: Iterable[str]) -> str:
    """What to say when none of the profiles `files` is called `name`."""
    hint = did_you_mean(name, files) or f"; there are {', '.join(files) or 'none'}"
    return f"there is no profile {name!r}{hint}"


def profile_description(path: Path) -> str:
    """The profile's own line about itself; empty when it has none, the problem when it cannot be read."""
    entries, problems = read_toml(path, path.name)
    lines = [entry.value for entry in entries if entry.path == ("description",)]
    return str(problems[0]) if problems else "".join(map(str, lines))


@dataclass(frozen=True, slots=True)
class Entry:
    """One `key = value` of a TOML file. The name is dotted: the table's and the key's own."""

    path: tuple[str, ...]
    value: object
    line: int  # where the statement begins, 1-based

    @property
    def name(self) -> str:
        return ".".join(self.path)


def read_toml(path: Path, shown: str) -> tuple[list[Entry], list[Problem]]:
    """The entries of a TOML file in order, with their lines; a file that cannot be read is one problem."""
    content = _read(path, shown)
    return ([], [content]) if isinstance(content, Problem) else _entries(content, shown)


def digest(content: bytes | None) -> str | None:
    """What `Settings.file_sha256` is for an arc.toml with this content; None where there is no file."""
    return None if content is None else hashlib.sha256(content).hexdigest()


def _read(path: Path, shown: str) -> bytes | Problem:
    try:
        if path.is_fifo() or path.is_socket() or path.is_char_device():  # it would be waited for
            return Problem(shown, "it is no regular file")
        if path.stat().st_size > _LARGEST_FILE:
            return Problem(shown, f"larger than {_LARGEST_FILE} bytes: this is no settings file")
        return path.read_bytes()
    except OSError as error:
        return Problem(shown, f"cannot be read: {error.strerror}")


def _entries(content: bytes, shown: str) -> tuple[list[Entry], list[Problem]]:
    import tomli  # the console's commands that read no file do not pay for it

    if content.startswith(codecs.BOM_UTF8):
        return [], [Problem(f"{shown}:1", "begins with a byte order mark: save it as UTF-8 without one")]
    try:
        text = content.decode("utf-8").replace("\r\n", "\n")
        tomli.loads(text)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return [], [Problem(f"{shown}:{line}", f"not UTF-8 at byte {error.start}")]
    except tomli.TOMLDecodeError as error:
        return [], [Problem(f"{shown}:{error.lineno}", f"not TOML: {error.msg} (column {error.colno})")]
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; arrays nested as deep
        return [], [Problem(shown, f"not TOML that can be read: {error}")]
    return list(_statements(text)), []


def _statements(text: str) -> Iterator[Entry]:
    """The statements of valid TOML, one by one, found by the parser itself.

    A statement ends with the first line at which the lines since its start parse. A table's header is a statement
    too (its value is a table or a list of tables) and names the table of those that follow.
    """
    import tomli

    table: tuple[str, ...] = ()
    pending: list[str] = []
    start = 1
    for number, line in enumerate(text.split("\n"), start=1):
        pending.append(line)
        try:
            parsed = tomli.loads("\n".join(pending))
        except tomli.TOMLDecodeError:
            continue
        is_header = pending[0].lstrip().startswith("[")
        for path, value in _flatten(parsed, ()):
            if is_header:
                table = path
                yield Entry(path, value, start)
            else:
                yield Entry(table + path, value, start)
        pending, start = [], number + 1


def _flatten(node: Mapping[str, object], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, (*path, key))
        else:
            yield (*path, key), value


def _names_profile(entry: Entry) -> bool:
    """Whether a key that is no flag was meant for `extends`: misspelt, or below a table and so a part of it."""
    *table, key = entry.path
    return key == "extends" or (not table and bool(nearest(key, ("extends", "profile"))))


class _Loader:
    """Gathers layers and problems, so that one run reports everything that is wrong."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems: list[Problem] = []
        default = Origin(Layer.DEFAULT, "the registry")
        self._layers: dict[str, list[Layered]] = {
            name: [Layered(flag.default, default)] for name, flag in FLAGS.items()
        }

    def load(self, profile: str | None, environ: Mapping[str, str], overrides: Sequence[str]) -> Settings:
        chosen = Origin(Layer.DEFAULT, "the default"), DEFAULT_PROFILE
        file_entries: list[Entry] = []
        file_sha256: str | None = None
        path = self._folder / FILE_NAME
        if path.exists() or path.is_symlink():  # a dangling link is a problem to report, not an absent file
            content = _read(path, FILE_NAME)
            if isinstance(content, Problem):
                self._problems.append(content)
            else:
                file_sha256 = digest(content)  # of the very bytes that are parsed
                file_entries, problems = _entries(content, FILE_NAME)
                self._problems += problems
        for entry in [entry for entry in file_entries if entry.path == ("extends",)]:
            file_entries.remove(entry)
            if isinstance(entry.value, str):
                chosen = Origin(Layer.FILE, f"{FILE_NAME}:{entry.line}"), entry.value
            else:
                self._problem(f"{FILE_NAME}:{entry.line}", "extends is a profile's name, in quotes")
        if "ARC_PROFILE" in environ:
            chosen = Origin(Layer.ENVIRONMENT, "ARC_PROFILE"), environ["ARC_PROFILE"]
        if profile is not None:
            chosen = Origin(Layer.COMMAND_LINE, "--profile"), profile

        self._take_profile(*chosen)
        self._take_entries(file_entries, Layer.FILE, FILE_NAME)
        self._take_environment(environ)
        self._take_overrides(overrides)
        if not self._problems:  # values that are singly wrong cannot be compared
            self._check_together()
        self._check_key(environ)
        self._check_exposure(environ)
        if self._problems:
            raise ConfigError(self._problems)
        layers = MappingProxyType({name: tuple(layered) for name, layered in self._layers.items()})
        return Settings(chosen[1], chosen[0], 0, file_sha256, layers)

    def _take_profile(self, origin: Origin, name: str) -> None:
        files = profile_files(self._folder)
        path = files.get(name)
        if path is None:
            self._problem(origin.where, no_profile(name, files))
            return
        inside = path.is_relative_to(self._folder)
        shown = str(path.relative_to(self._folder)) if inside else str(path)
        entries, problems = read_toml(path, shown)
        self._problems += problems
        for entry in [entry for entry in entries if entry.path == ("description",)]:
            entries.remove(entry)
            if not isinstance(entry.value, str):
                self._problem(f"{shown}:{entry.line}", "description is one line of text, in quotes")
        self._take_entries(entries, Layer.PROFILE, shown)

    def _take_entries(self, entries: Iterable[Entry], layer: Layer, shown: str) -> None:
        unknown: list[tuple[str, ...]] = []  # tables, whose own entries need no further word
        for entry in entries:
            where = f"{shown}:{entry.line}"
            if any(entry.path[: len(table)] == table for table in unknown):
                continue
            if any("." in part for part in entry.path):
                self._problem(where, f"write {entry.name} without quotes")
            elif entry.path in _TABLES:
                if entry.name == "profile" and isinstance(entry.value, str):
                    self._problem(where, _NAMES_A_PROFILE)
                elif not isinstance(entry.value, dict):
                    self._problem(where, f"{entry.name} is a table of flags: write [{entry.name}]")
            elif isinstance(entry.value, dict) or entry.value == [{}]:
                hint = did_you_mean(entry.name, [table[0] for table in _TABLES])
                self._problem(where, f"there is no table [{entry.name}]{hint}")
                unknown.append(entry.path)
            elif _names_profile(entry):
                right = _NAMES_A_PROFILE
                self._problem(where, f"{right}, not by {entry.name}")
            else:
                try:
                    flag = lookup(entry.name)
                    self._set(flag.name, check(flag, entry.value), Origin(layer, where))
                except FlagError as error:
                    self._flag_problem(where, error)

    def _take_environment(self, environ: Mapping[str, str]) -> None:
        names = {environment_name(flag): flag for flag in FLAGS.values()}
        for name in sorted(environ):
            if not name.startswith("ARC_") or name in ENVIRONMENT:
                continue
            flag = names.get(name)
            if flag is None:
                hint = did_you_mean_environment(name, names)
                self._problem(name, f"no flag has this environment name{hint}", reason=FlagReason.UNKNOWN)
                continue
            try:
                self._set(flag.name, parse(flag, environ[name]), Origin(Layer.ENVIRONMENT, name))
            except FlagError as error:
                self._flag_problem(name, error)

    def _take_overrides(self, overrides: Sequence[str]) -> None:
        given: set[str] = set()
        for override in overrides:
            name, equals, text = override.partition("=")
            where = f"command line, {override}"
            if not equals:
                self._problem(where, "write flag=value")
                continue
            if name in given:
                self._problem(where, f"{name} is given twice on the command line", flag=name)
                continue
            given.add(name)
            try:
                self._set(name, parse(lookup(name), text), Origin(Layer.COMMAND_LINE, where))
            except FlagError as error:
                self._flag_problem(where, error)

    def _set(self, name: str, value: Value, origin: Origin) -> None:
        self._layers[name].append(Layered(value, origin))

    def _check_together(self) -> None:
        values = {name: layered[-1].value for name, layered in self._layers.items()}
        for error in check_together(values):
            names = (error.flag, *error.related)
            latest = max(names, key=lambda name: list(Layer).index(self._layers[name][-1].origin.layer))
            self._flag_problem(self._layers[latest][-1].origin.where, error)

    def _check_key(self, environ: Mapping[str, str]) -> None:
        """An empty key would let everybody in, and what no header can carry would keep everybody out."""
        key = environ.get("ARC_API_KEY")
        if key == "":
            self._problem("ARC_API_KEY", "it is empty; unset it, or set it to the key that clients must send")
        elif key is not None and not _SENDABLE.fullmatch(key):
            self._problem(
                "ARC_API_KEY",
                "it may have printable ASCII characters only, and no space: a header carries it",
            )

    def _check_exposure(self, environ: Mapping[str, str]) -> None:
        """Listening beyond this machine needs an API key."""
        effective = self._layers["http.host"][-1]
        if "ARC_API_KEY" not in environ and not _is_loopback(str(effective.value)):
            message = (
                f"http.host {effective.value} listens beyond this machine: set ARC_API_KEY in the environment"
            )
            self._problem(effective.origin.where, message, flag="http.host", reason=FlagReason.CONFLICT)

    def _problem(
        self, where: str, message: str, *, flag: str | None = None, reason: FlagReason | None = None
    ) -> None:
        self._problems.append(Problem(where, message, flag, reason))

    def _flag_problem(self, where: str, error: FlagError) -> None:
        self._problem(where, error.message, flag=error.flag, reason=error.reason)


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def did_you_mean_environment(name: str, known: Iterable[str]) -> str:
    """`did_you_mean` for ARC_ names, which are upper case."""
    lowered = {each.lower(): each for each in (*known, *ENVIRONMENT)}
    names = [lowered[each] for each in nearest(name, lowered)]
    return f"; did you mean {' or '.join(names)}?" if names else ""
