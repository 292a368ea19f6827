"""How many threads compute, by who computes: cpu.threads, asked in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CORES = len(os.sched_getaffinity(0))

ASK = """
import sys
from pathlib import Path
import torch
from arc.engine.core.assembly import assemble
from tests.engine.core.living import settings_for
model, backend, threads = sys.argv[1:]
flags = {"kernels__backend": backend, "cpu__threads": threads}
assemble(settings_for(Path(model), Path(model).parent, **flags))
print(torch.get_num_threads())
"""


@pytest.mark.parametrize(
    ("backend", "threads", "wanted"),
    [
        ("native", "auto", CORES),
        ("torch", "auto", max(1, CORES - 1)),  # its threads wait for each other: a core is left to the API
        ("native", "3", 3),
        ("torch", "3", 3),
    ],
)
def test_auto_takes_every_core_where_no_thread_waits_for_another(tiny: Path, backend, threads, wanted):
    asked = subprocess.run(
        [sys.executable, "-c", ASK, str(tiny), backend, threads],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert asked.returncode == 0, asked.stderr
    assert int(asked.stdout) == wanted
