"""The memory that requests running together share: seen when several run, since one alone can't show it.

Owns the estimate of that part: a batch's step, a workspace, whatever each takes when alone but all take
only once. It is the least that any moment has shown, so a moment with few requests at their peak does no
harm.
"""

from __future__ import annotations

import math
from typing import Protocol

from gpu_admission.runtime import clock

_FEW = 3
"""How many requests have to run together to show it."""
_ENOUGH = 20
"""Moments needed before it is believed."""
_MOST = 200
"""Moments after which no more are looked at."""
_BELIEVED = 0.8


class Look(Protocol):
    """What shows the bytes in use."""

    @property
    def idle(self) -> int | None:
        """Bytes in use while nothing ran; ``None``: not seen yet."""
        ...

    def resume(self) -> int:
        """Start looking, beside whatever runs."""
        ...

    def peak(self) -> int:
        """The most bytes in use since then; look no more."""
        ...


class Company:
    """Who runs now, and what they share. Not thread-safe: every call is made inside the ledger's turn."""

    def __init__(self, *, seconds: float = 0.05) -> None:
        """``seconds``: how long a moment has to last, so that whoever has just begun is at work."""
        self._seconds = seconds
        self._least = math.inf
        self._moments = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Nothing runs, as in a forked process; what was seen stays."""
        self._running: dict[int, float] = {}
        self._since = 0.0
        self._is_looking = False

    @property
    def shared(self) -> float:
        """Bytes that all running requests take only once, together."""
        return _BELIEVED * max(0.0, self._least) if self._moments >= _ENOUGH else 0.0

    def joins(self, who: int, alone: float, meter: Look) -> None:
        """One more runs, which would take ``alone`` bytes by itself; NaN where that is not known."""
        self._look(meter, len(self._running) + 1)
        self._running[who] = alone

    def leaves(self, who: int, meter: Look) -> None:
        """One has ended."""
        if who in self._running:
            self._look(meter, len(self._running) - 1)
            del self._running[who]

    def ran_out(self) -> None:
        """Memory ran out: they have nothing in common until it has been seen again."""
        self._least, self._moments = math.inf, 0

    def _look(self, meter: Look, after: int) -> None:
        """The moment that ends now, in which the same requests ran throughout; ``after`` run in the next."""
        now = clock.monotonic()
        lasted, self._since = now - self._since, now
        if self._is_looking and meter.idle is not None:
            self._weigh(meter.peak() - meter.idle, lasted)
        self._is_looking = meter.idle is not None and after >= _FEW and self._moments < _MOST
        if self._is_looking:
            meter.resume()

    def _weigh(self, used: int, lasted: float) -> None:
        apart = sum(self._running.values())
        if lasted >= self._seconds and not math.isnan(apart):
            self._moments += 1
            self._least = min(self._least, (apart - used) / (len(self._running) - 1))
