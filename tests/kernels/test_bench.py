"""What the kernels' benchmark counts, by hand."""

from __future__ import annotations

from arc.kernels import bench
from arc.kernels.bench import Rates, Work


def test_decode_reads_each_latent_once():
    work = bench.decode_work([8192] * 64, heads=128, itemsize=2)
    assert work.bytes == 64 * 8192 * 1152 + 64 * 128 * (576 + 512) * 2
    assert work.operations == 64 * 8192 * 128 * (2 * 576 + 2 * 512)
    few = bench.decode_work([1], heads=1, itemsize=2)
    assert few == Work(2 * (576 + 576 + 512), 2 * (576 + 512))


def test_experts_read_the_weights_of_those_that_are_used():
    one = 3 * 7168 * 2048
    assert bench.experts_work(1, used=8, choices=8, itemsize=2) == Work(8 * one * 2 + 4 * 7168, 16 * one)


def test_a_line_gives_shares_of_what_was_measured():
    line = bench.line("x", 1e-3, 2e-3, Work(bytes=2e9, operations=3e11), Rates(bandwidth=4e12, matrix=1e15))
    assert line.split() == ["x", "1000.0", "50.0", "30.0", "2000.0", "2.00"]
