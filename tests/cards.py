"""Devices whose facts a test sets, looked at when it says so, at a time that it moves.

Nothing here waits. The fixture ``by_hand`` in ``conftest`` puts the clock in place.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from gpu_admission.testing import look
from gpu_admission.types import DeviceReading, Limit, Outcome

__all__ = ["Card", "HandClock", "Opinion", "look"]


class HandClock:
    """``time.monotonic`` for admissions and cards; moves when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


class Card:
    """A device with others on it, our weights, and what our leases have filled. Bytes."""

    def __init__(
        self, clock: HandClock, total: int | None = 100, *, name: str = "card", **facts: Any
    ) -> None:
        self.clock = clock
        self.total = total
        self.name = name
        self.key = name
        self.foreign = self.resident = self.filled = 0
        self.cache: int | None = None
        """What our allocator keeps for later; ``None``: it does not tell."""
        self.facts: dict[str, Any] = {}
        """Further fields of a reading."""
        self.reads: list[str] = []
        """The thread of each look."""
        for fact, value in facts.items():
            setattr(self, fact, value)

    def read(self) -> DeviceReading:
        self.reads.append(threading.current_thread().name)
        if self.total is None:
            return DeviceReading(taken_at=self.clock(), **{"error": "the driver is gone", **self.facts})
        used = self.foreign + self.ours
        told: dict[str, Any] = {
            "total": self.total,
            "used": used,
            "free": self.total - used,
            "ours": self.ours,
        }
        if self.cache is not None:
            told |= {"reserved": self.ours, "allocated": self.ours - self.cache}
        return DeviceReading(taken_at=self.clock(), **{**told, **self.facts})

    @property
    def ours(self) -> int:
        return self.resident + self.filled + (self.cache or 0)


class Opinion:
    """A guard that says what it is told to, and remembers what it was shown."""

    name = "opinion"

    def __init__(self, limit: Any = None, **attributes: Any) -> None:
        self.limit = limit
        self.reason = "because"
        self.shown: list[Outcome] = []
        self.error: Exception | None = None
        self.asked = 0
        for attribute in ("name", "begin"):
            if attribute in attributes:
                setattr(self, attribute, attributes.pop(attribute))
        self.more = attributes

    def ceiling(
        self, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
    ) -> int | Limit | None:
        self.asked += 1
        self.shown += outcomes
        if self.error is not None:
            raise self.error
        limit: int | None = self.limit
        if not self.more:
            return limit
        said = Limit(bytes=limit, reason=self.reason, **self.more)
        self.more.pop("action", None)
        return said

    def __deepcopy__(self, memo: object) -> Opinion:
        """The test keeps its hold on it."""
        return self
