"""One device's bytes: what may be held there, and what is. Which request gets them is up to the ledger."""

from __future__ import annotations

import math


class Account:
    """One device's bytes."""

    __slots__ = ("capacity", "ceiling", "in_use", "limit", "max_running", "running")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.ceiling: int | None = None
        self.limit = capacity
        """What may be held now: the smaller of capacity and ceiling."""
        self.in_use = 0
        self.running = 0
        self.max_running: float = math.inf
        """How many leases may run on it at once; a breaker that tries the device out sets this low."""

    @property
    def free(self) -> int:
        """Bytes that may start here now; below 0 when nothing may."""
        return self.limit - self.in_use if self.running < self.max_running else -1

    def allow(self, capacity: int, ceiling: int | None) -> None:
        self.capacity = capacity
        self.ceiling = ceiling
        self.limit = capacity if ceiling is None else max(0, min(capacity, ceiling))
