"""Places in a Redis stream: the ids that its server gives entries, of its clock's milliseconds and a number.

Owns how they are read, and nothing of what lies there.
"""

from __future__ import annotations

import re

_PLACE = re.compile(rb"[0-9]{1,18}-[0-9]{1,20}")


def is_place(said: bytes | None) -> bool:
    """Whether it is one: what stands in a key may have been written by anybody."""
    return said is not None and _PLACE.fullmatch(said) is not None


def order(place: bytes) -> tuple[int, int]:
    """What places are compared by."""
    milliseconds, _, number = place.partition(b"-")
    return int(milliseconds), int(number)


def just_before(place: bytes) -> bytes:
    """The last place before ``place``: to read from there on includes it."""
    milliseconds, number = order(place)
    return b"%d-%d" % ((milliseconds, number - 1) if number else (milliseconds - 1, (1 << 64) - 1))


def seconds_of(place: bytes) -> float:
    """The server's time when it gave out ``place``."""
    return int(place.partition(b"-")[0]) / 1000
