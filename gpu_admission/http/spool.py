"""The bytes of a long upload, in memory of its own that goes back to the system as it is read.

Owns why they are not simply kept as they came: thousands of small pieces, between others that live
longer, keep the heap from ever shrinking, and what is counted is no longer what is taken.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Iterator

_BLOCK = 1024 * 1024


class Spool:
    """Bytes that are appended at one end and taken from the other."""

    __slots__ = ("_blocks", "_first", "_size")

    def __init__(self) -> None:
        self._blocks: deque[mmap.mmap] = deque()
        self._first = 0
        """How many bytes of the first block have been taken."""
        self._size = 0
        """Bytes written since the beginning of the first block."""

    def append(self, piece: bytes) -> None:
        at = 0
        while at < len(piece):
            start = self._size % _BLOCK
            if self._size == len(self._blocks) * _BLOCK:
                self._blocks.append(_block())
            part = piece[at : at + _BLOCK - start]
            self._blocks[-1][start : start + len(part)] = part
            self._size += len(part)
            at += len(part)

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes, which are then gone."""
        taken = b"".join(self._parts(self._first, size))
        self._first += size
        while self._first >= _BLOCK:
            self._blocks.popleft().close()
            self._first -= _BLOCK
            self._size -= _BLOCK
        return taken

    def look(self, start: int, size: int) -> bytes:
        """``size`` bytes from ``start`` on, counted from the next one that is taken."""
        return b"".join(self._parts(self._first + start, size))

    def _parts(self, start: int, size: int) -> Iterator[bytes]:
        end = start + size
        while start < end:
            block, at = divmod(start, _BLOCK)
            part = self._blocks[block][at : min(_BLOCK, at + end - start)]
            yield part
            start += len(part)


def _block() -> mmap.mmap:
    if hasattr(mmap, "MAP_PRIVATE"):  # else a forked process would hold them too
        return mmap.mmap(-1, _BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, _BLOCK)
