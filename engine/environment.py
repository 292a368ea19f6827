"""What the libraries below read from the environment of the engine's process, and read once: set before they are used.

Whoever set one of them already knows why, and is left alone.
"""

from __future__ import annotations

import os

# An idle OpenMP thread must sleep, not spin: on a busy machine a spinning pair makes small operations 300 times slower
# (docs/performance.md). Read when torch is imported.
_OMP = {"OMP_WAIT_POLICY": "PASSIVE"}

# oneDNN keeps what it prepared for a product of one shape, and so does torch above it: about 0.3 MiB each, and each
# keeps 1,024 of them. A batch has other shapes at nearly every step, so the torch backend would grow by a GiB
# (docs/memory.md). Read at the first product.
_PREPARED = "128"
_ONEDNN = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": _PREPARED, "LRU_CACHE_CAPACITY": _PREPARED}


def prepare() -> None:
    for name, value in (_OMP | _ONEDNN).items():
        os.environ.setdefault(name, value)
