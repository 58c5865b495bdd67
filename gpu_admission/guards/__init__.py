"""What is safe now: each guard looks at one device's readings and outcomes, and sets a ceiling.

A guard is a small state machine without a clock: time is an argument. Beside ``name``,
``reason`` and ``ceiling`` the controller heeds these attributes, where a guard has them:

- ``restart_only``: closed for good; refusals carry no ``Retry-After``, readiness fails.
- ``retry_at``: when the ceiling next changes by itself, on the clock of ``now``.
- ``trials``: how many leases may run on the device at once (half-open); ``None`` = no limit.
- ``clamp``: factor on new tokens, for those who opted in.
- ``needs_readings``: says nothing without a device to read: such guards need ``devices=``.
- ``action``: something slow to call once, off the event loop; whoever takes it sets ``None``.

``begin(measured, overcommit=...)`` is called once the capacity is known. Reading devices and
changing a budget are done elsewhere.
"""

from gpu_admission.guards.classify import classify
from gpu_admission.guards.fault import FaultGuard
from gpu_admission.guards.health import Health, readiness
from gpu_admission.guards.memory import MemoryGuard
from gpu_admission.guards.outofmemory import OutOfMemoryGuard
from gpu_admission.guards.thermal import Stage, ThermalGuard

__all__ = [
    "FaultGuard",
    "Health",
    "MemoryGuard",
    "OutOfMemoryGuard",
    "Stage",
    "ThermalGuard",
    "classify",
    "readiness",
]
