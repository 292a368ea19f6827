"""Settings: which layer wins, where each value came from, and that every mistake is told with its place."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import tomlkit
from arc.console.profile_values import profile_values
from arc.engine.config import (
    FILE_NAME,
    SHIPPED_PROFILES,
    ConfigError,
    Layer,
    Origin,
    Refused,
    Settings,
    load,
    profile_description,
    profile_files,
    read_toml,
)
from arc.engine.flags import (
    DEFAULTS,
    FLAGS,
    FlagError,
    FlagReason,
    Reach,
    Value,
    check,
    check_together,
    environment_name,
    lookup,
    show,
)
from hypothesis import given
from hypothesis import strategies as st

from .test_flags import valid_values

LIVE = [name for name, flag in FLAGS.items() if flag.reach is Reach.LIVE]
NO_KEY_NEEDED = "127.0.0.1"


def by_operator(step: int = 7, reason: str = "trying") -> Origin:
    return Origin(Layer.RUNTIME, "uid 1000", uid=1000, pid=42, reason=reason, step=step, time=1.5)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(folder: Path, **kwargs: object) -> list[str]:
    """The problems as an operator reads them."""
    with pytest.raises(ConfigError) as caught:
        load(folder=folder, **{"environ": {}, **kwargs})  # pyright: ignore[reportArgumentType]
    return [str(problem) for problem in caught.value.problems]


def plain(folder: Path) -> Settings:
    return load(folder=folder, environ={})


def as_toml(values: Mapping[str, Value], **top: str) -> str:
    """Flags as a file's text, through another TOML library than the one under test."""
    document = tomlkit.document()
    for key, text in top.items():
        document[key] = text
    for name, value in values.items():
        table, _, key = name.partition(".")
        document.setdefault(table, tomlkit.table())[key] = value  # pyright: ignore[reportIndexIssue]
    return tomlkit.dumps(document)


# --- layers


@st.composite
def layer_values(draw: st.DrawFn) -> dict[str, Value]:
    """Some flags with values of their own that do not exclude each other in any combination of layers."""
    names = draw(st.lists(st.sampled_from(list(FLAGS)), unique=True, max_size=8))
    values: dict[str, Value] = {}
    for name in names:
        if name == "sched.max_step_tokens":
            values[name] = draw(st.integers(4096, 1 << 20))
        elif name == "cache.layout":
            values[name] = "paged"  # dense demands another flag's value
        elif name in ("sched.prefill_chunk", "sched.max_running"):
            values[name] = draw(st.integers(1, 512))
        elif name == "http.host":
            values[name] = NO_KEY_NEEDED
        else:
            values[name] = check(FLAGS[name], draw(valid_values(FLAGS[name])))
    return values


@given(layer_values(), layer_values(), layer_values(), layer_values(), layer_values())
def test_the_highest_layer_that_sets_a_flag_wins(
    tmp_path_factory: pytest.TempPathFactory,
    profile: dict[str, Value],
    file: dict[str, Value],
    environ: dict[str, Value],
    command: dict[str, Value],
    runtime: dict[str, Value],
) -> None:
    folder = tmp_path_factory.mktemp("engine")
    write(folder / "profiles" / "mine.toml", as_toml(profile))
    write(folder / FILE_NAME, as_toml(file, extends="mine"))
    runtime = {name: value for name, value in runtime.items() if name in LIVE}
    settings = load(
        folder=folder,
        environ={environment_name(FLAGS[name]): show(value) for name, value in environ.items()},
        overrides=[f"{name}={show(value)}" for name, value in command.items()],
    ).with_runtime(runtime, by_operator())

    given_layers = {
        Layer.DEFAULT: DEFAULTS,
        Layer.PROFILE: profile,
        Layer.FILE: file,
        Layer.ENVIRONMENT: environ,
        Layer.COMMAND_LINE: command,
        Layer.RUNTIME: runtime,
    }
    assert list(settings) == list(FLAGS)
    for name in FLAGS:
        expected = [(layer, values[name]) for layer, values in given_layers.items() if name in values]
        assert [(each.origin.layer, each.value) for each in settings.layers(name)] == expected
        assert (settings.origin(name).layer, settings[name]) == expected[-1]
    # taking every runtime value away uncovers what the process started with
    bare = settings.without_runtime(runtime)
    for name in FLAGS:
        assert bare.origin(name).layer is not Layer.RUNTIME
        assert bare.layers(name) == settings.layers(name)[: len(bare.layers(name))]


def test_origins_name_their_place(tmp_path: Path) -> None:
    write(tmp_path / "profiles" / "mine.toml", "# why\n[sched]\n\norder = 'prefix'\n")
    write(tmp_path / FILE_NAME, 'extends = "mine"\n\n[sched]\nmax_running = 8\n')
    settings = load(
        folder=tmp_path, environ={"ARC_SCHED_PAUSED": "on"}, overrides=["log.level=debug"]
    ).with_runtime({"cache.prefix": False}, by_operator())
    assert settings.origin("model.path").where == "the registry"
    assert settings.origin("sched.order") == Origin(Layer.PROFILE, "profiles/mine.toml:4")
    assert settings.origin("sched.max_running") == Origin(Layer.FILE, "arc.toml:4")
    assert settings.origin("sched.paused") == Origin(Layer.ENVIRONMENT, "ARC_SCHED_PAUSED")
    assert settings.origin("log.level") == Origin(Layer.COMMAND_LINE, "command line, log.level=debug")
    assert settings.origin("cache.prefix") == by_operator()
    assert (settings.profile, settings.profile_from.where) == ("mine", "arc.toml:1")


def test_who_chooses_the_profile(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / "profiles" / f"{name}.toml", "")
    assert plain(tmp_path).profile == "default"
    write(tmp_path / FILE_NAME, 'extends = "a"')
    assert plain(tmp_path).profile == "a"
    assert load(folder=tmp_path, environ={"ARC_PROFILE": "b"}).profile == "b"
    chosen = load(folder=tmp_path, environ={"ARC_PROFILE": "b"}, profile="c")
    assert (chosen.profile, chosen.profile_from.where) == ("c", "--profile")


def test_a_profile_that_is_covered_may_be_missing(tmp_path: Path) -> None:
    write(tmp_path / FILE_NAME, 'extends = "gone"')
    assert load(folder=tmp_path, environ={}, profile="default").profile == "default"


def test_own_profiles_cover_shipped_ones(tmp_path: Path) -> None:
    assert plain(tmp_path)["sched.max_step_tokens"] == 512  # the shipped default profile
    write(tmp_path / "profiles" / "default.toml", "sched.max_step_tokens = 777")
    assert plain(tmp_path)["sched.max_step_tokens"] == 777
    assert profile_files(tmp_path)["latency"].parent == SHIPPED_PROFILES


def test_differs_compares_with_the_profile(tmp_path: Path) -> None:
    write(tmp_path / FILE_NAME, "sched.max_waiting = 3\nsched.max_step_tokens = 512\n")
    settings = plain(tmp_path)
    assert settings.differs() == ("sched.max_waiting",)  # 512 is what the profile says too
    changed = settings.with_runtime({"sched.paused": True}, by_operator())
    assert changed.differs() == ("sched.max_waiting", "sched.paused")


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED_PROFILES.glob("*.toml")))
def test_shipped_profiles_are_complete_operating_points(tmp_path: Path, name: str) -> None:
    settings = load(folder=tmp_path, environ={}, profile=name)
    set_by_profile = {flag for flag in FLAGS if settings.origin(flag).layer is Layer.PROFILE}
    groups = {"model", "sched", "spec", "cache", "kernels", "cpu", "admission"}
    left_open = {flag for flag in FLAGS if FLAGS[flag].group in groups} - set_by_profile
    # the served name follows the path, pausing is no way to start, and losers exist under bucketed admission only
    assert left_open <= {"model.name", "sched.paused", "admission.bucket_losers"}
    assert profile_description(profile_files(tmp_path)[name])
    assert settings["http.host"] == DEFAULTS["http.host"]


def test_the_profiles_that_are_promised_are_shipped() -> None:
    shipped = {path.stem for path in SHIPPED_PROFILES.glob("*.toml")}
    assert {"default", "throughput", "latency", "bucketed", "deepseek-v2-lite-h200"} <= shipped


def test_the_ab_control_differs_in_admission_alone(tmp_path: Path) -> None:
    default = load(folder=tmp_path, environ={}, profile="default").values()
    control = load(folder=tmp_path, environ={}, profile="bucketed").values()
    assert {flag for flag in FLAGS if default[flag] != control[flag]} == {"admission.policy"}


def test_shipped_profiles_name_the_same_flags() -> None:
    """Complete operating points: to apply one after another leaves nothing of the other behind.

    The group `model` may differ: it names a checkpoint, which is a machine's own, and is read at start only.
    """
    named: dict[str, set[str]] = {}
    for path in sorted(SHIPPED_PROFILES.glob("*.toml")):
        entries, problems = read_toml(path, path.name)
        assert not problems
        named[path.name] = {entry.name for entry in entries if entry.name in FLAGS}
    by_any = set.union(*named.values())
    shared = {name for name in by_any if FLAGS[name].reach is Reach.LIVE or FLAGS[name].group != "model"}
    assert len(shared) > 10
    assert {profile: shared - names for profile, names in named.items() if shared - names} == {}


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED_PROFILES.glob("*.toml")))
def test_applying_default_brings_its_operating_point_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    start = load(folder=tmp_path, environ={})

    def applied(settings: Settings, profile: str) -> Settings:
        live = {flag: value for flag, value in profile_values(profile).items() if flag in LIVE}
        return settings.with_runtime(live, by_operator())

    assert applied(applied(start, name), "default").values() == start.values()


# --- mistakes: each with its place and the nearest right name


def test_every_problem_of_every_layer_is_reported_at_once(tmp_path: Path) -> None:
    write(tmp_path / "profiles" / "mine.toml", "[sched]\nordr = 'fcfs'\nmax_running = 0\n")
    write(tmp_path / FILE_NAME, 'extends = "mine"\n[cache]\nprefx = true\npage_size = "32"\n')
    problems = problems_of(
        tmp_path,
        environ={"ARC_SCHED_MAX_RUNNIN": "8", "ARC_SCHED_PAUSED": "1", "PATH": "/bin", "ARC_API_KEY": "k"},
        overrides=["sched.ordr=fcfs", "sched.max_running", "log.level=loud"],
    )
    expected = [
        ("profiles/mine.toml:2: ", "did you mean sched.order"),
        ("profiles/mine.toml:3: ", "1 to 4096"),
        ("arc.toml:3: ", "did you mean cache.prefix"),
        ("arc.toml:4: ", "cannot be '32'"),
        ("ARC_SCHED_MAX_RUNNIN: ", "did you mean ARC_SCHED_MAX_RUNNING"),
        ("ARC_SCHED_PAUSED: ", "write on or off"),
        ("command line, sched.ordr=fcfs: ", "did you mean sched.order"),
        ("command line, sched.max_running: ", "write flag=value"),
        ("command line, log.level=loud: ", "debug, info, warning or error"),
    ]
    assert len(problems) == len(expected)
    for problem, (where, hint) in zip(problems, expected, strict=True):
        assert problem.startswith(where) and hint in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[sched]\nmax_running = 8\nmax_running = 9\n", "arc.toml:3: not TOML"),
        ("[sched\n", "arc.toml:1: not TOML"),
        ("[sched]\norder = fcfs\n", "arc.toml:2: not TOML"),
        ("\n\n[shed]\nx = 1\n", "arc.toml:3: there is no table [shed]; did you mean sched?"),
        ("[shed]\n", "arc.toml:1: there is no table [shed]; did you mean sched?"),
        ("[[sched]]\nmax_running = 8\n", "arc.toml:1: sched is a table of flags"),
        ("sched = 8\n", "arc.toml:1: sched is a table of flags"),
        ("profile = 'default'\n", "arc.toml:1: the profile is named by a first line"),
        ("extend = 'latency'\n", "arc.toml:1: the profile is named by a first line `extends"),
        ("extnds = 'latency'\n", "arc.toml:1: the profile is named by a first line `extends"),
        ("profiles = 'latency'\n", "arc.toml:1: the profile is named by a first line `extends"),
        ("[log]\nextends = 'latency'\n", "arc.toml:2: the profile is named by a first line `extends"),
        ("extends = 3\n", "arc.toml:1: extends is a profile's name"),
        ("extends = 'latncy'\n", "arc.toml:1: there is no profile 'latncy'; did you mean latency?"),
        ("extends = ''\n", "arc.toml:1: there is no profile ''"),
        ("'sched.max_running' = 8\n", "arc.toml:1: write sched.max_running without quotes"),
        ("description = 'x'\n", "arc.toml:1: there is no flag 'description'"),
        ("sched.order = '''\nfcfs'''\n\n[log]\nlevl = 'info'\n", "arc.toml:5: there is no flag 'log.levl'"),
        ("http.port = [\n1,\n2,\n]\nsched.x = 1\n", "arc.toml:5: there is no flag 'sched.x'"),
        ("[log]\r\n# c\r\nlevl = 'info'\r\n", "arc.toml:3: there is no flag 'log.levl'"),
        ("sched = {\n order = 'fcfs' }\n\nlog.levl = 1\n", "arc.toml:4: there is no flag 'log.levl'"),
        ("http.stall_s = nan\n", "arc.toml:1: http.stall_s cannot be nan"),
        ("sched.max_running = 2026-01-01\n", "arc.toml:1: sched.max_running cannot be"),
        ("sched.max_running.x = 1\n", "arc.toml:1: there is no flag 'sched.max_running.x'"),
        ("sched.prefill_chunk = 1024\n", "arc.toml:1: sched.prefill_chunk is 1024 but"),
    ],
)
def test_a_mistake_in_the_file_names_its_line(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(text.encode())
    assert any(problem.startswith(expected) for problem in problems_of(tmp_path)), problems_of(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "[shed]\nx = 1\ny = 2\n[sched]\nmax_running = 8\n",
        "[[shed]]\nx = 1\n",
        "[sched.more]\nx = 1\ny.z = 2\n",
        "[shed]\n[shed.more]\nx = 1\n",
        "[a.b]\nc = 1\n",
    ],
)
def test_an_unknown_table_is_one_problem(tmp_path: Path, text: str) -> None:
    write(tmp_path / FILE_NAME, text)
    (problem,) = problems_of(tmp_path)
    assert problem.startswith("arc.toml:1: there is no table [")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    file.write_bytes(b"# one\n# two\nsched.order = '\xff'\n")
    assert problems_of(tmp_path) == ["arc.toml:3: not UTF-8 at byte 27"]
    file.write_bytes(b"#" * (1 << 21))
    assert "no settings file" in problems_of(tmp_path)[0]
    file.write_text("sched.max_running = " + "9" * 5000, encoding="utf-8")
    assert problems_of(tmp_path)[0].startswith("arc.toml: not TOML")
    file.write_text("x = " + "[" * 100_000, encoding="utf-8")
    assert problems_of(tmp_path)[0].startswith("arc.toml")
    file.write_bytes(b"\xef\xbb\xbfsched.order = 'fcfs'\n")
    assert problems_of(tmp_path) == [
        "arc.toml:1: begins with a byte order mark: save it as UTF-8 without one"
    ]
    file.unlink()
    os.mkfifo(file)
    assert problems_of(tmp_path) == ["arc.toml: it is no regular file"]
    file.unlink()
    file.mkdir()
    assert problems_of(tmp_path) == ["arc.toml: cannot be read: Is a directory"]
    file.rmdir()
    file.symlink_to(tmp_path / "nowhere")
    assert problems_of(tmp_path) == ["arc.toml: cannot be read: No such file or directory"]


@pytest.mark.parametrize("name", ["../arc", "/etc/passwd", "a/b", "", ".", "default.toml", "DEFAULT"])
def test_a_profile_is_a_name_and_no_path(tmp_path: Path, name: str) -> None:
    write(tmp_path / FILE_NAME, "")
    (problem,) = problems_of(tmp_path, profile=name)
    assert problem.startswith(f"--profile: there is no profile {name!r}")


def test_settings_know_the_file_that_was_read(tmp_path: Path) -> None:
    assert load(folder=tmp_path, environ={}).file_sha256 is None
    for content in (b"", b"[sched]\r\nmax_running = 8\r\n"):
        (tmp_path / FILE_NAME).write_bytes(content)
        settings = load(folder=tmp_path, environ={})
        assert settings.file_sha256 == hashlib.sha256(content).hexdigest()
        changed = settings.with_runtime({"sched.max_running": 9}, by_operator())
        assert changed.file_sha256 == settings.file_sha256


def test_an_unknown_profile_without_a_near_name_lists_all(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, profile="zzz")
    assert "default" in problem and "throughput" in problem


def test_a_flag_twice_on_the_command_line_is_refused(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, overrides=["sched.max_running=8", "sched.max_running=9"])
    assert (
        problem == "command line, sched.max_running=9: sched.max_running is given twice on the command line"
    )


def test_conflicts_between_layers_are_told_where_the_later_value_stands(tmp_path: Path) -> None:
    write(tmp_path / FILE_NAME, "[sched]\nmax_step_tokens = 64\nprefill_chunk = 64\n")
    assert plain(tmp_path)["sched.max_step_tokens"] == 64
    (problem,) = problems_of(tmp_path, overrides=["sched.max_running=65"])
    assert problem.startswith("command line, sched.max_running=65: sched.max_running is 65 but")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "128.0.0.1"])
def test_listening_beyond_this_machine_needs_a_key(tmp_path: Path, host: str) -> None:
    write(tmp_path / FILE_NAME, f"\nhttp.host = '{host}'")
    assert problems_of(tmp_path)[0].startswith("arc.toml:2: http.host")
    assert load(folder=tmp_path, environ={"ARC_API_KEY": "k"})["http.host"] == host
    assert problems_of(tmp_path, environ={"ARC_API_KEY": ""})[0].startswith("ARC_API_KEY: it is empty")


def test_exposure_is_reported_beside_other_problems(tmp_path: Path) -> None:
    write(tmp_path / FILE_NAME, "http.host = '0.0.0.0'\nsched.max_runing = 1\n")
    assert [problem[:11] for problem in problems_of(tmp_path)] == ["arc.toml:2:", "arc.toml:1:"]
    both = problems_of(tmp_path, environ={"ARC_API_KEY": "two words"})
    assert len(both) == 2 and both[1].startswith("ARC_API_KEY: ")


@pytest.mark.parametrize("key", [" ", "a b", "a\n", "\ta", "schlüssel", "\x7f", "a\udcff", "\u2003"])
def test_a_key_that_no_header_carries_is_refused(tmp_path: Path, key: str) -> None:
    (problem,) = problems_of(tmp_path, environ={"ARC_API_KEY": key})
    assert problem.startswith("ARC_API_KEY: ") and "ASCII" in problem and repr(key) not in problem


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1"])
def test_this_machine_needs_no_key(tmp_path: Path, host: str) -> None:
    assert load(folder=tmp_path, environ={}, overrides=[f"http.host={host}"])["http.host"] == host


def test_the_key_is_nowhere_in_the_settings(tmp_path: Path) -> None:
    settings = load(folder=tmp_path, environ={"ARC_API_KEY": "hunter2"})
    assert "hunter2" not in repr(settings)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file_gives_settings_or_problems(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    folder = tmp_path_factory.mktemp("engine")
    (folder / FILE_NAME).write_bytes(noise)
    try:
        settings = plain(folder)
    except ConfigError as error:
        assert all(problem.where.startswith(FILE_NAME) for problem in error.problems)
    else:
        assert check_together(settings.values()) == []


statements = st.lists(
    st.tuples(
        st.sampled_from(["# note\n", "\n", "\n\n", ""]),
        st.sampled_from(
            [
                "1",
                "'a'",
                '"""\n[x]\na = 1\n"""',
                "[\n 1, # [y]\n 2\n]",
                "{ p = 1, q = 'b' }",
                "'''\n[z]'''",
                "'''k = \n'''",
            ]
        ),
        st.sampled_from(["", "# end", "  "]),
    ),
    max_size=12,
)


@given(statements, st.booleans())
def test_every_key_is_found_at_its_line(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[str, str, str]], windows: bool
) -> None:
    lines, expected = "", []
    for number, (before, value, after) in enumerate(parts):
        lines += before
        if number % 3 == 2:
            lines += f"[ t{number} . 'u' ] # table\n"
        expected.append((f"key{number}", lines.count("\n") + 1))
        lines += f"key{number} = {value} {after}\n"
    path = tmp_path_factory.mktemp("toml") / "x.toml"
    path.write_bytes(lines.replace("\n", "\r\n" if windows else "\n").encode())
    entries, problems = read_toml(path, "x.toml")
    assert problems == []
    found = {(part, entry.line) for entry in entries for part in entry.path if part.startswith("key")}
    assert found == set(expected)
    tables = {entry.path[0] for entry in entries if isinstance(entry.value, dict)}
    assert tables == {f"t{number}" for number in range(len(parts)) if number % 3 == 2}


# --- runtime changes


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return plain(tmp_path)


def test_a_change_makes_new_settings(settings: Settings) -> None:
    changed = settings.with_runtime({"sched.max_running": 8, "sched.paused": True}, by_operator())
    assert (settings["sched.max_running"], settings.version) == (64, 0)
    assert (changed["sched.max_running"], changed["sched.paused"], changed.version) == (8, True, 1)
    again = changed.with_runtime({"sched.max_running": 9}, by_operator(step=9))
    assert [each.value for each in again.layers("sched.max_running")] == [
        64,
        64,
        9,
    ]  # one runtime value, the last
    assert again.origin("sched.max_running").step == 9
    assert again.version == 2


def test_refused_as_a_whole_with_a_reason_for_each(settings: Settings) -> None:
    changes = {
        "sched.max_running": 8,  # alone it would be fine
        "sched.max_waiting": "8",
        "sched.max_step_tokens": 0,
        "sched.order": "prio",
        "http.port": 9000,
        "shed.paused": True,
    }
    with pytest.raises(Refused) as caught:
        settings.with_runtime(changes, by_operator())
    assert {error.flag: error.reason for error in caught.value.errors} == {
        "sched.max_waiting": FlagReason.TYPE,
        "sched.max_step_tokens": FlagReason.BOUNDS,
        "sched.order": FlagReason.CHOICE,
        "http.port": FlagReason.RESTART,
        "shed.paused": FlagReason.UNKNOWN,
    }
    assert settings["sched.max_running"] == 64


@pytest.mark.parametrize("name", sorted(set(FLAGS) - set(LIVE)))
def test_restart_flags_are_refused_by_name(settings: Settings, name: str) -> None:
    with pytest.raises(Refused, match=name) as caught:
        settings.with_runtime({name: settings[name]}, by_operator())
    assert caught.value.errors[0].reason is FlagReason.RESTART


def test_a_conflict_is_told_under_the_flag_that_was_changed(settings: Settings) -> None:
    with pytest.raises(Refused) as caught:
        settings.with_runtime({"sched.max_step_tokens": 100}, by_operator())
    assert [(error.flag, error.related) for error in caught.value.errors] == [
        ("sched.max_step_tokens", ("sched.prefill_chunk",))
    ]
    together = {"sched.max_step_tokens": 100, "sched.prefill_chunk": 100}
    assert settings.with_runtime(together, by_operator())["sched.prefill_chunk"] == 100


def test_taking_a_value_away_must_not_uncover_a_conflict(settings: Settings) -> None:
    small = settings.with_runtime({"sched.max_step_tokens": 100, "sched.prefill_chunk": 50}, by_operator())
    with pytest.raises(Refused) as caught:
        small.without_runtime(["sched.prefill_chunk"])  # 256 below, in steps of 100
    assert caught.value.errors[0].flag == "sched.prefill_chunk"
    assert (
        small.without_runtime(["sched.prefill_chunk", "sched.max_step_tokens"]).values() == settings.values()
    )


def test_taking_away_what_is_not_there_changes_nothing(settings: Settings) -> None:
    assert settings.without_runtime(["sched.paused", "http.port"]) is settings
    assert settings.with_runtime({}, by_operator()) is settings
    with pytest.raises(Refused, match=r"did you mean sched\.paused"):
        settings.without_runtime(["sched.pause"])


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([*LIVE, "http.port", "sched.nothing"]),
            st.integers(-1, 600) | st.booleans() | st.sampled_from(["none", "auto", "fcfs", "wait", "x"]),
            max_size=4,
        )
        | st.lists(st.sampled_from(LIVE), max_size=4),
        max_size=8,
    )
)
def test_any_history_of_changes_is_atomic(
    tmp_path_factory: pytest.TempPathFactory, history: list[object]
) -> None:
    """Against a model of one dictionary: a change is applied whole when every part of it is valid, else not at all."""
    settings = plain(tmp_path_factory.mktemp("engine"))
    started = settings.values()
    runtime: dict[str, Value] = {}
    for action in history:
        before = settings
        wanted: dict[str, Value] = dict(runtime)
        if isinstance(action, dict):
            wanted |= action
            valid = all(is_valid(name, value) for name, value in action.items())
        else:
            assert isinstance(action, list)
            wanted = {name: value for name, value in runtime.items() if name not in action}
            valid = True
        valid = valid and not check_together({**started, **wanted})
        try:
            if isinstance(action, dict):
                settings = settings.with_runtime(action, by_operator())
            else:
                settings = settings.without_runtime(action)
        except Refused as refused:
            assert not valid and refused.errors
            assert settings is before
        else:
            assert valid
            runtime = wanted
            assert settings.version == before.version + (settings is not before)
        assert settings.values() == {**started, **runtime}
        assert {name for name in FLAGS if settings.origin(name).layer is Layer.RUNTIME} == set(runtime)


def is_valid(name: str, value: object) -> bool:
    try:
        flag = lookup(name)
        check(flag, value)
    except FlagError:
        return False
    return flag.reach is Reach.LIVE


# --- reading values


def test_typed_reading(settings: Settings) -> None:
    assert settings.get_int("sched.max_running") == 64
    assert settings.get_bool("sched.paused") is False
    assert settings.get_float("http.stall_s") == 30.0
    assert settings.get_str("sched.order") == "fcfs"
    assert settings.get_int_or_none("cache.page_cap") is None
    capped = settings.with_runtime({"cache.page_cap": 12}, by_operator())
    assert capped.get_int_or_none("cache.page_cap") == 12


def test_reading_a_name_that_is_none_tells_the_nearest(settings: Settings) -> None:
    with pytest.raises(FlagError, match=r"did you mean sched\.max_running"):
        settings["sched.max_runing"]


def test_loading_brings_no_torch() -> None:
    code = """
import sys, pathlib
from arc.engine.config import load
load(folder=pathlib.Path('.'), environ={})
print(*{'torch', 'numpy', 'asyncio', 'tomlkit'} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
