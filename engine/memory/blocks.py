"""Blocks of host memory straight from the system: page-aligned, and gone from this process when they are closed.

The C library serves up to 32 MiB from its heap, where one small chunk on top keeps everything below it resident, and
maps anything above afresh at each use, at about 1.6 us a page fault. A block does neither.
"""

from __future__ import annotations

import ctypes
import mmap


class Block:
    __slots__ = ("_map", "address", "size", "view")

    def __init__(self, size: int) -> None:
        """Raises MemoryError when the system has none left."""
        try:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"the system gives no {size:,} bytes: {error.strerror}") from error
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.view = memoryview(self._map)

    def close(self) -> None:
        """Give it back to the system. Nothing may refer to it: BufferError when something does."""
        self.view.release()
        self._map.close()
