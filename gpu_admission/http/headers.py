"""The request headers that the edge obeys. Reads them; what follows from them is decided elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from gpu_admission.types import Scope

logger = logging.getLogger("gpu_admission")
_DEADLINES = (b"x-request-deadline", b"x-stainless-read-timeout")
_LONGEST = 10_000_000
"""A larger number is not taken for seconds to wait, but for a point in time."""


def of_the_body(scope: Scope) -> tuple[int | None, Sequence[str]]:
    """The body's length, where ``Content-Length`` is a plain number, and its content encodings.

    Encodings in the order in which they were applied. Any other length is ignored: bytes are counted.
    """
    headers = scope.get("headers", ())
    named = dict(headers)
    length: bytes | None = named.get(b"content-length")
    declared = int(length) if length and len(length) < 20 and length.isdigit() else None
    return declared, _encodings(headers) if b"content-encoding" in named else ()


def has_no_body(scope: Scope) -> bool:
    """Whether the headers alone say that no body follows (RFC 9112 6.3); if not, that shows later."""
    named = dict(scope.get("headers", ()))
    length = named.get(b"content-length")
    if length is not None:
        return bool(length == b"0")
    return scope.get("http_version", "").startswith("1") and b"transfer-encoding" not in named


def _encodings(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    values = b",".join([value for name, value in headers if name == b"content-encoding"])
    names = (name.strip().lower() for name in values.decode("latin-1").split(","))
    return [name for name in names if name not in ("", "identity")]


def deadline(scope: Scope) -> float | None:
    """Seconds that the client's headers say it will wait; a value that is no such number is ignored."""
    given = [(name, _seconds(value)) for name, value in scope.get("headers", ()) if name in _DEADLINES]
    if not given:
        return None
    _log_ignored(dict.fromkeys(name for name, seconds in given if seconds is None))
    return min((seconds for _, seconds in given if seconds is not None), default=None)


def _seconds(value: bytes) -> float | None:
    """``None`` for a point in time, milliseconds since 1970, or nonsense."""
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 <= seconds <= _LONGEST else None


def _log_ignored(names: Iterable[bytes]) -> None:
    """Log it once for a request, however often it sent the header. What was sent stays out of the log."""
    for name in names:
        logger.info("the request header %s is ignored: it must be seconds from now", name.decode("ascii"))
