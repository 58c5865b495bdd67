"""How fast bytes come back, and so how long a wait will be.

Owns the measured rates and the formula of the forecast. A rate is measured only while
somebody waits: bytes that come back to an idle budget say nothing about how fast it can go.
"""

from __future__ import annotations

import math
from typing import TypeAlias

_MEMORY = 30.0
Rate: TypeAlias = tuple[float, float, float | None]
"""The state of a ``DrainRate``, to be written down."""


class DrainRate:
    """Bytes a second that leases give back under load, over about the last 30 seconds."""

    __slots__ = ("_busy", "_bytes", "last")

    def __init__(self) -> None:
        self._bytes = 0.0
        self._busy = 0.0
        self.last: float | None = None
        """When bytes last came back while others waited; ``None`` while nothing waits."""

    def released(self, size: int, now: float, waiting: int) -> None:
        """``size`` bytes came back at ``now``, while ``waiting`` others waited for them."""
        if not waiting:
            self.last = None
            return
        if self.last is not None:
            passed = max(0.0, now - self.last)
            fade = math.exp(-passed / _MEMORY)
            self._bytes = self._bytes * fade + size
            self._busy = self._busy * fade + passed
        self.last = now

    @property
    def rate(self) -> float | None:
        """Bytes a second; ``None`` until two leases have ended while others waited."""
        return self._bytes / self._busy if self._busy > 0 and self._bytes > 0 else None

    def dump(self) -> Rate:
        """All that ``load`` needs to go on from here."""
        return self._bytes, self._busy, self.last

    def load(self, state: Rate) -> None:
        self._bytes, self._busy, self.last = state

    def seconds(self, size: int) -> float | None:
        """Seconds until ``size`` bytes have come back."""
        rate = self.rate
        return None if rate is None else size / rate


def seconds_in_line(size: int, ahead: int, drain: DrainRate, outflow: DrainRate) -> float | None:
    """When ``size`` bytes will start behind ``ahead`` bytes that wait.

    Those ahead leave the line as fast as it has been getting shorter (``outflow``); then ``size``
    bytes have to come back (``drain``).
    """
    line, own = outflow.seconds(ahead), drain.seconds(size)
    return drain.seconds(ahead + size) if line is None or own is None else line + own


def seconds_to_pass(size: int, room: int, head: int, drain: DrainRate, *, held_back: bool) -> float | None:
    """When ``size`` bytes will start that are small enough to pass a head of ``head`` bytes.

    They need room in the ``room`` that is free; where the head is overdue (``held_back``),
    they start after it.
    """
    return drain.seconds(max(0, head - room) + size if held_back else max(0, size - room))
