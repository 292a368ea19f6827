"""Commands whose work is the engine's: this process becomes `python -m` of it, for the console imports no engine."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def run_module(module: str, arguments: list[str]) -> NoReturn:
    """Does not return. -P: no file of the folder that it runs in may pose as a module."""
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}  # as of `arc serve`
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], environment)
