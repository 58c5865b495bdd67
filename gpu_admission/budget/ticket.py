"""A ticket: one request's place in the ledger, from asking to its end."""

from __future__ import annotations

import enum
from typing import Any


class State(enum.Enum):
    """Each ticket ends exactly once."""

    NEW = "new"
    WAITING = "waiting"
    GRANTED = "granted"
    REFUSED = "refused"
    ENDED = "ended"


class Ticket:
    """``bytes`` wanted in ``lane`` by ``flow``. The ledger writes the rest; times in seconds."""

    __slots__ = (
        "arrived",
        "bytes",
        "charged",
        "device",
        "flow",
        "granted_at",
        "head_since",
        "lane",
        "passed",
        "slot",
        "state",
        "waiter",
    )

    def __init__(self, size: int, lane: int = 0, flow: Any = None) -> None:
        self.bytes = size
        self.lane = lane
        self.flow = flow
        self.state = State.NEW
        self.device = 0
        self.arrived = 0.0
        self.granted_at = 0.0
        self.head_since = 0.0
        self.passed = 0
        """Times that a later one has started while this one was at the head."""
        self.charged = 0.0
        """Byte-seconds that its flow was charged in advance."""
        self.slot = -1
        self.waiter: Any = None
        """Whatever the caller needs to wake it; the ledger never looks."""

    def __repr__(self) -> str:
        return f"Ticket({self.bytes}, lane={self.lane}, state={self.state.value})"
