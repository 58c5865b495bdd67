"""The first bytes of pictures and sounds, as small as their formats allow."""

from __future__ import annotations

import base64
import struct
import zlib


def png(width: int, height: int) -> bytes:
    """A PNG's signature and header; the pixels are not there."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


def jpeg(width: int, height: int, metadata: int = 0) -> bytes:
    """A JPEG up to its frame header, behind ``metadata`` bytes of application segments."""
    segments = b"".join(
        b"\xff\xe2" + struct.pack(">H", min(left, 60_000) + 2) + bytes(min(left, 60_000))
        for left in range(metadata, 0, -60_000)
    )
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + segments + frame + b"\xff\xda" + bytes(16)


def gif(width: int, height: int, frame: tuple[int, int] | None = None) -> bytes:
    """A screen with a palette of two colours, a comment, and the head of the first frame."""
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return screen + b"!\xfe\x03abc\0" + b"," + struct.pack("<4HB", 0, 0, *(frame or (width, height)), 0)


def webp(width: int, height: int) -> bytes:
    """The extended form, whose canvas stands in the header."""
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    chunk = b"VP8X" + struct.pack("<I", 10) + bytes(4) + size
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def avif(width: int, height: int) -> bytes:
    """File type, and the boxes that lead to the size of the first item."""
    extents = _box(b"ispe", bytes(4) + struct.pack(">II", width, height))
    association = _box(b"ipma", bytes(4) + struct.pack(">IHBB", 1, 1, 1, 0x81))
    properties = _box(b"iprp", _box(b"ipco", extents) + association)
    item = _box(b"infe", b"\x02\x00\x00\x00" + struct.pack(">HH", 1, 0) + b"av01\x00")
    items = _box(b"iinf", bytes(4) + struct.pack(">H", 1) + item)
    handler = _box(b"hdlr", bytes(8) + b"pict" + bytes(13))
    primary = _box(b"pitm", bytes(4) + struct.pack(">H", 1))
    meta = _box(b"meta", bytes(4) + handler + primary + items + properties)
    return _box(b"ftyp", b"avif" + bytes(4) + b"avifmif1") + meta


def wav(
    rate: int = 16_000, channels: int = 1, bits: int = 16, *, data: int = 0, said: int | None = None
) -> bytes:
    """A WAV of ``data`` bytes of silence; ``said`` is the byte rate that its header states."""
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * block if said is None else said, block, bits)
    chunks = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", data) + bytes(data)
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", 8 + len(content)) + kind + content
