"""Learns from requests that ran out of memory: shrinks, recovers, and opens a breaker.

Owns the share of the capacity that is left after failures, and the breaker's three states.
Which exception is out-of-memory: ``classify``. Who gets the trials: the controller, which
heeds ``trials``.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_admission.types import DeviceReading, Limit, Outcome


class OutOfMemoryGuard:
    """Multiplies the ceiling by ``factor`` at each out-of-memory, and adds ``step`` of the
    capacity for every ``every`` seconds without one. ``floor`` is the least share.

    ``opens_after`` in a row (no success between) close the device for ``cool_down`` seconds.
    Then it is half-open: ``trials`` leases may run at once, until one ends well (the breaker
    closes) or out of memory (it opens again). Any other end changes nothing and frees the place
    for the next. A trial that has not ended after another ``cool_down`` is taken for lost,
    and one more may run. Each of several worker processes has its own breaker, and its own trials.
    """

    name = "out-of-memory"

    def __init__(
        self,
        *,
        factor: float = 0.8,
        step: float = 0.05,
        every: float = 10.0,
        floor: float = 0.25,
        opens_after: int = 3,
        cool_down: float = 30.0,
        trials: int = 1,
    ) -> None:
        for setting, share in (("factor", factor), ("step", step), ("floor", floor)):
            if not 0 < share <= 1:
                raise ValueError(f"{setting} must be above 0 and at most 1, got {share!r}")
        for setting, seconds in (("every", every), ("cool_down", cool_down)):
            if not seconds > 0:
                raise ValueError(f"{setting} must be above 0 seconds, got {seconds!r}")
        for setting, count in (("opens_after", opens_after), ("trials", trials)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(f"{setting} must be an int of 1 or more, got {count!r}")
        self._factor, self._step, self._every, self._floor = factor, step, every, floor
        self._opens_after, self._cool_down, self._trials = opens_after, cool_down, trials
        self.reason = ""
        self.retry_at: float | None = None
        """When the breaker next changes by itself."""
        self.trials: int | None = None
        """While half-open: how many leases may run on the device at once."""
        self._share = 1.0
        self._changed_at = 0.0
        self._row = 0
        self._opened_at: float | None = None
        self._half_open_at: float | None = None

    def ceiling(
        self, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
    ) -> Limit | None:
        """0 while open, a share of the capacity after failures, else ``None``."""
        for outcome in outcomes:
            self._learn(outcome.kind, now)
        self._recover(now)
        self._advance(now)
        self._explain()
        if not self.reason:
            return None
        size = 0 if self._opened_at is not None else self._size(readings)
        return Limit(bytes=size, reason=self.reason, retry_at=self.retry_at, trials=self.trials)

    def _size(self, readings: Sequence[DeviceReading]) -> int | None:
        capacity = readings[-1].capacity if readings else None
        if capacity is None or self._share >= 1:
            return None
        return max(1, int(capacity * self._share))

    def _learn(self, kind: str, now: float) -> None:
        if self._opened_at is not None:
            # The lease began before the breaker opened: old news.
            return
        if kind == "ok":
            self._row, self._half_open_at = 0, None
        elif kind == "oom":
            self._row += 1
            self._share = max(self._floor, self._share * self._factor)
            self._changed_at = now
            if self._half_open_at is not None or self._row >= self._opens_after:
                self._opened_at, self._half_open_at = now, None

    def _recover(self, now: float) -> None:
        if self._share >= 1 or self._opened_at is not None or self._half_open_at is not None:
            self._changed_at = now
            return
        steps = int((now - self._changed_at) / self._every)
        self._share = min(1.0, self._share + steps * self._step)
        self._changed_at += steps * self._every

    def _advance(self, now: float) -> None:
        """Go from open to half-open; how many trials are allowed by now."""
        self.retry_at = self.trials = None
        if self._opened_at is not None and now >= self._opened_at + self._cool_down:
            self._opened_at, self._half_open_at = None, now
        if self._opened_at is not None:
            self.retry_at = self._opened_at + self._cool_down
        elif self._half_open_at is not None:
            lost = int((now - self._half_open_at) / self._cool_down)
            self.trials = self._trials + lost
            self.retry_at = self._half_open_at + (lost + 1) * self._cool_down

    def _explain(self) -> None:
        if self._opened_at is not None:
            self.reason = f"{self._row} requests in a row ran out of memory: closed for {self._cool_down:g} s"
        elif self._half_open_at is not None:
            self.reason = (
                f"after {self._row} requests that ran out of memory: at most {self.trials} at a time"
            )
        elif self._share < 1:
            self.reason = f"requests ran out of memory: {self._share:.0%} of the capacity is given out"
        else:
            self.reason = ""
