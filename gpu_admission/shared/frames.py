"""How entries lie in the log's file, so that a reader finds its way past what a crash left there.

Owns the bytes of a file's head and of one frame. Pure; files are ``logfile``'s.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from gpu_admission.shared.protocol import Entry

_FRAME = struct.Struct("<4sIIQ")
_HEAD = struct.Struct("<8s16s36sQ")
_MAGIC = b"\x93gA\xe1"
_SNAPSHOT = b"\x93gA\xe5"
_FILE = b"GPUADM1\n"
_LOW = 0xFFFFFFFF
HEAD_SIZE = _HEAD.size


class Head(NamedTuple):
    """A log file's head. ``base``: the place in the whole log at which its entries begin."""

    lineage: bytes
    """The same in all files that continue one log."""
    boot: str
    """Which start of the host its times count from."""
    base: int

    def pack(self) -> bytes:
        return _HEAD.pack(_FILE, self.lineage, self.boot.encode(), self.base)

    @classmethod
    def unpack(cls, data: bytes) -> Head | None:
        """``None`` for what is no log file."""
        if len(data) < HEAD_SIZE:
            return None
        magic, lineage, boot, base = _HEAD.unpack_from(data)
        return cls(lineage, boot.rstrip(b"\0").decode("ascii", "replace"), base) if magic == _FILE else None


def frame(data: bytes, stamp: int, *, snapshot: bool = False) -> bytes:
    """One frame; ``stamp`` in nanoseconds."""
    magic = _SNAPSHOT if snapshot else _MAGIC
    return _FRAME.pack(magic, len(data), crc32(data, stamp & _LOW), stamp) + data


class Frames:
    """Reads entries out of a stream of bytes, and keeps their clock from going back."""

    def __init__(self) -> None:
        self.latest = 0
        """Nanoseconds of the last entry."""

    def read_snapshot(self, data: bytes) -> tuple[bytes | None, int]:
        """The snapshot that ``data`` begins with, if it does, and the bytes that it takes."""
        read: list[Entry] = []
        size = self._read_one(data, 0, _SNAPSHOT, read)
        return (read[0].data, size) if size else (None, 0)

    def read(self, data: bytes, entries: list[Entry]) -> int:
        """Append the whole entries at the start of ``data``; returns the bytes that they take.

        A frame that isn't whole is either still being written, and read next time, or what a
        writer left when it died: then a whole one follows, and all read on from there.
        """
        place, end = 0, len(data)
        while place < end:
            size = self._read_one(data, place, _MAGIC, entries)
            if size:
                place += size
                continue
            place_of_next = self._next_whole(data, place)
            if place_of_next < 0:
                return place
            place = place_of_next
        return place

    def _read_one(self, data: bytes, place: int, magic: bytes, entries: list[Entry]) -> int:
        """The bytes that the frame at ``place`` takes; 0 where none is whole."""
        start = place + _FRAME.size
        if start > len(data):
            return 0
        said, length, check, stamp = _FRAME.unpack_from(data, place)
        payload = data[start : start + length]
        if said != magic or len(payload) != length or crc32(payload, stamp & _LOW) != check:
            return 0
        if stamp > self.latest:
            self.latest = stamp
        entries.append(Entry(self.latest / 1e9, payload))
        return _FRAME.size + int(length)

    def _next_whole(self, data: bytes, place: int) -> int:
        """Where the next whole frame begins; -1 where there is none yet."""
        trial = Frames()
        while (place := data.find(_MAGIC, place + 1)) >= 0:
            if trial._read_one(data, place, _MAGIC, []):
                return place
        return -1
