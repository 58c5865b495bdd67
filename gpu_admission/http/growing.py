"""One large piece made of small ones, in memory that goes back to the system once it is dropped.

Owns how such bytes are made: a buffer that grows in the heap of a reader's thread leaves gaps behind
that nobody counts, and a single large copy would hold up all other threads.
"""

from __future__ import annotations

import io
import os

IN_HEAP = 1024 * 1024
"""Up to this size the heap is good enough."""
_MAPPED = 33 * 1024 * 1024
"""The C library gives memory of its own to whatever is larger than this, in any state of its heap."""


def spare(size: int) -> int:
    """Bytes that making a piece of ``size`` bytes takes beside them, until it is made."""
    return size // 8 if size <= IN_HEAP else size


class Growing:
    """Bytes that are written one after the other, and then had as a whole. Closed by ``with``."""

    __slots__ = ("_file", "size")

    def __init__(self) -> None:
        self._file: io.BytesIO | io.FileIO = io.BytesIO()
        self.size = 0

    def write(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > IN_HEAP and isinstance(self._file, io.BytesIO):
            self._file = _file_of(self._file)
        rest = memoryview(piece)
        while rest:
            rest = rest[self._file.write(rest) :]

    def whole(self) -> bytes:
        """All that was written."""
        if isinstance(self._file, io.BytesIO):
            return self._file.getvalue()
        return os.pread(self._file.fileno(), max(self.size, _MAPPED), 0)

    def __enter__(self) -> Growing:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


def _file_of(begun: io.BytesIO) -> io.BytesIO | io.FileIO:
    """A file in memory that begins with ``begun``; where there are none, ``begun`` itself."""
    try:
        file = io.FileIO(os.memfd_create("body"), "wb+")
    except (AttributeError, OSError):
        return begun
    file.write(begun.getbuffer())
    return file
