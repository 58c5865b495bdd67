"""What is safe now: each guard looks at one device's readings and outcomes, and sets a ceiling.

A guard is a small state machine without a clock: time is an argument. It answers bytes, or a
``Limit`` that says more. One that needs a device to read is a ``DeviceGuard``. Reading devices
and changing a budget are done elsewhere.
"""

from gpu_admission.guards.breaker import OutOfMemoryGuard
from gpu_admission.guards.device import DeviceGuard
from gpu_admission.guards.exceptions import classify
from gpu_admission.guards.fault import FaultGuard
from gpu_admission.guards.health import Health, readiness
from gpu_admission.guards.memory import MemoryGuard
from gpu_admission.guards.thermal import Stage, ThermalGuard
from gpu_admission.types import Limit

__all__ = [
    "DeviceGuard",
    "FaultGuard",
    "Health",
    "Limit",
    "MemoryGuard",
    "OutOfMemoryGuard",
    "Stage",
    "ThermalGuard",
    "classify",
    "readiness",
]
