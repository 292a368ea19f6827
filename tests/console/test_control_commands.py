"""The commands that operate a running engine, against a simulated one over its real socket."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomlkit
from arc.console import durations, shown
from arc.console.commands import save as save_module
from arc.console.commands.save import edited
from arc.console.exits import Failure
from arc.console.main import arc
from arc.engine.config import load
from arc.engine.control import paths
from arc.engine.control import protocol as p
from arc.engine.control.commands import TrimAllocator
from arc.engine.control.listening import Listening
from arc.engine.control.protocol import NA
from arc.engine.control.recorder import Recorder
from arc.engine.control.server import ControlServer
from arc.engine.flags import FLAGS
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ..engine.control.conftest import Running, folders, running, start
from ..engine.control.simulated import SimulatedEngine
from ..engine.control.test_history import step
from ..engine.control.test_server import until

__all__ = ["folders", "running", "start"]  # fixtures


def run(*arguments: str, code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(arc, arguments, input=stdin, prog_name="arc")
    assert result.exit_code == code, (result.exit_code, result.output, result.exception)
    if isinstance(result.exception, Exception):
        raise result.exception
    return result


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from arc.console.main import main; main()", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=60, check=False, **options
    )


def shows(engine: Running, **gauges: int) -> None:
    """Wait until the socket shows it: while steps are under way a picture may be a quarter of a second old."""
    wire = engine.connect()
    until(lambda: gauges.items() <= wire.get("/v1/snapshot").items())


def test_trim_says_what_it_freed_and_what_cannot_be_trimmed(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no allocator of its own" in run("trim", code=4).output
    plain = SimulatedEngine._carry_out
    done = p.Trimmed(step=4, freed=3 << 20, held=1 << 20, cap=64 << 20)
    monkeypatch.setattr(
        SimulatedEngine,
        "_carry_out",
        lambda self, command: done if isinstance(command, TrimAllocator) else plain(self, command),
    )
    assert run("trim", "--why", "before a burst").output == "freed 3.0 MiB, 1.0 MiB held, cap 64.0 MiB\n"
    assert json.loads(run("trim", "--json").output)["cap"] == 64 << 20
    event = running.engine.events.since(0)[1][-1]
    assert event.kind == "trim" and "freed 3145728 bytes" in event.text


# -- status -----------------------------------------------------------------------------------------------------------


def test_status_says_what_it_does(running: Running) -> None:
    for _ in range(70):
        running.engine.submit(1_000_000)
    shows(running, running=64, waiting=6)
    until(lambda: running.engine.counters.steps > 20)
    output = run("status").output
    lines = {line.split()[0]: line for line in output.splitlines() if line.strip()}
    assert "sim-1M" in lines["sim"] and "cpu" in lines["sim"]
    assert lines["serving"].startswith("serving  up ")
    assert lines["running"].split() == ["running", "64", "effective", "batch", "64"]
    assert "6 running cap" in lines["waiting"]
    assert "64 used" in lines["KV"] and "of 256" in lines["KV"]
    assert "tok/s" in lines["last"] or "tok/s" in output
    assert "prefix hit 40.0 %" in output
    assert "p50" in output and "p99" in output
    assert "flags as in the profile" in output


def test_status_of_an_idle_engine_leaves_out_what_did_not_happen(running: Running) -> None:
    output = run("status", "--window", "1").output
    assert "nothing ran" in output and "none yet" in output
    for absent in ("prefix hit", "tok/s", "0.0 %", "p50", "NA"):
        assert absent not in output


def test_status_tells_flags_that_differ_and_until_when(running: Running) -> None:
    run("set", "sched.max_running=5", "--for", "1h")
    output = run("status").output
    assert "sched.max_running = 5" in output and "back to 64 at" in output
    assert "sched.order" not in output


def test_status_json_is_typed(running: Running) -> None:
    answer = json.loads(run("status", "--json").output)
    assert msgspec.convert(answer["hello"], p.Hello).name == "sim"
    assert msgspec.convert(answer["snapshot"], p.Snapshot).state == "serving"


def test_status_says_when_its_numbers_are_old(running: Running) -> None:
    running.engine.step_seconds = 2.0
    running.engine.submit(1)
    until(lambda: running.engine.counters.step_open_since)
    time.sleep(1.1)
    output = run("status").output
    assert "come to no step border" in output and "one under way for 1." in output


def test_status_of_a_busy_engine_that_nobody_watched_waits_for_the_border(running: Running) -> None:
    running.engine.step_seconds = 0.15
    for _ in range(5):
        running.engine.submit(1_000_000)
    until(lambda: running.engine.counters.steps > 5)  # what was published is from before all of it
    assert "running    5" in run("status").output
    assert "running" in run("sequences").output


def test_sequences_waits_for_a_border_that_lists_all_of_them(running: Running) -> None:
    running.engine.step_seconds = 0.15
    for _ in range(90):  # more than are listed when nobody wants any
        running.engine.submit(1_000_000)
    until(lambda: running.engine.counters.steps > 2)
    run("status")
    listed = json.loads(run("sequences", "--json").output)
    assert listed["total"] == len(listed["sequences"]) == 90
    lines = run("sequences", "--limit", "70").output.splitlines()
    assert len(lines) == 72 and lines[-1] == "70 of 90: 20 more"


_HEAVY = ("torch", "textual", "asyncio", "aiohttp", "numpy", "tomlkit", "rich", "transformers")


def test_status_loads_nothing_heavy(running: Running) -> None:
    code = (
        "import sys\nfrom arc.console.main import arc\narc(['status'], standalone_mode=False)\n"
        f"print([name for name in {_HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert "serving" in done.stdout
    assert done.stderr.strip() == "[]"


# -- which engine -----------------------------------------------------------------------------------------------------


def test_without_an_engine_every_command_says_how_to_start_one(folders: Path) -> None:
    commands = [
        ["status"], ["flags"], ["get", "sched.order"], ["set", "sched.order=fcfs"], ["unset", "sched.order"],
        ["save"], ["events"], ["events", "-f"], ["sequences"], ["cancel", "x"], ["pause"], ["resume"],
        ["drain", "--yes"], ["mark", "x"], ["dump"], ["apply", "default"],
    ]  # fmt: skip
    for command in commands:
        result = run(*command, code=3)
        assert "arc serve" in result.output and "Traceback" not in result.output, command
    assert "arc serve" in run("ps", code=3).output


def test_nothing_is_said_in_words(running: Running) -> None:
    """An empty answer is told from a broken one; --json stays an answer of its type."""
    assert run("events").output == "no events yet\n"
    assert run("events", "--json").output == ""
    assert run("sequences").output == "no sequence runs or waits\n"
    assert json.loads(run("sequences", "--json").output)["sequences"] == []
    assert run("flags", "--changed").output.startswith("none: ")
    assert json.loads(run("flags", "--changed", "--json").output)["flags"] == []
    assert "nothing to cancel" in run("cancel", "--all", stdin="").output
    assert json.loads(run("cancel", "--all", "--json", stdin="").output)["ended"] == []
    run("mark", "here")
    assert "no events" not in run("events").output + run("events", "-n", "0").output


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        (["sched.max_running", "8"], "write sched.max_running=8"),
        (["sched.order=fcfs", "sched.max_running", "8"], "write sched.max_running=8"),
        (["sched.max_running", "sched.order=fcfs"], "write sched.max_running=VALUE"),
        (["sched.max_running"], "write sched.max_running=VALUE"),
        (["=8"], "write FLAG=VALUE"),
    ],
)
def test_set_without_an_equals_sign_shows_how(folders: Path, arguments: list[str], right: str) -> None:
    assert right in " ".join(run("set", *arguments, code=2).output.split())


def test_several_engines_must_be_told_apart(start: Callable[..., Running]) -> None:
    start("one")
    start("two")
    result = run("status", code=1)
    assert "--engine" in result.output and "one, two" in result.output
    assert run("status", "--engine", "two").output.startswith("two ")
    assert "there are: one, two" in run("status", "-e", "three", code=3).output
    listed = run("ps").output.splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [["one", "serving"], ["two", "serving"]]


def test_a_dead_engines_socket_is_no_engine(start: Callable[..., Running], folders: Path) -> None:
    running = start("alive")
    listening = Listening("dead")
    listening.socket.close()  # as kill -9 leaves it
    assert run("status").output.startswith("alive")
    assert "no engine answers" in run("status", "-e", "dead", code=3).output
    table = run("ps").output
    assert "no answer" in table and "alive" in table
    running.server.stop()
    assert "no answer" in run("ps", code=3).output
    for arguments in ([], ["-e", "dead"]):
        output = run("status", *arguments, code=3).output
        assert "dead.sock" in output and "`arc dump --post-mortem --engine dead`" in output
    listening.close()
    assert "post-mortem" not in run("status", code=3).output, (
        "an engine that ended on purpose leaves no socket"
    )


def test_an_engine_that_goes_away_is_said_to_have(running: Running) -> None:
    follow = subprocess.Popen(
        [sys.executable, "-u", "-c", "from arc.console.main import main; main()", "events", "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert follow.stdout is not None
    running.engine.events.add("mark", "one")
    assert "one" in follow.stdout.readline()
    running.engine.events.add("mark", "two")
    assert "two" in follow.stdout.readline()
    running.server.stop("maintenance")
    _, errors = follow.communicate(timeout=20)
    assert follow.returncode == 1 and "maintenance" in errors


def test_an_engine_that_is_killed_is_said_to_have_gone(folders: Path) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.control.process", "main", "1"],
        stdout=subprocess.PIPE,
        env=os.environ,
    )
    assert engine.stdout is not None and engine.stdout.readline() == b"up\n"
    run("mark", "seen")
    follow = subprocess.Popen(
        [sys.executable, "-u", "-c", "from arc.console.main import main; main()", "events", "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert follow.stdout is not None and "seen" in follow.stdout.readline()
    run("mark", "again")
    assert "again" in follow.stdout.readline()
    engine.kill()
    engine.wait()
    engine.stdout.close()
    _, errors = follow.communicate(timeout=30)
    assert follow.returncode == 3 and "went away" in errors and "post-mortem" in errors
    output = run("dump", "--post-mortem").output
    assert "killed or crashed" in output and "mark" in output and "again" in output


# -- flags ------------------------------------------------------------------------------------------------------------


def test_flags_lists_and_filters(running: Running) -> None:
    lines = run("flags").output.splitlines()
    assert len(lines) == len(FLAGS) + 1
    assert [line.split()[0] for line in run("flags", "sched.*").output.splitlines()[1:]] == [
        name for name in FLAGS if name.startswith("sched.")
    ]
    assert run("flags", "max_running").output.count("\n") == 2
    assert "did you mean sched.order" in run("flags", "sched.ordr", code=1).output
    run("set", "sched.order=prefix", "--why", "x")
    assert [line.split()[0] for line in run("flags", "--changed").output.splitlines()[1:]] == ["sched.order"]
    answer = json.loads(run("flags", "--json", "sched.order").output)
    assert [flag["name"] for flag in answer["flags"]] == ["sched.order"]


def test_get_prints_the_value_alone(running: Running) -> None:
    assert run("get", "sched.max_running").output == "64\n"
    assert run("get", "sched.paused").output == "off\n"
    assert json.loads(run("get", "sched.paused", "--json").output)["value"] is False
    assert "did you mean sched.max_running" in run("get", "max_running", code=1).output


def test_set_is_all_or_nothing(running: Running) -> None:
    output = run("set", "sched.max_running=16", "sched.order=prefix", "--why", "evening peak").output
    assert (
        "sched.max_running 64 → 16" in output
        and "sched.order fcfs → prefix" in output
        and "version 1" in output
    )
    result = run("set", "sched.max_running=32", "sched.order=sideways", "model.path=x", code=4)
    assert "nothing was applied" in result.output
    assert "sched.order" in result.output and "model.path" in result.output
    assert run("get", "sched.max_running").output == "16\n"
    assert "unchanged: sched.max_running is 16" in run("set", "sched.max_running=16").output


def test_set_dry_run_and_expect(running: Running) -> None:
    assert "nothing was changed" in run("set", "sched.max_running=16", "--dry-run").output
    assert run("get", "sched.max_running").output == "64\n"
    run("set", "sched.max_running=16", "--expect", "0")
    assert "someone changed them" in run("set", "sched.max_running=17", "--expect", "0", code=4).output


def test_set_for_a_time(running: Running) -> None:
    assert "takes it back at" in run("set", "sched.max_running=16", "--for", "0.2s").output
    until(lambda: running.engine.settings["sched.max_running"] == 64)
    for wrong in ("5x", "-1s", "0", "31d", "1e3", ""):
        assert "duration" in run("set", "sched.order=fcfs", "--for", wrong, code=2).output or True


@pytest.mark.parametrize("wrong", [["sched.order"], ["=x"], ["sched.order=a", "sched.order=b"], []])
def test_set_says_how_to_write_it(running: Running, wrong: list[str]) -> None:
    result = run("set", *wrong, code=2)
    assert "Traceback" not in result.output and "Error" in result.output


def test_unset(running: Running) -> None:
    run("set", "sched.order=prefix", "sched.paused=on")
    run("unset", "sched.order", "sched.paused", "--why", "done")
    assert (running.engine.settings["sched.order"], running.engine.settings["sched.paused"]) == (
        "fcfs",
        False,
    )
    assert "unchanged" in run("unset", "sched.order").output
    assert "did you mean" in run("unset", "sched.ordr", code=4).output
    run("unset", "../actions/pause", code=2)


def test_apply_takes_live_flags_and_lists_the_rest(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "night.toml").write_text(
        'description = "quiet"\n[sched]\nmax_running = 8\norder = "fcfs"\n[cache]\npage_size = 64\n[admission]\n'
    )
    (tmp_path / "profiles" / "bad.toml").write_text("[sched]\nmax_runing = 8\n")
    monkeypatch.chdir(tmp_path)
    assert "nothing was changed" in run("apply", "night", "--dry-run").output
    output = run("apply", "night").output
    assert "sched.max_running 64 → 8" in output and "sched.order" not in output
    assert "a restart is needed for:\n  cache.page_size 32 → 64" in output
    assert running.engine.settings.origin("sched.max_running").reason == "profile night"
    assert "already" in run("apply", "night").output
    assert "did you mean night" in run("apply", "nigth", code=1).output
    assert "bad.toml:2" in run("apply", "bad", code=1).output


def test_pause_and_resume(running: Running) -> None:
    assert "sched.paused off → on" in run("pause", "--why", "hold").output
    assert running.engine.settings["sched.paused"] is True
    assert "sched.paused on → off" in run("resume").output


# -- what runs --------------------------------------------------------------------------------------------------------


def test_sequences_and_cancel(running: Running) -> None:
    for _ in range(66):
        running.engine.submit(1_000_000)
    shows(running, running=64, waiting=2)
    lines = run("sequences").output.splitlines()
    assert len(lines) == 67 and lines[-1].endswith("running cap")
    assert "56 more" in run("sequences", "--limit", "10").output
    assert "cancelled 2" in run("cancel", "req-1", "req-2", "--why", "stuck").output
    result = run("cancel", "req-1", "req-3", code=1)
    assert "cancelled 1" in result.output and "neither running nor waiting: req-1" in result.output
    run("cancel", code=2)
    run("cancel", "x", "--all", code=2)
    assert "Aborted" in run("cancel", "--all", stdin="n\n", code=1).output
    shows(running, running=63, waiting=0)
    assert (
        "63 sequences" in (result := run("cancel", "--all", stdin="y\n")).output and "0 left" in result.output
    )


def test_drain_asks_first(running: Running) -> None:
    running.engine.submit(1_000_000)
    assert "Aborted" in run("drain", stdin="\n", code=1).output
    assert running.engine.published().draining is False
    assert "is cancelled" in run("drain", "--deadline", "5m", "--yes", "--why", "upgrade").output


def test_drain_waits_for_the_end(running: Running) -> None:
    threading.Timer(0.7, running.server.stop).start()
    assert "stopped" in run("drain", "--yes", "--wait").output


def test_mark_and_events(running: Running) -> None:
    assert "load begins" in run("mark", "load", "begins").output
    run("set", "sched.order=prefix", "--why", "because")
    lines = run("events").output.splitlines()
    assert "load begins" in lines[0] and f"uid {os.getuid()}" in lines[0]
    assert 'sched.order fcfs→prefix "because"' in lines[1]
    assert run("events", "-n", "1").output.splitlines() == lines[1:]
    assert [json.loads(line)["kind"] for line in run("events", "--json").output.splitlines()] == [
        "mark",
        "flags",
    ]


def test_text_of_others_cannot_act_on_the_terminal(running: Running) -> None:
    running.engine.submit(1_000_000, "evil\x1b[2J\nid")
    running.engine.events.add("fault", "bad\x1b]0;title\x07")
    shows(running, running=1)
    for output in (run("sequences").output, run("events").output):
        assert "\x1b" not in output and "\x07" not in output


def test_events_follow(running: Running) -> None:
    follow = subprocess.Popen(
        [sys.executable, "-u", "-c", "from arc.console.main import main; main()", "events", "-f", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert follow.stdout is not None
    running.engine.events.add("mark", "first")
    assert json.loads(follow.stdout.readline())["text"] == "first"
    running.engine.events.add("mark", "second")
    assert json.loads(follow.stdout.readline())["text"] == "second"
    follow.send_signal(signal.SIGINT)
    assert follow.wait(20) == 0
    follow.stdout.close()


# -- save -------------------------------------------------------------------------------------------------------------

BEFORE = """\
# my engine
extends = "default"   # the usual

[sched]
order = "fcfs"        # fair
max_running = 48      # measured on Tuesday

[cache]
page_size = 64
"""


def read_again(engine: SimulatedEngine, folder: Path) -> None:
    """The settings as of a start in `folder` now."""
    engine.changes.settings = load(
        folder=folder,
        environ={"ARC_SCHED_MAX_WAITING": "99"},
        overrides=("sched.prefill_chunk=32", "sched.max_step_tokens=200"),
    )


@pytest.fixture
def saving(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedEngine]:
    """An engine whose folder has an arc.toml, with one value from the command line and one from the environment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arc.toml").write_text(BEFORE)
    listening = Listening("sim")
    engine = SimulatedEngine("sim")
    read_again(engine, tmp_path)
    server = ControlServer(engine, listening, NA("off"))
    engine.start()
    server.start()
    yield engine
    server.stop()
    engine.stop()


def test_save_keeps_comments_order_and_mode_and_writes_runtime_values_alone(
    saving: SimulatedEngine, tmp_path: Path
) -> None:
    path = tmp_path / "arc.toml"
    path.chmod(0o640)
    run("set", "sched.max_running=16", "admission.policy=bucketed", "sched.paused=on")
    run("set", "sched.order=prefix", "--for", "1h")
    assert "dry run" in run("save", "--dry-run").output
    assert path.read_text() == BEFORE
    result = run("save")
    assert "sched.order is not saved" in result.output
    assert path.stat().st_mode & 0o777 == 0o640
    after = path.read_text()
    assert after.startswith(BEFORE.partition("max_running")[0])
    assert "max_running = 16      # measured on Tuesday" in after
    assert tomlkit.parse(after).unwrap() == {
        "extends": "default",
        "sched": {"order": "fcfs", "max_running": 16, "paused": True},
        "cache": {"page_size": 64},
        "admission": {"policy": "bucketed"},
    }
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"
    again = load(folder=tmp_path, environ={})
    assert again["sched.max_running"] == 16 and again["sched.paused"] is True


def test_save_says_what_will_cover_the_file(saving: SimulatedEngine, tmp_path: Path) -> None:
    run("set", "sched.prefill_chunk=64", "sched.max_waiting=50")
    output = run("save", "sched.prefill_chunk", "sched.max_waiting").output
    assert "sched.prefill_chunk=32 says 32 and covers arc.toml" in output
    assert "ARC_SCHED_MAX_WAITING says 99" in output
    assert tomlkit.parse((tmp_path / "arc.toml").read_text())["sched"]["prefill_chunk"] == 64  # pyright: ignore


def test_save_of_named_flags(saving: SimulatedEngine, tmp_path: Path) -> None:
    assert "nothing to save" in run("save").output
    run("set", "sched.max_running=16", "sched.paused=on")
    run("save", "sched.paused")
    assert "max_running = 48" in (tmp_path / "arc.toml").read_text()
    assert "no lasting runtime value" in run("save", "sched.max_step_tokens", code=1).output
    assert "no flag" in run("save", "sched.pausd", code=1).output


def test_save_makes_the_file_where_there_is_none(saving: SimulatedEngine, tmp_path: Path) -> None:
    (tmp_path / "arc.toml").unlink()
    read_again(saving, tmp_path)
    run("set", "sched.max_running=16")
    run("save")
    assert load(folder=tmp_path, environ={})["sched.max_running"] == 16


def test_save_keeps_a_link_a_link(saving: SimulatedEngine, tmp_path: Path) -> None:
    (tmp_path / "arc.toml").rename(tmp_path / "real.toml")
    (tmp_path / "arc.toml").symlink_to("real.toml")
    run("set", "sched.max_running=16")
    run("save")
    assert (tmp_path / "arc.toml").is_symlink()
    assert "max_running = 16" in (tmp_path / "real.toml").read_text()


def test_save_refuses_a_file_that_changed_meanwhile(
    saving: SimulatedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "arc.toml"
    run("set", "sched.max_running=16")
    whole = save_module.write_whole

    def meanwhile(target: Path, content: bytes, **options: Any) -> None:
        path.write_text(BEFORE + "# an editor was here\n")
        whole(target, content, **options)

    monkeypatch.setattr(save_module, "write_whole", meanwhile)
    assert "changed by someone else" in run("save", code=1).output
    assert path.read_text() == BEFORE + "# an editor was here\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("edit", [BEFORE + "# mine\n", BEFORE.replace("48", "32"), "", None])
def test_save_refuses_a_file_that_changed_since_the_engine_read_it(
    saving: SimulatedEngine, tmp_path: Path, edit: str | None
) -> None:
    path = tmp_path / "arc.toml"
    run("set", "sched.max_running=16")
    path.unlink() if edit is None else path.write_text(edit)
    for arguments in (["save"], ["save", "--dry-run"], ["save", "sched.max_running"]):
        output = run(*arguments, code=1).output
        assert "since the engine read it" in output and "by hand" in output and "restart" in output
        assert (path.read_text() if path.exists() else None) == edit
    path.write_text(BEFORE)  # as the engine read it
    run("save")
    assert "max_running = 16" in path.read_text()


def test_save_after_save(saving: SimulatedEngine, tmp_path: Path) -> None:
    """What was saved for this engine is known to it; an edit after that, or an earlier engine's save, is not."""
    path = tmp_path / "arc.toml"
    run("set", "sched.max_running=16")
    assert "written to" in run("save").output
    for arguments in (["save"], ["save", "--dry-run"]):
        output = run(*arguments).output
        assert "nothing to write" in output and "written to" not in output
    run("set", "sched.max_running=17")
    assert "written to" in run("save").output
    saved = path.read_text()
    path.write_text(saved + "# mine\n")
    assert "nothing to write" in run("save").output, "all values are there: no edit is at risk"
    run("set", "sched.max_running=18")
    run("save", code=1)
    path.write_text(saved)
    note = paths.saved_path("sim")
    known = note.read_bytes()
    note.write_bytes(known.replace(b'"started":', b'"started":1'))  # another engine's
    run("save", code=1)
    note.write_bytes(known[:-3])
    assert "damaged" in run("save", code=1).output
    assert path.read_text() == saved
    note.write_bytes(known)
    run("save")
    assert "max_running = 18" in path.read_text()


def test_a_save_that_fails_may_be_tried_again(saving: SimulatedEngine, tmp_path: Path) -> None:
    path = tmp_path / "arc.toml"
    path.write_text(BEFORE + "# padding\n" * 500)
    read_again(saving, tmp_path)
    run("set", "sched.max_running=16")
    run("save")
    run("set", "sched.max_running=17")
    assert process("save", preexec_fn=no_space, cwd=tmp_path).returncode == 1
    run("save")
    assert "max_running = 17" in path.read_text()


def test_save_refuses_what_is_no_toml(saving: SimulatedEngine, tmp_path: Path) -> None:
    run("set", "sched.max_running=16")
    for broken in ("[sched\n", "sched = 3\n", "\xff"):
        (tmp_path / "arc.toml").write_bytes(broken.encode("latin-1"))
        assert "arc.toml" in run("save", code=1).output
        assert (tmp_path / "arc.toml").read_bytes() == broken.encode("latin-1")


def no_space() -> None:
    """From here on the kernel refuses to write files past one kilobyte: as a full disk does, in the middle."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))


def test_a_full_disk_at_save_leaves_the_old_file_whole(saving: SimulatedEngine, tmp_path: Path) -> None:
    path = tmp_path / "arc.toml"
    big = BEFORE + "# padding\n" * 500
    path.write_text(big)
    read_again(saving, tmp_path)
    run("set", "sched.max_running=16")
    done = process("save", preexec_fn=no_space, cwd=tmp_path)
    assert done.returncode == 1, done
    assert "was not written" in done.stderr and "untouched" in done.stderr and "Traceback" not in done.stderr
    assert path.read_text() == big
    assert list(tmp_path.iterdir()) == [path]
    assert saving.settings["sched.max_running"] == 16


def test_a_full_disk_at_dump_leaves_no_half_dump(running: Running, tmp_path: Path) -> None:
    done = process("dump", "out.json", preexec_fn=no_space, cwd=tmp_path)
    assert done.returncode == 1 and "was not written" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert run("status").exit_code == 0


TOML_NAMES = st.sampled_from(["sched.max_running", "sched.order", "cache.prefix", "http.stall_s"])
TOML_VALUES = (
    st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(-1e6, 1e6)
    | st.sampled_from(["fcfs", 'a"b', "ü"])
)
DOCUMENTS = st.sampled_from(
    [
        "", "# only a comment", BEFORE, "sched.order = 'fcfs'\nsched.max_running = 3 # here\n",
        "sched = {order = 'fcfs'}\n", "[sched]\n\n[cache]\nprefix = true\n\n[sched.extra]\nx = 1\n",
        "[http]\nport = 1\r\n[sched]\r\norder='fcfs'\r\n",
        "profile = 'x'\n[cache] # c\n", "[a.b]\nc = 1\n",
    ]
)  # fmt: skip


@given(DOCUMENTS, st.dictionaries(TOML_NAMES, TOML_VALUES, min_size=1))
def test_an_edit_changes_what_it_should_and_nothing_else(document: str, changed: dict[str, Any]) -> None:
    """Whatever the file looks like: the values are in, all else is as it was, or the edit is refused by name."""
    try:
        after = edited(document.encode(), changed, Path("arc.toml")).decode()
    except Failure as failure:
        assert "arc.toml" in failure.message
        return
    wanted = tomlkit.parse(document).unwrap()
    for name, value in changed.items():
        table, _, key = name.partition(".")
        wanted.setdefault(table, {})[key] = value
    assert tomlkit.parse(after).unwrap() == wanted
    for comment in ("# only a comment", "# my engine", "# measured on Tuesday", "# here", "# c"):
        assert (comment in after) == (comment in document)


# -- dump -------------------------------------------------------------------------------------------------------------


def test_dump_writes_everything_known(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    running.engine.submit(5)
    assert running.engine.wait_finished(1)
    output = run("dump", "--why", "a report").output
    (path,) = tmp_path.glob("arc-dump-sim-*.json")
    assert path.name in output and path.stat().st_mode & 0o777 == 0o600
    dumped = msgspec.json.decode(path.read_bytes(), type=p.Dump)
    assert len(dumped.steps) == 5 and dumped.hello.name == "sim"
    assert json.loads(run("dump", "--json").output)["hello"]["name"] == "sim"


def test_a_post_mortem_of_an_engine_that_lives_does_not_say_that_it_ended(folders: Path) -> None:
    info = msgspec.structs.replace(SimulatedEngine("main").info, pid=os.getpid(), started=time.time())
    recorder = Recorder(paths.private_folder(paths.state_folder()) / "main.rec", info, {})
    recorder.closed(step(29, 4))
    recorder.opened(30, 4)
    output = run("dump", "--post-mortem").output
    assert "still lives: this is a picture of now" in output
    assert "step 30 was under way with 4 rows" in output
    assert "ended" not in output


def test_a_post_mortem_says_what_the_last_step_was_doing(folders: Path, tmp_path: Path) -> None:
    info = msgspec.structs.replace(SimulatedEngine("main").info, pid=2**22 + 1)  # a pid that cannot be
    path = paths.private_folder(paths.state_folder()) / "main.rec"
    recorder = Recorder(path, info, {"sched.max_running": 7, "sched.order": "fcfs"})
    for index in range(30):
        recorder.closed(step(index, 4))
    recorder.opened(30, 4)
    output = run("dump", "--post-mortem").output
    assert "killed or crashed" in output
    assert "step 30 was under way with 4 rows" in output and "ended inside it" in output
    assert "the last 10 of 30 kept steps" in output
    assert "sched.max_running = 7" in output and "sched.order" not in output
    assert json.loads(run("dump", "--post-mortem", "--json", str(path)).output)["open_step"] == 30
    recorder.closed(step(30, 4))
    assert "no step was under way; the last one, 30, had ended" in run("dump", "--post-mortem").output
    recorder.close()
    assert "ended on purpose" in run("dump", "--post-mortem").output
    (tmp_path / "x").write_text("no")
    assert "no recording" in run("dump", "--post-mortem", str(tmp_path / "x"), code=1).output
    assert str(path) in run("dump", "--post-mortem", "-e", "other", code=1).output


# -- how values are shown ---------------------------------------------------------------------------------------------


@given(st.floats(0, 1e9))
def test_durations_are_short_and_never_wrong_by_much(value: float) -> None:
    text = shown.seconds(value)
    assert len(text) <= 12
    if value >= 86_400:
        days, hours = text.replace(" d", "").replace(" h", "").split()
        assert abs(int(days) * 86_400 + int(hours) * 3600 - value) <= 3600
    elif ":" in text:
        parts = [int(part) for part in text.split(":")]
        assert abs(sum(part * 60**power for power, part in enumerate(reversed(parts))) - value) <= 1
    else:
        number, unit = text.split()
        assert float(number) * (0.001 if unit == "ms" else 1) == pytest.approx(value, abs=0.06)


@given(st.floats(0.01, 86_400 * 30), st.sampled_from(["", "s", "m", "h", "d"]))
def test_durations_are_read_as_written(number: float, unit: str) -> None:
    seconds = float(f"{number:.3f}") * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[unit]
    kind = durations.Duration()
    if 0 < seconds <= 30 * 86_400:
        assert kind.convert(f"{number:.3f}{unit}", None, None) == pytest.approx(seconds)
    else:
        with pytest.raises(Exception, match="out of range"):
            kind.convert(f"{number:.3f}{unit}", None, None)


def test_every_command_has_help() -> None:
    for name, command in arc.commands.items():
        output = run(name, "--help").output
        assert "Usage: arc" in output and command.short_help


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "\udcff=1"),
        ("set", "sched.max_running=\udcff"),
        ("cancel", "\udcff"),
        ("unset", "\udcff"),
        ("unset", "a b"),
        ("unset", "a?b"),
        ("unset", "sched.paused%"),
        ("get", "\udcff"),
        ("mark", "\udcff"),
        ("mark", "  "),
        ("set", "sched.max_running=8", "--why", "\udcff"),
        ("set", "sched.max_running=8", "--why", "two\nlines"),
    ],
)
def test_a_command_line_that_is_no_text_is_one_error_and_changes_nothing(
    running: Running, arguments: tuple[str, ...]
) -> None:
    wire = running.connect()
    before = wire.get("/v1/flags")["version"]
    result = CliRunner().invoke(arc, arguments, prog_name="arc")
    assert result.exit_code in (1, 2, 4), result.output
    assert result.output.count("Error: ") == 1
    assert isinstance(result.exception, SystemExit)
    assert "went away" not in result.output
    assert wire.get("/v1/flags")["version"] == before
