"""Takes out of a reading the figures that can't be true.

Drivers contradict themselves: a container's process list with 0 bytes for this process, more free
memory than there is, a process struct of another version with scrambled sizes. A figure that
can't be true is not known, which is never zero; ``error`` says which it was.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gpu_admission.sizes import format_bytes
from gpu_admission.types import DeviceReading


def plausible(reading: DeviceReading) -> DeviceReading:
    """``reading`` without what can't be believed; the same object if all of it can."""
    changes, wrong = _memory(reading)
    ours = _not_ours(reading)
    if ours:
        changes["ours"] = None
        wrong = [*wrong, ours]
    if not changes:
        return reading
    return msgspec.structs.replace(reading, error="; ".join(filter(None, [reading.error, *wrong])), **changes)


def _memory(reading: DeviceReading) -> tuple[dict[str, Any], list[str]]:
    changes: dict[str, Any] = {}
    wrong = []
    total, free, used = reading.total, reading.free, reading.used
    if total is not None and free is not None and free > total:
        changes["free"] = total
        wrong.append(f"{format_bytes(free)} free of {format_bytes(total)} in all can't be true")
    if used is not None and (used < 0 or (total is not None and used > total)):
        changes["used"] = None
        wrong.append(f"{format_bytes(used)} in use can't be true")
    return changes, wrong


def _not_ours(reading: DeviceReading) -> str:
    """Why ``ours`` can't be true; empty where it can."""
    ours = reading.ours
    if ours is None:
        return ""
    if reading.total is not None and ours > reading.total:
        return f"{format_bytes(ours)} of ours are more than the device has"
    if reading.reserved is not None and ours < reading.reserved:
        own = format_bytes(reading.reserved)
        return f"{format_bytes(ours)} of ours are less than the {own} that our allocator holds"
    return ""
