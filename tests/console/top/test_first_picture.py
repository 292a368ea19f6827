"""What is imported before the first picture stands: counted, since the time that it takes is the machine's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

# Runs the console on a recorded picture until its Overview stands, and prints which modules were there then, once the
# rest came by itself.
PROGRAM = """
import json, sys
from pathlib import Path
from arc.console.lazy import LazyCommand
from arc.console.main import COMMANDS
LazyCommand("top", COMMANDS["top"][0], "").load()
from arc.console.top.app import Console, Options
from arc.console.top.keys import keymap_path, read_keymap
from arc.console.top.store import Store
from textual.css.stylesheet import Stylesheet
from tests.console.top.recorded import picture
read_keymap(keymap_path())
store = Store()
store.show(picture())
parsed = []
plain = Stylesheet.reparse
Stylesheet.reparse = lambda self: (parsed.append(1), plain(self))[1]

async def look(pilot):
    while not any("Batch" in line for line in app.main.query_one("#body").text):
        await pilot.pause(0.001)
    first = sorted(sys.modules)
    while "arc.console.top.replay" not in sys.modules:
        await pilot.pause(0.05)
    print(json.dumps({"first": first, "parsed": len(parsed)}))
    app.exit()

app = Console(Options(Path("none")), store=store)
app.run(headless=True, auto_pilot=look)
"""

HEAVY = {
    "torch", "numpy", "aiohttp", "prometheus_client", "pynvml", "tomli", "csv", "statistics",
    "arc.console.ab.experiment", "arc.console.metrics.fetch", "arc.console.metrics.reading",
    "arc.console.top.apply", "arc.console.top.changes", "arc.console.top.demo", "arc.console.top.dialogs",
    "arc.console.top.experiments", "arc.console.top.export", "arc.console.top.fleet", "arc.console.top.help",
    "arc.console.top.metrics_reader", "arc.console.top.once", "arc.console.top.page_header",
    "arc.console.top.player", "arc.console.top.recording", "arc.console.top.views.page_panels", "arc.engine.config",
    "importlib.metadata",
}  # fmt: skip
MOST = {"arc": 58, "textual": 150}  # modules; two more than there are of ours, three of Textual's


def test_the_first_picture_imports_what_it_shows_and_no_more() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    found = json.loads(done.stdout)
    assert sorted(HEAVY & set(found["first"])) == []
    counted = Counter(name.partition(".")[0] for name in found["first"])
    assert {name: count for name, count in counted.items() if count > MOST.get(name, count)} == {}
    assert found["parsed"] == 0  # the style sheets were parsed once
