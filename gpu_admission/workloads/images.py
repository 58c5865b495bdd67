"""The size of an image, from its first bytes. Owns the reading of files, base64 and data URLs.

Through ``imagesize`` (the extra ``images``), which reads headers only: no pixel is decoded,
and nothing is opened or fetched. What an image costs must not be put here.
"""

from __future__ import annotations

import binascii
import io
from collections.abc import Callable
from typing import Final, TypeAlias

Size: TypeAlias = tuple[int, int]
"""(width, height) in pixels."""

UNKNOWN: Final[Size] = (0, 0)
"""A size that can't be read: of a remote image, a broken one, or without ``imagesize``."""
HEADS: Final = (1024, 64 * 1024, 1024 * 1024)
"""Characters of base64 that a size is looked for in, one after the other."""
_BASE64 = ";base64,"


def size_of_bytes(head: bytes) -> Size:
    """The size of the PNG, JPEG, GIF, WebP or AVIF that starts with ``head``, or ``UNKNOWN``."""
    if not _is_known_format(head):
        return UNKNOWN
    try:
        import imagesize  # type: ignore[import-not-found,import-untyped,unused-ignore]

        width, height = imagesize.get(io.BytesIO(head))
        size = (int(width), int(height))
    except Exception:
        return UNKNOWN
    return size if min(size) > 0 else UNKNOWN


def size_of_text(head: Callable[[int], str]) -> Size:
    """The size of the image in a data URL, or bare base64; ``head(n)`` is its first ``n`` characters.

    Metadata that stands before the size can be long, so more is asked for step by step.
    """
    for length in HEADS:
        text = head(length)
        size = _size_of_base64(text)
        if size != UNKNOWN or len(text) < length // 2:
            return size
    return UNKNOWN


def _size_of_base64(text: str) -> Size:
    start = 0
    if text[:5].lower() == "data:":
        start = text.find(_BASE64) + len(_BASE64)
        if start < len(_BASE64):
            return UNKNOWN
    encoded = "".join(text[start:].split())
    try:
        head = binascii.a2b_base64(encoded[: len(encoded) // 4 * 4])
    except ValueError:
        return UNKNOWN
    return size_of_bytes(head)


def _is_known_format(head: bytes) -> bool:
    return (
        head.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8"))
        or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")
        or head[4:8] == b"ftyp"
    )
