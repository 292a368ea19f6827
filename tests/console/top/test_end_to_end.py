"""The console on a real terminal, and over a real engine: a policy is changed, its effect seen, and it is put back."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path

from .conftest import Engine
from .real import APART, Real
from .terminal import ARC, Terminal


def test_on_a_terminal_it_draws_takes_keys_and_leaves_it_as_it_was(engine: Engine) -> None:
    engine.engine.submit(1_000_000, "long")
    terminal = Terminal("top")
    terminal.read_until("1 Overview")
    terminal.read_until("● serving")
    terminal.write("2")
    terminal.read_until("● running")
    terminal.write("q")
    assert terminal.wait() == 0
    assert terminal.output.rfind(b"\x1b[?1049l") > terminal.output.rfind(
        b"\x1b[?1049h"
    )  # back from the other screen
    assert b"Traceback" not in terminal.output


def test_what_a_killed_console_recorded_is_replayed(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "seen.top"
    engine.engine.submit(1_000_000, "long")
    terminal = Terminal("top", "--record", str(path))
    terminal.read_until("● rec")
    terminal.read_until("● serving")
    os.kill(terminal.pid, signal.SIGKILL)
    assert terminal.wait() == -signal.SIGKILL
    terminal = Terminal("replay", str(path))
    terminal.read_until("◀ replaying")
    terminal.read_until("THE FILE IS NOT WHOLE")
    terminal.write("2>>>>")
    terminal.read_until("● running")
    terminal.write("q")
    assert terminal.wait() == 0


def test_without_a_terminal_it_says_what_to_use(engine: Engine) -> None:
    done = subprocess.run(
        [*ARC, "top"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 2 and "--once" in done.stderr
    done = subprocess.run([*ARC, "top", "--once"], capture_output=True, text=True, check=True)
    assert "1 Overview" in done.stdout and "● serving" in done.stdout


def test_the_console_needs_no_torch_and_once_no_textual(engine: Engine) -> None:
    code = """
import sys
sys.modules["torch"] = None
from arc.console.commands.top import top
top(["--once"], standalone_mode=False)
assert "textual" not in sys.modules
import arc.console.top.app
assert "numpy" not in sys.modules and "aiohttp" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# -- a real engine ------------------------------------------------------------------------------------------------

SIZE = (120, 40)
_READINGS = 12


FROM_CANCEL = "\t\t\r"  # to Apply, where Cancel has the focus: the change hurts


def type_a_change(terminal: Terminal, flag: str, keys: str, becomes: str, agree: str = "\r") -> None:
    """As an operator does it: view 5, the flag by the filter, its value by `keys`, apply, and out of the filter."""
    terminal.write("5")
    terminal.shows("[5 Flags]")
    terminal.write(f"/^{flag}\r")
    terminal.shows("1 of 1")
    terminal.write("e")
    terminal.shows(f"─ {flag} ─")
    terminal.write(keys)
    terminal.shows(f"1 to apply: {flag}")
    terminal.write("a")
    terminal.shows("Dry run")
    terminal.write(agree)
    terminal.shows("no edits")
    terminal.shows(becomes)
    terminal.write("\x1b")
    terminal.shows(lambda lines: f"/^{flag}/" not in lines[-1])


def batch(lines: list[str]) -> tuple[int, int] | None:
    """Running sequences and the effective batch, as the Overview's Batch panel has them."""
    text = "\n".join(lines)
    running, effective = (
        re.search(r"^ running +(\d+)", text, re.M),
        re.search(r"^ effective +(\d+)", text, re.M),
    )
    return (int(running[1]), int(effective[1])) if running and effective else None


def comes_to(terminal: Terminal, lowest: float, highest: float) -> None:
    """Until the effective batch is this share of what runs, in the median of the last pictures with something to share:
    a single picture may be of a step at the edge of a request."""
    shares: list[float] = []

    def look(lines: list[str]) -> bool:
        read = batch(lines)
        if read is not None and read[0] >= 4 and lines != seen:
            seen[:] = lines
            shares.append(read[1] / read[0])
        return len(shares) >= _READINGS and lowest <= statistics.median(shares[-_READINGS:]) <= highest

    seen: list[str] = []
    terminal.shows(look, 120.0)


def test_the_effective_batch_falls_under_bucketed_admission_and_rises_again(real: Real) -> None:
    terminal = Terminal("top", size=SIZE)
    with real.asked(APART):
        comes_to(terminal, 0.8, 1.0)
        type_a_change(terminal, "admission.policy", "\x1b[B\r", "bucketed", FROM_CANCEL)
        terminal.write("1")
        terminal.shows("policy ragged→bucketed")  # named on the plots
        comes_to(terminal, 0.0, 0.6)
        terminal.write("6")
        terminal.shows("admission.policy ragged→bucketed")
        type_a_change(terminal, "admission.policy", "\x1b[A\r", "ragged")
        terminal.write("1")
        comes_to(terminal, 0.8, 1.0)
    terminal.write("q")
    assert terminal.wait() == 0 and b"Traceback" not in terminal.output


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_killed_engine_that_comes_back_is_gone_then_restarted_and_can_be_operated(real: Real) -> None:
    terminal = Terminal("top", size=SIZE)
    with real.asked([(8, 400)]):
        terminal.shows("● serving")
        terminal.shows(lambda lines: (batch(lines) or (0, 0))[0] == 1)
        real.end(signal.SIGKILL)
        terminal.shows("○ gone")
        gone = terminal.shows(
            lambda lines: any("engine gone since" in line and "last picture kept" in line for line in lines)
        )
        assert (batch(gone) or (0, 0))[0] == 1  # the last picture stands
        terminal.write("m")
        terminal.shows("the engine is gone: nothing can be changed")
    real.begin()
    terminal.shows("▲ RESTARTED")
    terminal.shows("● serving")
    terminal.shows(lambda lines: not any("engine gone" in line for line in lines))
    with real.asked([(8, 400)]):
        terminal.shows(lambda lines: (batch(lines) or (0, 0))[0] == 1)
        type_a_change(terminal, "sched.max_running", "7\r", "7 ◆ runtime")
    terminal.write("q")
    assert terminal.wait() == 0 and b"Traceback" not in terminal.output


WEDGED = "from arc.engine.scheduler.scheduler import Scheduler; Scheduler._fits = lambda self, forming, entry: False"


def test_an_engine_that_admits_nobody_is_loud_with_the_reason_and_who_holds_the_pages(folder: Path) -> None:
    """The scheduler lets the first in line in when nothing runs, so the fault has to be put into it."""
    wedged = Real(folder, broken=WEDGED)
    terminal = Terminal("top", size=SIZE)
    try:
        terminal.shows("● serving")
        with wedged.asked([(8, 10), (30, 10)]):
            terminal.shows("▲ NOTHING RUNS, 2 wait: 2 no pages")
            terminal.shows("pages held by prefix cache 0, by running 0, free")
            terminal.shows("→ report `arc dump`")
            terminal.write("2")
            terminal.shows(lambda lines: sum("○ waiting no pages" in line for line in lines) == 2)
            wedged.end(signal.SIGKILL)
        terminal.write("q")
        assert terminal.wait() == 0 and b"Traceback" not in terminal.output
    finally:
        wedged.end(signal.SIGKILL)


def test_engines_that_start_later_join_the_fleet_and_those_that_go_stay_grey(folder: Path) -> None:
    terminal = Terminal("top", "--all", size=SIZE)
    terminal.shows("no engine runs here yet")
    engines: list[Real] = []
    try:
        engines.append(second := Real(folder, name="second"))
        terminal.shows("fleet of 1")
        terminal.shows(lambda lines: any(re.search(r"second +● serving", line) for line in lines))
        second.end(signal.SIGKILL)
        terminal.shows(lambda lines: any(re.search(r"second +○ gone", line) for line in lines))
        terminal.shows("● 0 answer  ○ 1 gone")
        engines.append(first := Real(folder))
        terminal.shows("● 1 answer  ○ 1 gone")
        first.end()
        terminal.shows("● 0 answer  ○ 2 gone")
        second.begin()
        terminal.shows(lambda lines: any(re.search(r"second +▲ restarted", line) for line in lines))
        second.end()  # on purpose: its socket goes with it, and the row stays
        terminal.shows(lambda lines: any(re.search(r"second +○ gone", line) for line in lines))
        terminal.write("\x1b[B\r")  # an engine of the fleet is opened, also one that is gone
        terminal.shows("Esc fleet")
        terminal.shows("engine gone since")
        terminal.write("\x1b")
        terminal.shows("fleet of 2")
    finally:
        for each in engines:
            each.end(signal.SIGKILL)
    terminal.write("q")
    assert terminal.wait() == 0 and b"Traceback" not in terminal.output
