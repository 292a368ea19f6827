"""A/B experiments from the console: asked for at a flag, run on a thread of their own, watched and stopped here."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Select, Static

from ...engine.control import protocol as p
from ...engine.flags import FlagError, Value, show
from .. import shown
from ..ab.experiment import Experiment, Progress, default_guards
from ..ab.metrics import METRICS
from ..ab.plan import ALPHA, Plan, divided
from ..ab.report import Block, Report
from ..ab.report import lines as report_lines
from ..exits import Failure
from ..files import write_whole
from .views.flags import Flags, checked

if TYPE_CHECKING:
    from .app import Console
    from .main_screen import Main

TIMES = (("2 minutes", 120.0), ("10 minutes", 600.0), ("30 minutes", 1800.0), ("2 hours", 7200.0))
_LEAVES_WITHIN = 20.0  # seconds that leaving the console waits for the flag to be given back
_REDRAW = 0.5  # seconds
_STRIP = 24  # blocks of each arm that are drawn


class Experiments:
    """At most one at a time. `report` is that of the last one."""

    def __init__(self, app: Console, main: Main) -> None:
        self._app = app
        self._main = main
        self._experiment: Experiment | None = None
        self._thread: threading.Thread | None = None
        self._leaving = False
        self.progress: Progress | None = None

    @property
    def runs(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def open(self, flags: Flags, may_change: Callable[[], bool]) -> None:
        """Watch the one that runs or ran last; else ask for one on the flag under the cursor."""
        row = flags.chosen
        if self.runs:
            self._app.push_screen(Watch(self))
        elif self._main.view is not flags or row is None:
            if self.progress is not None:
                self._app.push_screen(Watch(self))
            else:
                self._main.tell("choose a flag first: view 5")
        elif row.reach != "live":
            self._main.tell(
                f"{row.name} takes effect at a restart only: it cannot be tried on live traffic", "warning"
            )
        elif may_change():
            self._app.push_screen(Ask(row), self._start)

    def _start(self, plan: Plan | None) -> None:
        if plan is None:
            return
        socket = self._app.socket
        assert socket is not None, "only an engine with a control socket was asked for a plan"
        experiment = Experiment(plan, socket, self._told)
        self._experiment, self.progress = experiment, None

        def run() -> None:
            try:
                experiment.run()
            except Failure as failure:
                self._say(failure.message, "error")

        self._thread = threading.Thread(target=run, name="arc-ab", daemon=True)
        self._thread.start()
        self._app.push_screen(Watch(self))

    def _told(self, progress: Progress) -> None:
        """From the experiment's thread."""
        self.progress = progress
        if progress.report is not None:
            self._say(f"A/B of {progress.report.flag}: {progress.report.end}: {progress.report.why}")

    def _say(self, text: str, how: str = "information") -> None:
        """From the experiment's thread. While the console waits for that thread, its screen takes no words."""
        if not self._leaving:
            self._app.back(lambda: self._main.tell(text, how))

    def stop(self, why: str) -> None:
        if self._experiment is not None:
            self._experiment.stop(why)

    def leave(self) -> None:
        """The console ends: give the flag back first. Past the wait, the engine does it by itself."""
        if self.runs and self._thread is not None:
            self._leaving = True
            self.stop("the console was left")
            self._thread.join(_LEAVES_WITHIN)


class Ask(ModalScreen[Plan | None]):
    """Two values of one flag, the metric, and how long."""

    BINDINGS = [Binding("escape", "leave", "back")]  # noqa: RUF012

    def __init__(self, row: p.FlagView) -> None:
        super().__init__()
        self._row = row

    def compose(self) -> ComposeResult:
        row = self._row
        about = [
            "Switches the flag back and forth on the live traffic, in random order, and estimates the ratio.",
            f"{row.allowed}; now {show(row.value)}",
        ]
        if row.danger:
            about.append(f"▲ {row.danger}")
        guards = default_guards(METRICS["step_ms"], METRICS)
        limits = ", ".join(f"{guard.metric.name} {guard.limit:g}x" for guard in guards)
        about.append(f"It stops when a guard is hurt ({limits} worse, unless compared itself).")
        with Vertical(classes="dialog") as box:
            box.border_title = Text(f"A/B of {row.name}")
            with VerticalScroll(classes="text"):
                yield Static(Text("\n".join(about)))
            values = Input(f"{show(row.value)},", placeholder="first,second", id="values")
            values.cursor_blink = False
            yield values
            with Horizontal(id="over"):
                yield Select(((f"{each.name}: {each.meaning}", each.name) for each in METRICS.values()),
                             value="itl_p95", allow_blank=False, id="metric")  # fmt: skip
                yield Select(TIMES, value=600.0, allow_blank=False, id="limit")
            with VerticalScroll(classes="answer"):
                yield Static("", id="answer")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="no")
                yield Button("Start", id="yes", variant="primary")

    def on_mount(self) -> None:
        self.query_one("#values", Input).focus()

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "no":
            self.dismiss(None)
            return
        metric, limit = self.query_one("#metric", Select).value, self.query_one("#limit", Select).value
        assert isinstance(metric, str) and isinstance(limit, float)
        values = self._values(self.query_one("#values", Input).value)
        if isinstance(values, str):
            self.query_one("#answer", Static).update(Text(values))
            return
        block, washout = divided(limit, None, None)
        self.dismiss(
            Plan(
                flag=self._row.name, values=values, metric=METRICS[metric], seconds=limit, block=block, washout=washout,
                guards=default_guards(METRICS[metric], METRICS), alpha=ALPHA, margin=None, seed=time.time_ns(),
            )
        )  # fmt: skip

    def _values(self, text: str) -> tuple[Value, Value] | str:
        """Both values, or what is wrong."""
        parts = [part.strip() for part in text.split(",")]
        if len(parts) != 2 or not all(parts):
            return "write two values with a comma between"
        try:
            first, second = (checked(self._row, part) for part in parts)
        except FlagError as error:
            return error.message
        return "these are the same value" if first == second else (first, second)


class Watch(ModalScreen[None]):
    """Both arms, the ratio and the time that is left, as they come."""

    BINDINGS = [Binding("escape", "leave", "back")]  # noqa: RUF012

    def __init__(self, experiments: Experiments) -> None:
        super().__init__()
        self._experiments = experiments

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Text("A/B")
            with VerticalScroll(classes="text"):
                yield Static("", id="arms")
            with Horizontal(classes="buttons"):
                yield Button("Back", id="no")
                yield Button("Write report", id="write")
                yield Button("Stop it", id="yes", variant="error")

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()
        self._draw()
        self.set_interval(_REDRAW, self._draw)

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "no":
            self.dismiss(None)
        elif event.button.id == "yes":
            self._experiments.stop("stopped in the console")
        elif (progress := self._experiments.progress) is not None and progress.report is not None:
            try:
                path = write_report(progress.report, Path.cwd())
            except Failure as failure:
                self.notify(failure.message, severity="error", markup=False)
            else:
                self.notify(f"written: {path}", markup=False)

    def _draw(self) -> None:
        progress = self._experiments.progress
        ended = progress is not None and progress.report is not None
        self.query_one("#yes", Button).disabled = not self._experiments.runs
        self.query_one("#write", Button).disabled = not ended
        text = "asking the engine …" if progress is None else "\n".join(watched(progress))
        with contextlib.suppress(AttributeError):  # a screen that is being taken down has no size
            self.query_one("#arms", Static).update(Text(text))


def write_report(report: Report, folder: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(report.started))
    path = folder / f"arc-ab-{report.flag}-{stamp}.json"
    write_whole(path, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return path


def watched(progress: Progress) -> list[str]:
    """An experiment as lines: what it says so far, and each arm's last blocks as bars."""
    if progress.report is not None:
        return report_lines(progress.report)
    plan, found = progress.plan, progress.estimate
    ratio = (
        f"no look yet; the first comes after {progress.look} pairs"
        if found is None
        else f"ratio {found.ratio:.3f}, {found.low:.3f} to {found.high:.3f} with {100 * found.confidence:.1f} %"
    )
    return [
        f"{plan.metric.name} ({plan.metric.meaning}), {plan.metric.better} is better",
        f"pair {progress.pair + 1} of {plan.pairs}, {progress.spoilt} left out   "
        f"{shown.seconds(progress.seconds_left)} left",
        ratio,
        "",
        *(_arm(progress, arm) for arm in (0, 1)),
    ]


def _arm(progress: Progress, arm: int) -> str:
    blocks = [block for block in progress.blocks if block.arm == arm]
    known = sorted(block.value for block in blocks if not isinstance(block.value, p.NA))
    top = max((block.value for block in progress.blocks if not isinstance(block.value, p.NA)), default=0.0)
    here = "▶" if progress.arm == arm else " "
    middle = f"{known[len(known) // 2]:,.4g} {progress.plan.metric.unit}" if known else "--"
    bars = "".join(_bar(block, top) for block in blocks[-_STRIP:])
    return f"{here} {show(progress.plan.values[arm]):>12}  {middle:>14}  {bars}"


def _bar(block: Block, top: float) -> str:
    """An eighth of a cell's height is the least; a block that could not be measured is a dot."""
    if isinstance(block.value, p.NA):
        return "·"
    return "▁▂▃▄▅▆▇█"[min(7, int(8 * block.value / top))] if top else "▁"
