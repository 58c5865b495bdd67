"""The request headers that the edge obeys. Reads them; what follows from them is decided elsewhere."""

from __future__ import annotations

import math

from gpu_admission.types import Scope

_DEADLINES = (b"x-request-deadline", b"x-stainless-read-timeout")


def declared_length(scope: Scope) -> int | None:
    """``Content-Length``, where it is a plain number; anything else is ignored and bytes are counted."""
    value: bytes = dict(scope.get("headers", ())).get(b"content-length", b"")
    return int(value) if value.isdigit() and len(value) < 20 else None


def encodings(scope: Scope) -> list[str]:
    """The body's content encodings in the order in which they were applied."""
    headers = scope.get("headers", ())
    if b"content-encoding" not in dict(headers):
        return []
    values = b",".join([value for name, value in headers if name == b"content-encoding"])
    names = (name.strip().lower() for name in values.decode("latin-1").split(","))
    return [name for name in names if name not in ("", "identity")]


def deadline(scope: Scope) -> float | None:
    """Seconds that the client will wait, by its own headers; nonsense is ignored."""
    waits = [_seconds(value) for name, value in scope.get("headers", ()) if name in _DEADLINES]
    shortest = min(waits, default=math.inf)
    return None if shortest == math.inf else shortest


def _seconds(value: bytes) -> float:
    try:
        seconds = float(value)
    except ValueError:
        return math.inf
    return seconds if seconds >= 0 else math.inf
