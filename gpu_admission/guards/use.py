"""What this process takes of its devices, apart from what others do that share its budget.

Owns how that is told by readings that were taken here. Pure: no driver is asked, and no lock taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_admission.devices.capacity import reusable_cache
from gpu_admission.devices.readings import Readings
from gpu_admission.guards.watched import Watched
from gpu_admission.types import DeviceReading


def use_of(watched: Sequence[Watched], readings: Readings | None) -> tuple[Sequence[int], Sequence[int]]:
    """For each device the bytes that this process holds besides its leases, and what these take.

    0 where that is not measured.
    """
    pairs = [_use(each, None if readings is None else readings.own(at)) for at, each in enumerate(watched)]
    return tuple(stays for stays, _ in pairs), tuple(taken for _, taken in pairs)


def _use(watched: Watched, own: int | None) -> tuple[int, int]:
    measured = watched.measured
    if measured is None or measured.baseline.resident is None:
        return 0, 0
    stays = measured.baseline.resident
    return stays, max(0, (own or 0) - stays)


def resident_of(own: int | None, reading: DeviceReading, *, held: int, here: int) -> int | None:
    """What remains of ``own`` bytes when leases of this process hold ``here`` of the ``held``.

    ``None``: as the reading says, which has no leases of other processes in it.
    """
    if own is None or held == here:
        return None
    return max(0, own - (reusable_cache(reading) or 0) - here)
