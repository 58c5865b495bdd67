"""How entries are laid out in the log's file, so that a reader gets past what a crash left there.

Owns the bytes of a file's head and of one frame. Pure; files are ``logfile``'s.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import NamedTuple
from zlib import crc32

from gpu_admission.shared.protocol import Entry

_FRAME = struct.Struct("<4sIIQ")
_HEAD = struct.Struct("<8s16sQQ")
_SIZE = _FRAME.size
_ENTRY = b"\x93gA\xe1"
_SNAPSHOT = b"\x93gA\xe5"
_SEAL = b"\x93gA\xe9"
_FILE = b"GPUADM2\n"
_LOW = 0xFFFFFFFF
_unpack = _FRAME.unpack_from
_entry = partial(tuple.__new__, Entry)  # takes half the time
HEAD_SIZE = _HEAD.size


class Head(NamedTuple):
    """A log file's head. ``base``: the place in the whole log at which its entries begin."""

    lineage: bytes
    """The same in all files that continue one log."""
    number: int
    """Which of these files it is."""
    base: int

    def pack(self) -> bytes:
        return _HEAD.pack(_FILE, self.lineage, self.number, self.base)

    @classmethod
    def unpack(cls, data: bytes) -> Head | None:
        """``None`` for what is no log file."""
        if len(data) < HEAD_SIZE:
            return None
        magic, lineage, number, base = _HEAD.unpack_from(data)
        return cls(lineage, number, base) if magic == _FILE else None


def frame(data: bytes, stamp: int) -> bytes:
    """An entry; ``stamp`` in nanoseconds."""
    return _FRAME.pack(_ENTRY, len(data), crc32(data, stamp & _LOW), stamp) + data


def snapshot_frame(data: bytes, stamp: int) -> bytes:
    """What the log said up to here, at the beginning of a file that continues another."""
    return _FRAME.pack(_SNAPSHOT, len(data), crc32(data, stamp & _LOW), stamp) + data


def seal_frame(stamp: int) -> bytes:
    """The end of a file: the log goes on in the next."""
    return _FRAME.pack(_SEAL, 0, crc32(b"", stamp & _LOW), stamp)


class Frames:
    """Reads entries out of a stream of bytes, and keeps their clock from going back."""

    def __init__(self) -> None:
        self.latest = 0
        """Nanoseconds of the last entry."""
        self.is_sealed = False
        """Whether the seal was read: anything after it came too late and counts nowhere."""

    def read_snapshot(self, data: bytes) -> tuple[bytes | None, int]:
        """The snapshot that ``data`` begins with, if it does, and the bytes that it takes."""
        found = _whole(data, 0)
        if found is None or found[0] != _SNAPSHOT:
            return None, 0
        self.latest = found[2]
        return found[1], _SIZE + len(found[1])

    def read(self, data: bytes, entries: list[Entry]) -> int:
        """Append the whole entries at the start of ``data``; returns the bytes that they take.

        A frame that isn't whole is either still being written, and is read next time, or was left by
        a writer that died: then a whole one follows, and everyone reads on from there.
        """
        place, end, latest = 0, len(data), self.latest
        while place < end and not self.is_sealed:
            start = place + _SIZE
            if start <= end:
                magic, length, check, stamp = _unpack(data, place)
                payload = data[start : start + length]
                if magic == _ENTRY and crc32(payload, stamp & _LOW) == check and len(payload) == length:
                    latest = max(stamp, latest)
                    entries.append(_entry((latest / 1e9, payload)))
                    place = start + length
                    continue
            found = _next_whole(data, place)
            if found is None:
                break
            place, self.is_sealed = found
        self.latest = latest
        return place


def _next_whole(data: bytes, place: int) -> tuple[int, bool] | None:
    """Where the next whole entry or seal begins, and whether it is a seal; ``None``: there is none yet."""
    while (place := data.find(_ENTRY[:3], place)) >= 0:
        found = _whole(data, place)
        if found is not None and found[0] in (_ENTRY, _SEAL):
            return place, found[0] == _SEAL
        place += 1
    return None


def _whole(data: bytes, place: int) -> tuple[bytes, bytes, int] | None:
    """Kind, payload and stamp of the frame at ``place``, if it is whole."""
    start = place + _SIZE
    if start > len(data):
        return None
    kind, length, check, stamp = _unpack(data, place)
    payload = data[start : start + length]
    if len(payload) != length or crc32(payload, stamp & _LOW) != check:
        return None
    return kind, payload, stamp
