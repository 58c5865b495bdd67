"""The request headers that the edge obeys, found in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from gpu_admission.types import Scope

_DEADLINES = (b"x-request-deadline", b"x-stainless-read-timeout")
_OBEYED = frozenset((b"content-length", b"content-encoding", *_DEADLINES))

Found: TypeAlias = Sequence[tuple[bytes, bytes]]


def obeyed(scope: Scope) -> Found:
    """The headers of ``scope`` that the functions below read."""
    return [header for header in scope["headers"] if header[0] in _OBEYED]


def declared_length(headers: Found) -> int | None:
    """``Content-Length``, where it is one plain number; anything else is ignored and bytes are counted."""
    found = {value for name, value in headers if name == b"content-length"}
    if len(found) != 1:
        return None
    value = found.pop()
    return int(value) if value.isdigit() and len(value) < 20 else None


def encodings(headers: Found) -> list[str]:
    """The body's content encodings in the order in which they were applied."""
    values = b",".join([value for name, value in headers if name == b"content-encoding"])
    if not values:
        return []
    names = (name.strip().lower() for name in values.decode("latin-1").split(","))
    return [name for name in names if name not in ("", "identity")]


def deadline(headers: Found) -> float | None:
    """Seconds that the client will wait, by its own headers; nonsense is ignored."""
    waits = [_seconds(value) for name, value in headers if name in _DEADLINES]
    shortest = min(waits, default=math.inf)
    return None if shortest == math.inf else shortest


def _seconds(value: bytes) -> float:
    try:
        seconds = float(value)
    except ValueError:
        return math.inf
    return seconds if seconds >= 0 else math.inf
