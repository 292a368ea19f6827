"""What oneDNN and torch keep for the shape of a product is bounded: batches have other shapes at nearly every step."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

MOST_MIB = 220  # of 500 shapes: 118 to 122 where 128 are kept, 347 to 356 where 1,024 are, on a Xeon with AVX512_BF16
PRODUCTS = """
import sys
from arc.engine import environment
if sys.argv[1] == "bounded":
    environment.prepare()
import torch
from arc.engine.memory.legs import resident_bytes
torch.set_num_threads(1)
with torch.inference_mode():
    weight, x = torch.zeros(512, 192, dtype=torch.bfloat16), torch.zeros(512, 192, dtype=torch.bfloat16)
    for rows in (1, 512):
        torch.nn.functional.linear(x[:rows], weight)
    before = resident_bytes()
    for rows in range(2, 502):
        torch.nn.functional.linear(x[:rows], weight)
    print((resident_bytes() - before) / 2**20)
"""


def grown(how: str) -> float:
    """MiB."""
    unset = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-c", PRODUCTS, how]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)


@pytest.mark.parametrize("how", ["bounded", "as the libraries have it"])
def test_products_of_many_shapes_keep_little(how: str) -> None:
    """The second case shows that the first would see the growth; where oneDNN is not used, neither grows."""
    if how == "bounded":
        assert grown(how) < MOST_MIB
    elif torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert grown(how) > MOST_MIB
    else:
        assert grown(how) < MOST_MIB
