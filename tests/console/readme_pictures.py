"""`make pictures`: the README's pictures, of the real console over the carried model with the demo load running.

An engine of its own is started in folders of its own. In the middle of the window the policy is changed in the console,
so that the pictures show what it does: bucketed admission runs only rows of one length together, and the effective
batch leaves what is admitted behind. DejaVu Sans Mono is what the lines are drawn with; without it another font.
"""

from __future__ import annotations

import asyncio
import html
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import resvg_py
from arc.console.top.app import Console, Options
from arc.console.top.apply import Apply
from arc.console.top.demo import CLIENTS
from arc.console.top.dialogs import Choose, Prompt
from arc.engine.control.span_messages import SpanReport
from textual.pilot import Pilot
from textual.widgets import Input

SIZE = (120, 36)
PIXELS = 9 * SIZE[0]  # width of a picture
LOADED = 14.0  # seconds of load before the policy is changed, and after it: together a window of 30
FONT = "DejaVu Sans Mono"
ARC = [sys.executable, "-c", "from arc.console.main import main; main()"]


async def until(pilot: Pilot[None], condition: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise click.ClickException("the console did not come to what the picture should show")
        await pilot.pause(0.1)


def png(svg: str) -> bytes:
    """The fonts of the SVG are on a server: drawn with one that is here."""
    plain = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    plain = re.sub(r"font-family: [^;]+;", f"font-family: {FONT};", plain)
    plain = _TEXT.sub(_in_cells, plain)
    return bytes(resvg_py.svg_to_bytes(svg_string=plain, width=PIXELS))


_TEXT = re.compile(
    r'<text class="([^"]+)" x="([0-9.]+)" y="([0-9.]+)" textLength="([0-9.]+)"([^>]*)>([^<]*)</text>'
)


def _in_cells(found: re.Match[str]) -> str:
    """Plots a letter at a time: the font's dots are wider than its spaces, and a row of both would be stretched."""
    kind, x, y, length, rest, text = found.groups()
    letters = html.unescape(text)
    if not any("\u2800" <= letter <= "\u28ff" for letter in letters):
        return found[0]
    cell = float(length) / len(letters)
    return "".join(
        f'<text class="{kind}" x="{float(x) + cell * place:g}" y="{y}" textLength="{cell:g}"{rest}>{letter}</text>'
        for place, letter in enumerate(letters)
        if letter.strip()
    )


async def take(socket: Path, folder: Path) -> None:
    app = Console(Options(socket, hz=2.0))
    async with app.run_test(size=SIZE) as pilot:

        async def take_one(name: str) -> None:
            app.clear_notifications()
            await pilot.pause(0.5)
            (folder / f"{name}.png").write_bytes(png(app.export_screenshot(title="arc top")))

        def value(flag: str) -> object:
            row = app.main.flags.find(flag)
            return row.value if row else None

        await until(pilot, lambda: app.store.picture.snapshot is not None)
        await pilot.press("L", "left_square_bracket")
        await until(pilot, lambda: (seen := app.store.picture.snapshot) and seen.running > CLIENTS // 2)
        await pilot.pause(LOADED)
        app.main.changes.choose_flag("admission.policy")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        await pilot.press("down", "enter", "a")
        await until(pilot, lambda: isinstance(app.screen, Apply) and app.screen.query("#reason"))
        app.screen.query_one("#reason", Input).value = "what does it cost?"
        await pilot.click("#yes")
        await until(pilot, lambda: value("admission.policy") == "bucketed")
        await pilot.press("1")
        await pilot.pause(LOADED)
        await take_one("overview")
        await pilot.press("3")
        await pilot.pause(3.0)  # the load's first prompt, the one step without decode rows, leaves the window
        await until(pilot, lambda: isinstance(app.store.picture.spans, SpanReport))
        await take_one("spans")
        await pilot.resize_terminal(SIZE[0], 24)
        await pilot.press("2")
        await until(pilot, lambda: (seen := app.store.picture.sequences) and len(seen.sequences) > 4)
        await pilot.pause(1.0)  # they are drawn: Enter follows a row
        await pilot.press(*["full_stop"] * 10, "home", "enter")  # by age, the oldest followed
        await take_one("sequences")
        await pilot.resize_terminal(*SIZE)
        await pilot.press("5")
        app.main.changes.choose_flag("admission.policy")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        await pilot.press("up", "enter")
        app.main.changes.choose_flag("sched.max_running")
        await until(pilot, lambda: isinstance(app.screen, Prompt) and app.screen.query(Input))
        app.screen.query_one(Input).value = "8"
        await pilot.press("enter")
        app.main.flags.choose("log.level")  # its source is no path of the machine that takes the picture
        await pilot.press("a")
        await until(pilot, lambda: isinstance(app.screen, Apply) and app.screen.query("#reason"))
        app.screen.query_one("#reason", Input).value = "back to ragged, with a smaller cap"
        await pilot.click("#try")
        await pilot.pause(1.0)
        await take_one("flags")
        await pilot.press("escape")


def main() -> None:
    folder = Path(__file__).resolve().parents[2] / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="arc-p-") as base:
        os.environ |= {"XDG_RUNTIME_DIR": f"{base}/run", "XDG_STATE_HOME": f"{base}/state"}
        Path(base, "run").mkdir(mode=0o700)
        command = [*ARC, "serve", "--http.port", "0", "--log.level", "error", "--profile.enabled", "on"]
        engine = subprocess.Popen(command, cwd=base, stdout=subprocess.PIPE, text=True)
        try:
            assert engine.stdout is not None
            if not any("API" in line for line in engine.stdout):
                raise click.ClickException("the engine did not start")
            asyncio.run(take(Path(base, "run", "arc", "main.sock"), folder))
        finally:
            engine.send_signal(signal.SIGTERM)
            engine.wait()
    for path in sorted(folder.glob("*.png")):
        click.echo(f"{path} {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
