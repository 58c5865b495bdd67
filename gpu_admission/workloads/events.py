"""What a client reads in a stream that has begun and can't go on. Owns the framing.

What each API says in its event is up to its dialect.
"""

from __future__ import annotations

from typing import Any

import msgspec


def sent_event(payload: Any, *, event: str = "") -> bytes:
    """``payload`` as one server-sent event."""
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + msgspec.json.encode(payload) + b"\n\n"


def problem_event(message: str, code: str) -> bytes:
    """The event of APIs that have no error event of their own."""
    return sent_event({"error": {"message": message, "code": code}}, event="error")
