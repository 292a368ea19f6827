"""One uniform number for each (seed, output position), the same whatever else runs.

A stream would tie a draw to how many draws came before it: batches, chunks, preemptions and retries would change it. A
counter-based generator has no such state. The hash is splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014), whose output function is a bijection with good avalanche.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd
_MASK = (1 << 64) - 1


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def stream_key(seed: int) -> int:
    """Where a seed's own splitmix64 sequence starts, 64 bits. Neighbouring seeds start far apart; any int is a seed."""
    return int(_mix(np.array([seed & _MASK], dtype=np.uint64) + _GAMMA)[0])


def uniforms(keys: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) with 53 bits, one a row: element `positions[i]` of the sequence of `keys[i]`."""
    bits = _mix(keys + (positions + np.uint64(1)) * _GAMMA)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
