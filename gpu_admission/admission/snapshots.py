"""Everything about an admission at one instant, as values. Nothing here changes or decides anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_admission.budget.ledger import Ledger
from gpu_admission.types import DeviceSnapshot, LaneSnapshot, Snapshot

if TYPE_CHECKING:
    from gpu_admission.admission import Admission


def snapshot_of(admission: Admission, ledger: Ledger, now: float) -> Snapshot:
    """The snapshot of ``admission``; the caller holds its lock."""
    lowered = admission.monitor.closed() or admission.monitor.lowered()
    succeeded = admission.succeeded_at
    return Snapshot(
        capacity=ledger.capacity,
        in_use=ledger.in_use,
        available=ledger.available,
        running=ledger.running,
        waiting=ledger.waiting,
        waiting_bytes=ledger.waiting_bytes,
        buffered_bytes=admission.buffer.held + admission.buffer.unpacking,
        peak=ledger.peak,
        ceiling=sum(account.limit for account in ledger.accounts),
        closed_by="drain" if ledger.closed else lowered.guard if lowered else None,
        draining=ledger.closed,
        mode=admission.mode,
        forecast=ledger.forecast(ledger.usual, now),
        lanes=tuple(_lanes(ledger)),
        devices=tuple(_device(admission, ledger, index, now) for index in range(len(ledger.accounts))),
        counts=dict(admission.counts),
        last_success=None if succeeded is None else now - succeeded,
    )


def _lanes(ledger: Ledger) -> list[LaneSnapshot]:
    return [
        LaneSnapshot(
            s.lane.name, s.in_use, s.waiting, s.waiting_bytes, s.guaranteed, min(s.limit, ledger.capacity)
        )
        for s in ledger.lanes
    ]


def _device(admission: Admission, ledger: Ledger, index: int, now: float) -> DeviceSnapshot:
    account = ledger.accounts[index]
    verdict = admission.monitor.verdict(index)
    reading, age = admission.monitor.reading(index, now)
    return DeviceSnapshot(
        name=admission.device_names[index],
        capacity=account.capacity,
        in_use=account.in_use,
        ceiling=account.ceiling,
        closed_by=verdict.guard,
        reason=verdict.reason,
        reading=reading,
        reading_age=age,
        restart_only=verdict.restart_only,
    )
