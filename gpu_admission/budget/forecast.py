"""How fast bytes come back, and so how long a wait will be.

Owns the measured rates and the formula of the forecast. A rate is measured only while
somebody waits: bytes that come back to an idle budget say nothing about how fast it can go.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpu_admission.budget.lanes import LaneState
    from gpu_admission.budget.ledger import Ledger

_MEMORY = 30.0
Rate: TypeAlias = tuple[float, float, float | None]
"""What a ``DrainRate`` remembers, to be written down."""


class DrainRate:
    """Bytes a second that leases give back under load, over about the last 30 seconds."""

    __slots__ = ("_busy", "_bytes", "_last")

    def __init__(self) -> None:
        self._bytes = 0.0
        self._busy = 0.0
        self._last: float | None = None

    def released(self, size: int, now: float, waiting: int) -> None:
        """``size`` bytes came back at ``now``, while ``waiting`` others waited for them."""
        if not waiting:
            self._last = None
            return
        if self._last is not None:
            passed = max(0.0, now - self._last)
            fade = math.exp(-passed / _MEMORY)
            self._bytes = self._bytes * fade + size
            self._busy = self._busy * fade + passed
        self._last = now

    @property
    def rate(self) -> float | None:
        """Bytes a second; ``None`` until two leases have ended while others waited."""
        return self._bytes / self._busy if self._busy > 0 and self._bytes > 0 else None

    def dump(self) -> Rate:
        """All that ``load`` needs to go on from here."""
        return self._bytes, self._busy, self._last

    def load(self, state: Rate) -> None:
        self._bytes, self._busy, self._last = state

    def seconds(self, size: int) -> float | None:
        """Seconds until ``size`` bytes have come back."""
        rate = self.rate
        return None if rate is None else size / rate


def seconds_to_start(ledger: Ledger, lane: LaneState, size: int, ahead: int, now: float) -> float | None:
    """When ``size`` bytes will start in ``lane``, behind ``ahead`` bytes that wait there.

    Those ahead leave the line as fast as it has got shorter lately, and then ``size`` bytes
    have to come back. One that is small passes them all: it needs room, and that the head
    may still be passed.
    """
    drain, head = ledger.drain, lane.head
    may_run = ledger.running < ledger.max_running
    room = ledger.available if may_run else 0
    missing = size - room
    if missing <= 0 and not ledger.waiting:
        return 0.0
    if head is None or not ahead:
        return drain.seconds(missing if missing > 0 else size)
    if may_run and ledger.max_bypass and size <= ledger.sizes.beside(head.bytes):
        held_back = ledger.is_due(head, now)
        return drain.seconds(max(0, head.bytes - room) + size if held_back else max(0, missing))
    line = lane.outflow.seconds(ahead)
    own = drain.seconds(size)
    return drain.seconds(ahead + size) if line is None or own is None else line + own
