"""The size that an image's header states, format by format. Owns the walk to it.

Each reader follows the file as decoders do: where a second header could overrule the first
(PNG, JPEG), or a frame the screen (GIF), or where the bytes at hand end before that is sure,
it says ``UNKNOWN``. No pixel is decoded.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

Size: TypeAlias = tuple[int, int]
"""(width, height) in pixels."""

UNKNOWN: Final[Size] = (0, 0)
"""A size that can't be read: of a remote image, a broken one, or a format that is not known."""

_FRAMES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
"""JPEG's markers for a frame header."""
_BARE = frozenset((0x01, *range(0xD0, 0xD9)))
"""JPEG's markers that no length follows."""
_SCAN = frozenset((0xD9, 0xDA))
_MARKER = re.compile(rb"\xff([^\x00\xff])", re.DOTALL)
_MOST_PIECES = 512
"""Chunks or segments before the size; a file with more is not followed any further."""
_LEAST_CUT = 700
"""A head of at least this many bytes may be cut off: a shorter one is the whole file."""
_EXTENT = re.compile(rb"ispe.{4}(.{4})(.{4})", re.DOTALL)


def stated_size(head: bytes) -> Size:
    """The size of the PNG, JPEG, GIF, WebP or AVIF that starts with ``head``, or ``UNKNOWN``."""
    try:
        width, height = _reader(head)(head)
    except (struct.error, IndexError):
        return UNKNOWN
    return (width, height) if width > 0 and height > 0 else UNKNOWN


def _reader(head: bytes) -> Callable[[bytes], Size]:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png
    if head.startswith(b"\xff\xd8\xff"):
        return _jpeg
    if head.startswith((b"GIF87a", b"GIF89a")):
        return _gif
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _webp
    return _avif if head[4:8] == b"ftyp" else lambda head: UNKNOWN


def _png(head: bytes) -> Size:
    """The one header chunk before the first data. Some readers take the last of several."""
    size, at = UNKNOWN, 8
    for _ in range(_MOST_PIECES):
        if at >= len(head):
            return size if len(head) < _LEAST_CUT else UNKNOWN
        length, kind = struct.unpack_from(">I4s", head, at)
        if kind == b"IDAT" or not kind.isalpha():
            return size
        if kind == b"IHDR":
            if size != UNKNOWN:
                return UNKNOWN
            size = struct.unpack_from(">II", head, at + 8)
        at += 12 + length
    return UNKNOWN


def _jpeg(head: bytes) -> Size:
    """The one frame header before the first scan. Some readers take the last of several."""
    size, at = UNKNOWN, 2
    for _ in range(_MOST_PIECES):
        found = _MARKER.search(head, at)
        if found is None:
            return UNKNOWN
        marker, at = found[1][0], found.end()
        if marker in _SCAN:
            return size
        if marker in _BARE:
            continue
        if marker in _FRAMES:
            if size != UNKNOWN:
                return UNKNOWN
            height, width = struct.unpack_from(">HH", head, at + 3)
            size = (width, height)
        (length,) = struct.unpack_from(">H", head, at)
        at += max(length, 2)
    return UNKNOWN


def _gif(head: bytes) -> Size:
    """The screen, or the first frame where that is larger: readers enlarge the screen to it."""
    width, height, flags = struct.unpack_from("<HHB", head, 6)
    at = 13 + _palette_bytes(flags)
    for _ in range(_MOST_PIECES):
        if head[at] != 0x21:
            break
        at = _behind_blocks(head, at + 2)
    if head[at] != 0x2C:
        return UNKNOWN
    left, top, frame_width, frame_height = struct.unpack_from("<4H", head, at + 1)
    return max(width, left + frame_width), max(height, top + frame_height)


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _behind_blocks(head: bytes, at: int) -> int:
    while head[at]:
        at += 1 + head[at]
    return at + 1


def _webp(head: bytes) -> Size:
    """The canvas of the extended form, or the frame of a simple one."""
    kind = head[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if kind == b"VP8L" and head[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", head, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    return UNKNOWN


def _avif(head: bytes) -> Size:
    """The largest extent of any item: those of tiles and thumbnails are smaller than the picture's."""
    meta = next((box for kind, box in _boxes(head) if kind == b"meta"), b"")
    extents = [struct.unpack(">II", first + second) for first, second in _EXTENT.findall(meta)]
    if not extents:
        return UNKNOWN
    return max(width for width, _ in extents), max(height for _, height in extents)


def _boxes(head: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The boxes of the file that end within ``head``."""
    at = 0
    while at + 8 <= len(head):
        length, kind = struct.unpack_from(">I4s", head, at)
        if length < 8 or at + length > len(head):
            return
        yield kind, head[at + 8 : at + length]
        at += length
