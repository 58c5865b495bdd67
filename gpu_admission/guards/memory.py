"""Keeps leases within what others leave: foreign use, and a watermark of free memory.

Owns the baseline that a device's readings are held against, and what to do while there are
none. The formula is ``devices.capacity``'s. It never closes a device for lack of memory:
requests wait, as they would for each other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

from gpu_admission.devices.capacity import (
    CONFIRMED_BY,
    Baseline,
    Capacity,
    ceiling,
    find_baseline,
    free_bytes,
    reusable_cache,
)
from gpu_admission.devices.torch import empty_cache
from gpu_admission.sizes import format_bytes, parse_bytes
from gpu_admission.types import DeviceReading, Limit, Outcome


class MemoryGuard:
    """Lowers the ceiling by what other processes take, and stops at a watermark.

    ``watermark``: bytes, or a share of the device such as ``"2%"``, that stay free; below it
    no more may be held than is held (only where the allocator tells its cache). ``reclaim``
    is called, off the event loop and at most every ``cool_down`` seconds, when nothing more
    could start; ``None`` never. ``resident``: bytes of weights and contexts, for allocators
    whose pool can't be told from them. Without a reading for ``stale_after`` seconds,
    ``when_stale`` serves on the capacity alone (and says so in ``reason``), or closes.
    """

    name = "memory"

    def __init__(
        self,
        *,
        watermark: int | str = "2%",
        resident: int | str | None = None,
        reclaim: Callable[[], object] | None = empty_cache,
        cool_down: float = 30.0,
        stale_after: float = 10.0,
        when_stale: Literal["serve", "close"] = "serve",
    ) -> None:
        self._watermark = _watermark(watermark)
        self._resident = None if resident is None else parse_bytes(resident, name="resident")
        if reclaim is not None and not callable(reclaim):
            raise TypeError("reclaim must be a callable without arguments, or None")
        if when_stale not in ("serve", "close"):
            raise ValueError(f"when_stale must be 'serve' or 'close', got {when_stale!r}")
        for setting, value in (("cool_down", cool_down), ("stale_after", stale_after)):
            if not value >= 0:
                raise ValueError(f"{setting} must be 0 seconds or more, got {value!r}")
        self._reclaim = reclaim
        self._cool_down = cool_down
        self._stale_after = stale_after
        self._when_stale = when_stale
        self.reason = ""
        self._baseline: Baseline | None = None
        self._reserve = 0
        self._margin = 0.0
        self._overcommit = 1.0
        self._peak = 0
        self._weighed: tuple[DeviceReading, ...] = ()
        self._verdict: tuple[int, str] | None = None
        self._reclaimed_at = float("-inf")

    def begin(self, measured: Capacity | None, *, overcommit: float = 1.0) -> None:
        """Take over the terms of a capacity that was measured (``None``: it was given in bytes)."""
        self._overcommit = overcommit
        self._weighed = ()
        if measured is not None:
            self._baseline = measured.baseline
            self._reserve, self._margin = measured.reserve, measured.margin

    def ceiling(
        self, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
    ) -> int | Limit | None:
        """Bytes that leases may hold by the latest readings; ``None`` where that is the whole capacity."""
        if not readings:
            return None
        last = tuple(readings[-CONFIRMED_BY:])
        if last != self._weighed:
            # Once for each new reading, however often outcomes come in between.
            self._weighed, self._verdict = last, self._weigh(last)
        age = now - last[-1].taken_at
        if self._verdict is None or age > self._stale_after:
            return self._blind(last[-1], age)
        size, self.reason = self._verdict
        if not self.reason:
            return None
        if self._wants_memory(last[-1], size, now):
            return Limit(bytes=size, reason=self.reason, action=self._reclaim)
        return size

    def _weigh(self, last: Sequence[DeviceReading]) -> tuple[int, str] | None:
        """The lowest ceiling by the ``last`` readings, and why; ``None`` = none of them can say."""
        self._learn(last)
        # The capacity in force: one that has changed since is in the newest reading only.
        capacity = last[-1].total if last[-1].capacity is None else last[-1].capacity
        limits = [self._limit(reading, capacity) for reading in last]
        return min((limit for limit in limits if limit is not None), default=None)

    def _learn(self, last: Sequence[DeviceReading]) -> None:
        """Update the most that was held, and the baseline once nothing is held, where caches are reported."""
        self._peak = max(self._peak, *(reading.held or 0 for reading in last))
        if self._baseline is None:
            self._baseline = find_baseline(last[-1], resident=self._resident)
        if len(last) < CONFIRMED_BY or any(r.held != 0 or reusable_cache(r) is None for r in last):
            return
        found = [find_baseline(reading, resident=self._resident) for reading in last]
        known = [baseline for baseline in found if baseline is not None]
        if len(known) == len(last):
            # Memory of a lease that has just ended may not be back yet: the smaller is right.
            self._baseline = min(known, key=lambda baseline: (baseline.resident or 0, baseline.used))

    def _limit(self, reading: DeviceReading, capacity: int | None) -> tuple[int, str] | None:
        """The ceiling by one reading, and why it is below the capacity; ``None`` = it can't say."""
        if self._baseline is None:
            return None
        allowed = ceiling(
            reading,
            self._baseline,
            capacity=capacity or 0,
            reserve=self._reserve,
            margin=self._margin,
            overcommit=self._overcommit,
            peak=self._peak,
        )
        if allowed is None or capacity is None:
            return None
        held = max(1, reading.held or 0)
        low = self._shortage(reading)
        if low and held < allowed:
            return held, low
        if allowed < capacity:
            return max(1, allowed), f"other use of the device leaves {format_bytes(allowed)} for requests"
        return allowed, ""

    def _shortage(self, reading: DeviceReading) -> str:
        """Why nothing more may be held; empty if the watermark is kept, or caches are not reported."""
        free, cache = free_bytes(reading), reusable_cache(reading)
        if free is None or cache is None:
            return ""
        least = self._watermark
        level = int((reading.total or 0) * least) if isinstance(least, float) else least
        if free + cache >= level:
            return ""
        return f"{format_bytes(free + cache)} are free, below the watermark of {format_bytes(level)}"

    def _wants_memory(self, reading: DeviceReading, size: int, now: float) -> bool:
        """Whether ``reclaim`` is to be called now: nothing more could start, and it is not too soon."""
        if self._reclaim is None or size > max(1, reading.held or 0):
            return False
        if reusable_cache(reading) == 0 and self._reclaim is empty_cache:
            return False
        if now - self._reclaimed_at < self._cool_down:
            return False
        self._reclaimed_at = now
        return True

    def _blind(self, reading: DeviceReading, age: float) -> int | None:
        why = reading.error or "the device does not tell its memory"
        serving = self._when_stale == "serve"
        policy = "serving on the capacity alone" if serving else "closed until there is one"
        self.reason = f"no memory reading for {age:.0f} s ({why}): {policy}"
        return None if serving else 0

    def __deepcopy__(self, memo: dict[int, Any]) -> MemoryGuard:
        """A copy shares its settings (a callable may belong to something big), but not its state."""
        return copy.copy(self)


def _watermark(value: int | str) -> int | float:
    """Bytes as an int, or a share of the device as a float."""
    if not isinstance(value, str) or not value.strip().endswith("%"):
        return parse_bytes(value, name="watermark")
    try:
        share = float(value.strip()[:-1]) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError(f"watermark={value!r}: a percentage is at least 0 and below 100")
    return share
