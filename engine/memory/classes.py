"""Size classes: requests that differ a little share buffers, at a bounded price.

Buffers that follow the length of the KV cache grow a little every step. Kept by their exact size, each would serve one
step and then lie there; rounded up to a class, it serves all the sizes up to the next one.
"""

from __future__ import annotations

PER_DOUBLING = 8  # classes between a power of two and the next
# The least class, bytes. What is smaller stays with the C library, whose heap gives the next operation what the last
# one left, still in the cache, whatever the sizes: see docs/memory.md for what either costs.
LEAST = 1 << 20


def size_class(size: int) -> int:
    """The bytes of the smallest class that holds `size`: less than 1/8 more than `size` from LEAST on.

    A size in (2^k, 2^(k+1)] is rounded up to a multiple of 2^k / 8, and 2^k is less than the size.
    """
    if size <= LEAST:
        return LEAST
    step = (1 << (size - 1).bit_length() - 1) // PER_DOUBLING
    return -(-size // step) * step
