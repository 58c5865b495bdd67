"""A device that is only a number: for budgets without a driver to ask, and for tests.

Nothing is measured here.
"""

from __future__ import annotations

import time

from gpu_admission.sizes import parse_bytes
from gpu_admission.types import DeviceReading


class FixedDevice:
    """``total`` bytes that nobody else uses, by the user's word."""

    def __init__(self, total: int | str, *, name: str = "fixed") -> None:
        self._total = parse_bytes(total, name="total")
        if not self._total:
            raise ValueError("total must be above 0 bytes")
        self.name = name

    @property
    def key(self) -> str:
        return f"fixed:{self.name}"

    def read(self) -> DeviceReading:
        """All of it, free."""
        return DeviceReading(total=self._total, used=0, free=self._total, ours=0, taken_at=time.monotonic())

    def __repr__(self) -> str:
        return f"FixedDevice({self._total}, name={self.name!r})"
