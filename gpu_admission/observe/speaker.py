"""Which of several workers reports the figures of a shared budget, so that none is counted twice.

Where workers write their metrics to one folder, a scrape adds up what they wrote. Owns which of them
writes a shared budget's totals; the others write 0.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from gpu_admission.types import DeviceSnapshot, LaneSnapshot, MemberSnapshot, Snapshot


def speaks_for(snapshot: Snapshot) -> bool:
    """Whether this process reports its budget's totals: the oldest of those that write here does."""
    folder, own = _folder(), _own(snapshot)
    if folder is None or own is None:
        return True
    return not any(_writes(member, own, folder) for member in _before(snapshot, own))


def _before(snapshot: Snapshot, own: MemberSnapshot) -> tuple[MemberSnapshot, ...]:
    return snapshot.members[: snapshot.members.index(own)]


def _writes(member: MemberSnapshot, own: MemberSnapshot, folder: Path) -> bool:
    is_here = member.host == own.host and not member.is_dead
    return is_here and (folder / f"gauge_livesum_{member.pid}.db").exists()


def running_here(snapshot: Snapshot) -> int:
    """Leases that this process reports: its own, where others report theirs (lost if it dies)."""
    own = _own(snapshot)
    return snapshot.running if own is None or _folder() is None else own.running


def _own(snapshot: Snapshot) -> MemberSnapshot | None:
    return next((member for member in snapshot.members if member.is_self), None)


def _folder() -> Path | None:
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    return None if folder is None else Path(folder)


def without_totals(snapshot: Snapshot) -> Snapshot:
    """``snapshot`` with 0 in place of what another worker reports."""
    return msgspec.structs.replace(
        snapshot,
        lanes=tuple(map(_empty_lane, snapshot.lanes)),
        devices=tuple(map(_empty_device, snapshot.devices)),
    )


def _empty_lane(lane: LaneSnapshot) -> LaneSnapshot:
    return msgspec.structs.replace(lane, in_use=0, waiting=0, waiting_bytes=0)


def _empty_device(device: DeviceSnapshot) -> DeviceSnapshot:
    return msgspec.structs.replace(device, in_use=0, capacity=0)
