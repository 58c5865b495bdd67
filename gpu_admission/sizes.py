"""Sizes in bytes, as people write them and as we print them.

Owns the parsing of ``"6GiB"`` and its inverse. Every size that a user gives passes
through here, so that a wrong one is refused with the name of its setting.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

GIB = 2**30
MAX_BYTES = 2**62
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1024**n for n, letter in enumerate("kmgtp", start=1)},
    **{f"{letter}b": 1000**n for n, letter in enumerate("kmgtp", start=1)},
}


def parse_bytes(value: int | str, *, name: str = "size") -> int:
    """Bytes of ``value``: an ``int``, or text such as ``"6GiB"`` (1024s) or ``"6GB"`` (1000s).

    Raises ``TypeError`` for other types and ``ValueError`` for text that is no size, or a
    negative or absurd one; both name the setting ``name``.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"{name} must be bytes as an int or text such as '6GiB', not {type(value).__name__}")
    size = _parse_text(value, name) if isinstance(value, str) else value
    if not 0 <= size <= MAX_BYTES:
        raise ValueError(f"{name} must be between 0 and 2**62 bytes, got {value!r}")
    return size


def _parse_text(text: str, name: str) -> int:
    match = _SIZE.fullmatch(text) if len(text) <= 40 else None
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{name}={text[:40]!r} is not a size: write bytes, or '6GiB', '512MiB', '1.5GB'")
    number = Fraction(match[1])
    return math.ceil(number * unit)


def format_bytes(size: int) -> str:
    """``size`` in the largest binary unit that keeps it at 1 or more: ``"1.50 GiB"``."""
    if abs(size) < 1024:
        return f"{size} B"
    power = min((abs(size).bit_length() - 1) // 10, 5)
    return f"{size / 1024**power:.2f} {'KMGTP'[power - 1]}iB"
