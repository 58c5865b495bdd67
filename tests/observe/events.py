"""Events as an admission emits them, for tests of what observers make of them."""

from __future__ import annotations

from typing import Any

from gpu_admission.types import Estimate, Event


def event(kind: Any, **fields: Any) -> Event:
    """An event of lease 1 in lane ``default``, at second 0, of 100 bytes."""
    known: dict[str, Any] = {
        "at": 0.0,
        "route": "/generate",
        "lane": "default",
        "bytes": 100,
        "lease": 1,
        "device": "device",
        "estimate": Estimate(100),
        "outcome": "ok",
        "actual": fields.get("peak"),
    }
    return Event(kind=kind, **(known | fields))
