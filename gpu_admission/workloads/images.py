"""The size of an image, from its first bytes, be they a file's or text. Owns how many are looked at.

Nothing is opened, fetched or decoded. What the headers of each format say is ``imageheaders``';
what an image costs must not be put here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gpu_admission.workloads.base64text import decoded
from gpu_admission.workloads.imageheaders import UNKNOWN, Size, stated_size

__all__ = ["HEADS", "NO_IMAGE", "UNKNOWN", "Size", "size_of_bytes", "size_of_text"]

NO_IMAGE: Final[Size] = (1, 1)
"""The size of what no decoder takes for an image: it will be refused, so it takes nothing."""
HEADS: Final = (1024, 64 * 1024, 1024 * 1024)
"""Characters of base64 in which a size is looked for, step by step."""
_TEXT_IMAGE = re.compile(
    rb"\s*(?:P[1-7FfGgPpyZz]|#|/\*|<|%!PS|SIMPLE|static|\w+ ?:)|.*image (?:size|type)",
    re.IGNORECASE | re.DOTALL,
)
"""How formats of images that are text begin (PNM, XBM, XPM, SVG, EPS, FITS), or what stands in them (IM)."""
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\f"))
_LONGEST_TEXT = 4096


def size_of_bytes(head: bytes) -> Size:
    """The size of the PNG, JPEG, GIF, WebP or AVIF that starts with ``head``.

    ``NO_IMAGE`` where it is text, or empty; ``UNKNOWN`` for all other formats.
    """
    size = stated_size(head)
    return NO_IMAGE if size == UNKNOWN and _is_plain_text(head[:_LONGEST_TEXT]) else size


def size_of_text(head: Callable[[int], str]) -> Size:
    """The size of the image in a data URL, or bare base64; ``head(n)`` is its first ``n`` characters.

    Metadata before the size can be long, so more is asked for step by step.
    """
    for length in HEADS:
        text = head(length)
        found = decoded(text)
        size = UNKNOWN if found is None else stated_size(found)
        if size != UNKNOWN or len(text) < length // 2:
            return size
    return UNKNOWN


def _is_plain_text(head: bytes) -> bool:
    if head.translate(None, _CONTROLS) != head or _TEXT_IMAGE.match(head):
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4 and error.reason == "unexpected end of data"
    return True
