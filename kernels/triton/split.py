"""How one launch of decode attention is cut along the cache, on the host, from the rows' lengths.

A program that walks a long row alone would hold the launch while the others are done. So rows are cut into parts of
near length, as many as fill the processors, and the longest parts start first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 64  # the most tokens that a program reads at once: parts begin at multiples of it, so none reads a cut block
_LEAST_PART = 256  # tokens: a shorter part would cost more in the reduction than it saves in the walk
_PROGRAMS_A_PROCESSOR = 2  # so that one that is done early finds another

ITEM_FIELDS = 4  # row, begin, end, part; part -1: the row's only one, whose result needs no reduction
ROW_FIELDS = 5  # first query, queries, length, first part, parts (0: the only part has no place of its own)


class Split(NamedTuple):
    items: NDArray[np.int32]  # [N, 4], the longest first
    rows: NDArray[np.int32]  # [R, 5]
    parts: int  # places for parts' results


def programs_wanted(processors: int, tiles: int) -> int:
    """How many parts to cut a step into, where each part takes `tiles` programs."""
    return max(1, _PROGRAMS_A_PROCESSOR * processors // tiles)


def most_items(rows: int, wanted: int) -> int:
    """No split of that many rows has more items, whatever the lengths: see `split`."""
    return rows + wanted


def split(lengths: Sequence[int], counts: Sequence[int], wanted: int) -> Split:
    """Cut rows into parts of at most total / wanted tokens, but not below the least worth a part.

    Row r has ceil(length / most) parts of equal size, so the sum over rows is at most R + total / most <= R + wanted.
    """
    length = np.asarray(lengths, dtype=np.int64)
    count = np.asarray(counts, dtype=np.int64)
    most = max(_LEAST_PART, -(-int(length.sum()) // wanted))
    most = -(-most // BLOCK) * BLOCK
    pieces = -(-length // most)
    blocks = -(-length // BLOCK)
    size = -(-blocks // pieces) * BLOCK
    pieces = -(-length // size)  # rounding up to blocks may have made the last part empty
    first_item = np.concatenate(([0], np.cumsum(pieces)))
    row = np.repeat(np.arange(len(length)), pieces)
    begin = (np.arange(first_item[-1]) - first_item[row]) * size[row]
    end = np.minimum(begin + size[row], length[row])
    places = np.where(pieces > 1, pieces, 0)
    first_part = np.concatenate(([0], np.cumsum(places)))
    part = np.where(pieces[row] > 1, first_part[row] + np.arange(first_item[-1]) - first_item[row], -1)
    items = np.stack((row, begin, end, part), axis=1).astype(np.int32)
    longest_first = np.argsort(begin - end, kind="stable")
    starts = np.concatenate(([0], np.cumsum(count)[:-1]))
    rows = np.stack((starts, count, length, first_part[:-1], places), axis=1).astype(np.int32)
    return Split(items[longest_first], rows, int(first_part[-1]))
