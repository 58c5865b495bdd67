"""What a guard that reads a device has beyond a ``Guard``: a start, once the capacity is known."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gpu_admission.devices.capacity import Capacity
from gpu_admission.types import Guard


@runtime_checkable
class DeviceGuard(Guard, Protocol):
    """A guard that says nothing without readings of a device: it needs ``devices=``."""

    def begin(self, measured: Capacity | None, *, overcommit: float) -> None:
        """Called once the capacity is known; ``None``: it was given in bytes."""
        ...
