"""Less work for a hot device, in stages, without flapping.

Owns the stages, their hysteresis and the least time between two changes. How a request is
clamped (fewer new tokens) is each dialect's affair; here is only the factor.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import msgspec

from gpu_admission.devices.capacity import Capacity
from gpu_admission.types import DeviceReading, Limit, Outcome


class Stage(msgspec.Struct, frozen=True):
    """From ``at`` degrees Celsius on: ``share`` of the capacity (0 closes), and ``clamp`` as the
    factor on new tokens, for those who opted in."""

    at: float
    share: float
    clamp: float | None = None


STAGES = (Stage(80, 0.75), Stage(85, 0.5, clamp=0.5), Stage(90, 0))


class ThermalGuard:
    """Shrinks the ceiling, then clamps, then closes, as a device gets hot.

    A stage is left when the temperature is ``hysteresis`` degrees below its start, and there
    are at least ``dwell`` seconds between two changes, in either direction (the card throttles
    itself meanwhile). A device that does not tell its temperature is never hot.
    """

    name = "thermal"

    def __init__(
        self, *, stages: Sequence[Stage] = STAGES, hysteresis: float = 5.0, dwell: float = 60.0
    ) -> None:
        self._stages = tuple(stages)
        starts = [stage.at for stage in self._stages]
        if not starts or any(later <= sooner for sooner, later in itertools.pairwise(starts)):
            raise ValueError("stages must hold at least one Stage, each hotter than the one before")
        if not all(0 <= stage.share <= 1 and 0 < (stage.clamp or 1) <= 1 for stage in self._stages):
            raise ValueError("stages: a share is between 0 and 1, a clamp above 0 and at most 1")
        for setting, value in (("hysteresis", hysteresis), ("dwell", dwell)):
            if not value >= 0:
                raise ValueError(f"{setting} must be 0 or more, got {value!r}")
        self._starts = starts
        self._ends = [start - hysteresis for start in starts]
        self._dwell = dwell
        self.reason = ""
        self.retry_at: float | None = None
        self.clamp: float | None = None
        """Factor on new tokens in this stage; ``None`` = not clamped."""
        self.stage = 0
        """0 = cool, 1 = the first of the stages, and so on."""
        self._changed_at = float("-inf")

    def begin(self, measured: Capacity | None, *, overcommit: float = 1.0) -> None:
        """Nothing to take over: degrees do not depend on the capacity."""

    def ceiling(
        self, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
    ) -> Limit | None:
        """A share of the capacity while hot, 0 in a closing stage, else ``None``."""
        told = next((r.temperature for r in reversed(readings) if r.temperature is not None), None)
        degrees = float("-inf") if told is None else told
        target = self._target(degrees)
        if target != self.stage and now - self._changed_at >= self._dwell:
            self.stage, self._changed_at = target, now
        if not self.stage:
            self.reason, self.clamp, self.retry_at = "", None, None
            return None
        stage = self._stages[self.stage - 1]
        heat = "the temperature is no longer told" if told is None else f"{told:.0f} °C"
        self.reason = f"{heat}: stage {self.stage} of {len(self._stages)}, from {stage.at:g} °C"
        self.clamp = stage.clamp
        self.retry_at = None if stage.share else self._changed_at + self._dwell
        capacity = readings[-1].capacity if readings else None
        size = None if capacity is None else max(1, int(capacity * stage.share))
        return Limit(
            bytes=size if stage.share else 0, reason=self.reason, retry_at=self.retry_at, clamp=self.clamp
        )

    def _target(self, degrees: float) -> int:
        """The stage that ``degrees`` ask for, seen from the present one."""
        rising = bisect.bisect_right(self._starts, degrees)
        staying = bisect.bisect_left(self._ends, degrees)
        return max(rising, min(self.stage, staying))
