"""The `arc` command's frame: what it prints, how it exits, and what it does not import."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from arc.console.exits import Exit
from arc.console.lazy import LazyCommand
from arc.console.main import COMMANDS, arc
from arc.engine import serve as serve_module
from arc.engine import version
from arc.engine.flags import FLAGS
from click.testing import CliRunner, Result

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "numpy", "asyncio", "textual", "tomlkit", "transformers"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, without any ARC_ name in the environment."""
    for name in [name for name in os.environ if name.startswith("ARC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(arc, arguments)


def process(code: str, *, cwd: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environ},
        check=False,
    )


# --- the frame


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists(name: str) -> None:
    target, summary = COMMANDS[name]
    assert LazyCommand(name, target, summary).load().name == name
    assert summary.endswith(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(folder: Path, name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == Exit.OK
    assert f"arc {name} [OPTIONS]" in result.output


def test_help_lists_every_command_without_importing_it(folder: Path) -> None:
    code = f"""
import sys
from arc.console.main import main
sys.argv = ["arc", "--help"]
try:
    main()
finally:
    loaded = set(sys.modules)
    print("heavy", *{HEAVY!r} & loaded)
    print("commands", *(name for name in loaded if name.startswith("arc.console.commands.")))
    print("config", "arc.engine.config" in loaded)
"""
    done = process(code, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "heavy\ncommands\nconfig False\n" in done.stdout
    for name, (_, summary) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", done.stdout, re.MULTILINE)


def test_importing_the_command_loads_nothing_heavy(folder: Path) -> None:
    done = process(f"import sys, arc.console.main; print(*{HEAVY!r} & set(sys.modules))", cwd=folder)
    assert done.stdout == "\n" and done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["chek"], "Did you mean 'check'"),
        (["--verson"], "--version"),
        (["check", "--sched.max_runing", "8"], "--sched.max_running"),
        (["check", "more"], "unexpected extra argument"),
        (["profiles", "show"], "Missing argument 'NAME'"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_a_hint(folder: Path, arguments: list[str], hint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == Exit.USAGE
    assert hint in result.stderr


def test_completion_offers_commands_options_and_values(folder: Path) -> None:
    def complete(words: str) -> set[str]:
        environ = {
            "_ARC_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        done = process("from arc.console.main import main; main()", cwd=folder, **environ)
        return {line.partition(",")[2] for line in done.stdout.split()}

    assert complete("arc ") >= set(COMMANDS)
    assert complete("arc profiles ") == {"show"}
    assert complete("arc profiles show la") == {"latency"}
    assert complete("arc serve --profile thr") == {"throughput"}
    assert "--sched.max_running" in complete("arc serve --sched.")
    assert complete("arc check --sched.order ") == {"fcfs", "prefix", "priority"}
    assert complete("arc check --sched.paused o") == {"on", "off"}


# --- version


def test_version_and_revision(folder: Path) -> None:
    result = run("--version")
    assert result.exit_code == Exit.OK
    assert result.output == f"arc {version.version()} ({version.revision()})\n"


def test_revision_is_the_checkouts(folder: Path) -> None:
    if not (ROOT / ".git").exists():
        assert version.revision() == version._revision_of(version.version())
        return
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(commit.stdout[:12] + "(-dirty)?", version.revision())


@pytest.mark.parametrize(
    ("text", "revision"),
    [
        ("0.1.dev3+g1dc81415d", "1dc81415d"),
        ("0.1.dev3+g1dc81415d.d20261130", "1dc81415d-dirty"),
        ("1.2", "unknown"),
        ("1.2+local.1", "unknown"),
        ("unknown", "unknown"),
    ],
)
def test_revision_of_an_installed_version(text: str, revision: str) -> None:
    assert version._revision_of(text) == revision


def test_revision_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small repository of its own: clean, changed, and with git's variables naming another one."""

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    module = tmp_path / "engine" / "version.py"
    module.parent.mkdir()
    module.write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    monkeypatch.setattr(version, "__file__", str(module))
    monkeypatch.setenv("GIT_DIR", str(ROOT / "nowhere"))
    commit = git("--git-dir", str(tmp_path / ".git"), "rev-parse", "--short=12", "HEAD")
    assert version.revision.__wrapped__() == commit
    module.write_text("changed")
    assert version.revision.__wrapped__() == f"{commit}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))  # no git there
    assert version.revision.__wrapped__() == version._revision_of(version.version())


# --- arc check


def test_check_says_what_differs(folder: Path) -> None:
    (folder / "arc.toml").write_text("extends = 'latency'\n[sched]\nmax_running = 8\n")
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text("{}")
    result = run("check", "--sched.paused", "on", "--set", "log.level=debug", "--model", "m")
    assert result.exit_code == Exit.OK
    assert result.output == (
        "profile latency (by arc.toml:1)\n"
        "  model.path = m  (command line, model.path=m)\n"
        "  sched.max_running = 8  (arc.toml:3)\n"
        "  sched.paused = on  (command line, sched.paused=on)\n"
        "  log.level = debug  (command line, log.level=debug)\n"
        "ok\n"
    )


def test_check_lists_every_problem_and_exits_with_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "arc.toml").write_text("[sched]\nmax_runing = 8\n")
    monkeypatch.setenv("ARC_SCHED_ORDER", "lifo")
    result = run("check", "--cache.page_size", "20", "--profile", "deflt")
    assert result.exit_code == Exit.ERROR
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0] == "Error: 4 problems in the configuration"
    assert [line.split(":")[0] for line in lines[1:]] == [
        "--profile",
        "arc.toml",
        "ARC_SCHED_ORDER",
        "command line, cache.page_size=20",
    ]


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("model.path", "gone", "gone is not there"),
        ("model.path", "empty", "empty has no config.json"),
        ("model.path", "file", "file is no folder"),
        ("model.path", "broken", "is not valid JSON"),
        ("model.path", "~nobody-by-this-name/m", "cannot be found"),
        ("model.path", "x" * 300, "File name too long"),
        ("control.group", "no-such-group", "this machine has no group 'no-such-group'"),
    ],
)
def test_check_and_serve_refuse_what_is_not_there_alike(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flag: str, value: str, message: str
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process keeps its own handlers
    for name in ("empty", "broken"):
        (folder / name).mkdir()
    (folder / "file").write_text("")
    (folder / "broken" / "config.json").write_text("{")
    (folder / "arc.toml").write_text(f'{flag} = "{value}"\n')
    result = run("check")
    assert result.exit_code == Exit.ERROR and result.stdout == ""
    (line,) = result.stderr.splitlines()[1:]
    assert line.startswith(f"arc.toml:1: {flag}: ") and message in line
    served = CliRunner().invoke(serve_module.main, [])
    assert served.exit_code == 1 and served.stderr == f"arc serve: {line}\n"


def test_check_finds_a_socket_path_that_is_too_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / ("x" * 100)))
    result = run("check")
    assert result.exit_code == Exit.ERROR and "too long for a socket" in result.stderr


def test_a_flag_given_by_both_of_its_options_is_refused(folder: Path) -> None:
    result = run("check", "--sched.max_running", "8", "--set", "sched.max_running=8")
    assert result.exit_code == Exit.ERROR and "given twice" in result.stderr
    result = run("check", "--model", "a", "--model.path", "b")
    assert result.exit_code == Exit.ERROR and "given twice" in result.stderr


def test_every_flag_is_an_option(folder: Path) -> None:
    command = LazyCommand("check", COMMANDS["check"][0], "").load()
    names = {option for parameter in command.params for option in parameter.opts}
    assert names == {"--profile", "--model", "--set"} | {f"--{name}" for name in FLAGS}


def test_the_repositorys_own_folder_is_right(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(ROOT)
    result = run("check")
    assert (result.exit_code, result.output) == (Exit.OK, "profile default (by arc.toml:3)\nok\n")


# --- arc profiles


def test_profiles_lists_own_and_shipped(folder: Path) -> None:
    (folder / "profiles").mkdir()
    (folder / "profiles" / "night.toml").write_text("description = 'when all sleep'")
    (folder / "profiles" / "broken.toml").write_text("description = ")
    (folder / "profiles" / "notes.txt").write_text("no profile")
    result = run("profiles")
    assert result.exit_code == Exit.OK
    lines = dict(line.split(None, 1) for line in result.output.splitlines())
    assert lines["night"] == "when all sleep"
    assert lines["broken"].startswith("broken.toml:1: not TOML")
    assert {"default", "throughput", "latency", "bucketed", "deepseek-v2-lite-h200"} <= set(lines)


def test_profiles_show_names_each_values_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "profiles").mkdir()
    (folder / "profiles" / "mine.toml").write_text("sched.max_running = 9\nlog.level = 'info'\n")
    (folder / "arc.toml").write_text("log.level = 'debug'\n")
    monkeypatch.setenv("ARC_SCHED_ORDER", "prefix")
    result = run("profiles", "show", "mine")
    assert result.exit_code == Exit.OK
    rows = {line.split()[0]: line.split(None, 2)[1:] for line in result.output.splitlines()}
    assert list(rows) == list(FLAGS)
    assert rows["sched.max_running"] == ["9", "profiles/mine.toml:1, over 64 (the registry)"]
    assert rows["log.level"] == ["debug", "arc.toml:1, over info (profiles/mine.toml:2)"]
    assert rows["sched.order"] == ["prefix", "ARC_SCHED_ORDER, over fcfs (the registry)"]
    assert rows["sched.paused"] == ["off", "the registry"]


def test_profiles_show_as_json(folder: Path) -> None:
    result = run("profiles", "show", "latency", "--json")
    shown = json.loads(result.stdout)
    assert shown["profile"] == "latency"
    assert set(shown["flags"]) == set(FLAGS)
    layers = shown["flags"]["sched.max_running"]["layers"]
    assert [layer["layer"] for layer in layers] == ["default", "profile"]
    assert shown["flags"]["sched.max_running"]["value"] == layers[-1]["value"] == 16


def test_profiles_show_of_none_names_the_nearest(folder: Path) -> None:
    result = run("profiles", "show", "latncy")
    assert result.exit_code == Exit.ERROR
    assert "did you mean latency?" in result.stderr


# --- arc serve


SERVE = """
import os, sys
sys.modules["torch"] = None  # an import of it here would fail
import importlib.util
importlib.util.find_spec = lambda name: {spec}
os.execve = lambda path, command, environment: print(path, *command, environment["OMP_WAIT_POLICY"], sep="|")
from arc.console.main import main
sys.argv = ["arc", "serve", *{arguments!r}]
main()
"""


def test_serve_becomes_the_engine(folder: Path) -> None:
    arguments = [
        "--profile",
        "latency",
        "--model",
        "my model",
        "--set",
        "sched.order=prefix",
        "--sched.paused",
        "on",
    ]
    done = process(SERVE.format(spec="object()", arguments=arguments), cwd=folder)
    overrides = ["--set", "model.path=my model", "--set", "sched.order=prefix", "--set", "sched.paused=on"]
    command = [sys.executable, "-P", "-m", "arc.engine.serve", "--profile", "latency", *overrides]
    assert done.stdout.split("\n")[0].split("|") == [sys.executable, *command, "PASSIVE"]


def test_serve_leaves_the_users_thread_setting(folder: Path) -> None:
    done = process(SERVE.format(spec="object()", arguments=[]), cwd=folder, OMP_WAIT_POLICY="ACTIVE")
    assert done.stdout.strip().endswith("|arc.engine.serve|ACTIVE")


def test_serve_without_the_engine_says_how_to_install_it(folder: Path) -> None:
    done = process(SERVE.format(spec="None", arguments=[]), cwd=folder)
    assert done.returncode == Exit.ERROR
    assert "the engine is arc-console[engine]" in done.stderr


def test_exit_codes_are_documented() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    for code in Exit:
        assert re.search(rf"^\| {code.value} \|", page, re.MULTILINE)


def test_failures_exit_with_their_code() -> None:
    from arc.console.exits import Failure

    @click.command()
    def fails() -> None:
        raise Failure("why, and what next")

    result = CliRunner().invoke(fails)
    assert (result.exit_code, result.stderr) == (1, "Error: why, and what next\n")
