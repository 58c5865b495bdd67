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


NEW, WAITING, GRANTED, REFUSED, ENDED = State
# By these names they are found at once: looking up a member of an enum takes longer than a grant.


class Ticket:
    """``bytes`` wanted in ``lane`` by ``flow``. The ledger writes the rest; times in seconds.

    The defaults are the class's, so that a request that starts at once pays for none of
    what only a waiting one needs.
    """

    state = NEW
    device = 0
    arrived = 0.0
    granted_at = 0.0
    head_since = 0.0
    passed = 0
    """Times that a later one has started while this one was at the head."""
    charged = 0.0
    """Byte-seconds that its flow was charged in advance."""
    slot = -1
    owner = ""
    """The process that asked, where several share a ledger."""
    number = 0
    """Tells it from all others of its owner."""
    started = False
    """Its work has begun: whatever becomes of its process's membership, the bytes are in use."""
    waiter: Any = None
    """Whatever the caller needs to wake it; the ledger never looks."""

    def __init__(self, size: int, lane: int = 0, flow: Any = None) -> None:
        self.bytes = size
        self.lane = lane
        self.flow = flow

    def renew(self, size: int, lane: int, flow: Any) -> None:
        """Forget what became of it: it is asked for anew."""
        waiter = self.waiter
        self.__dict__.clear()
        self.bytes, self.lane, self.flow, self.waiter = size, lane, flow, waiter

    def take_over(self, other: Ticket) -> None:
        """Become what ``other`` is to the ledger; whoever waits on this one stays."""
        waiter = self.waiter
        self.__dict__.update(other.__dict__)
        self.waiter = waiter

    def __repr__(self) -> str:
        return f"Ticket({self.bytes}, lane={self.lane}, state={self.state.value})"
