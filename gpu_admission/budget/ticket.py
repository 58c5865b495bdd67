"""A ticket: one request's place in the ledger, from asking to its end."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class State(enum.Enum):
    """Each ticket ends exactly once."""

    NEW = "new"
    WAITING = "waiting"
    GRANTED = "granted"
    REFUSED = "refused"
    ENDED = "ended"


NEW, WAITING, GRANTED, REFUSED, ENDED = State
# Module-level names, since looking up a member of an enum takes longer than a grant.


class Ticket(msgspec.Struct, eq=False):
    """``bytes`` wanted in ``lane`` by ``flow``. The ledger writes the rest; times in seconds."""

    bytes: int
    lane: int = 0
    flow: Any = None
    state: State = NEW
    device: int = 0
    arrived: float = 0.0
    granted_at: float = 0.0
    head_since: float = 0.0
    passed: int = 0
    """How many later ones have started while this one was at the head."""
    charged: float = 0.0
    """Byte-seconds that its flow was charged in advance."""
    slot: int = -1
    owner: str = ""
    """The process that asked, where several share a ledger."""
    number: int = 0
    """Tells it from all others of its owner."""
    own_lane: int = -1
    """Its lane as its owner counts them, whose lanes need not be those in force; -1: not asked for yet."""
    waited_before: float = 0.0
    """Seconds that its request had waited before it asked: they count towards its longest wait."""
    started: bool = False
    """Its work has begun: the bytes are in use, whatever becomes of its process's membership."""
    waiter: Any = None
    """Whatever the caller needs to wake it; the ledger never looks."""

    def renew(self, size: int, lane: int, flow: Any) -> None:
        """Forget what became of it: it is asked for anew."""
        self.bytes, self.lane, self.flow, self.state = size, lane, flow, NEW
        self.device, self.passed, self.slot, self.started = 0, 0, -1, False
        self.arrived = self.granted_at = self.head_since = self.charged = 0.0

    def take_over(self, other: Ticket) -> None:
        """Take over what ``other`` is to the ledger, but keep whoever waits on this ticket."""
        self.bytes, self.lane, self.flow, self.state = other.bytes, other.lane, other.flow, other.state
        self.device, self.arrived, self.granted_at = other.device, other.arrived, other.granted_at
        self.head_since, self.passed, self.charged = other.head_since, other.passed, other.charged
        self.slot, self.started = other.slot, other.started
        self.owner, self.number = other.owner, other.number

    def go_on_as(self, other: Ticket, now: float) -> None:
        """Hold what ``other`` held, which was asked for in the same way, without a flow, and has ended."""
        self.device, self.owner, self.number = other.device, other.owner, other.number
        self.state, other.state = GRANTED, ENDED
        self.arrived = self.granted_at = now
        self.started = True

    def __repr__(self) -> str:
        return f"Ticket({self.bytes}, lane={self.lane}, state={self.state.value})"
