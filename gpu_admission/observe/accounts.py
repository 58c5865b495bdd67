"""One row for each device of a snapshot, also where no device was named.

So that metrics, page and logs need not tell a measured device from a plain number of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_admission.types import DeviceSnapshot, Snapshot


def accounts(snapshot: Snapshot) -> Sequence[DeviceSnapshot]:
    """The devices of ``snapshot``; without any, one called ``device`` that is the whole budget."""
    if snapshot.devices:
        return snapshot.devices
    lowered = snapshot.ceiling < snapshot.capacity
    return (
        DeviceSnapshot(
            name="device",
            capacity=snapshot.capacity,
            in_use=snapshot.in_use,
            ceiling=snapshot.ceiling if lowered else None,
            closed_by=snapshot.closed_by if lowered else None,
            reason="",
            reading=None,
            reading_age=None,
        ),
    )
