"""Places in a Redis stream: the ids that its server gives entries, of its clock's milliseconds and a number.

Owns how they are read, and nothing of what lies there.
"""

from __future__ import annotations


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
