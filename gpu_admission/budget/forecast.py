"""How fast bytes come back, and so how long a wait will be.

Owns the measured drain rate. It measures only while somebody waits: bytes that come back
to an idle budget say nothing about how fast it can go.
"""

from __future__ import annotations

import math

_MEMORY = 30.0


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

    def seconds(self, size: int) -> float | None:
        """Seconds until ``size`` bytes have come back."""
        rate = self.rate
        return None if rate is None else size / rate
