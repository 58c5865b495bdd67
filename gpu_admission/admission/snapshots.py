"""Everything about an admission at one instant, as values. Nothing here changes or decides anything."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

from gpu_admission.admission.seam import Budget
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import WAITING, Ticket
from gpu_admission.guards.monitor import Monitor
from gpu_admission.runtime import clock
from gpu_admission.types import DeviceSnapshot, LaneSnapshot, Place, Snapshot, Waiting


def snapshot_of(
    locked: Budget,
    monitor: Monitor,
    *,
    mode: str,
    counts: Mapping[str, int],
    buffered: int,
    succeeded_at: float | None,
    leaving: bool,
) -> Snapshot:
    """The snapshot of what ``locked`` and ``monitor`` say now; the rest as given."""
    members = locked.members()
    with locked as ledger:
        now = locked.now()
        lowered = monitor.closed or monitor.lowered()
        return Snapshot(
            capacity=ledger.capacity,
            in_use=ledger.in_use,
            available=ledger.available,
            running=ledger.running,
            waiting=ledger.waiting,
            waiting_bytes=ledger.waiting_bytes,
            buffered_bytes=buffered,
            peak=ledger.peak,
            ceiling=sum(account.limit for account in ledger.accounts),
            closed_by="drain" if locked.is_closed else lowered.guard if lowered else None,
            draining=leaving or locked.is_closed,
            mode=mode,
            forecast=ledger.forecast(ledger.usual, now),
            lanes=_lanes(ledger),
            devices=_devices(ledger, monitor),
            counts=dict(counts),
            last_success=None if succeeded_at is None else now - succeeded_at,
            shared=locked.where,
            members=members,
            away=locked.away,
            cut_off=mode == "enforce" and locked.is_cut_off,
            settles=locked.settles,
        )


def queue_of(locked: Budget, most: int) -> tuple[Waiting, ...]:
    """The first ``most`` of those who wait, by priority of their lane, then by arrival."""
    locked.catch_up()
    with locked as ledger:
        now = locked.now()
        line: Any = (
            (-lane.lane.priority, ticket.arrived, ticket)
            for lane in ledger.lanes
            for ticket in lane.tickets()
        )
        ahead = -ledger.available
        waiting = []
        for _, arrived, ticket in heapq.nsmallest(most, line, key=lambda entry: entry[:2]):
            ahead += ticket.bytes
            forecast = ledger.drain.seconds(max(ahead, ticket.bytes))
            name = ledger.lanes[ticket.lane].lane.name
            waiting.append(Waiting(name, ticket.bytes, now - arrived, forecast))
        return tuple(waiting)


def place_of(locked: Budget, ticket: Ticket) -> Place | None:
    """Where ``ticket`` is in the order of ``queue_of``; ``None``: it does not wait."""
    locked.catch_up()
    with locked as ledger:
        return place_in(ledger, ticket)


def place_in(ledger: Ledger, ticket: Ticket) -> Place | None:
    """The same for one who has the lock."""
    if ticket.state is not WAITING:
        return None
    mine = (-ledger.lanes[ticket.lane].lane.priority, ticket.arrived)
    ahead = [
        other.bytes
        for lane in ledger.lanes
        for other in lane.tickets()
        if other is not ticket and (-lane.lane.priority, other.arrived) <= mine
    ]
    needed = sum(ahead) + ticket.bytes - ledger.available
    return Place(len(ahead) + 1, ledger.waiting, ledger.drain.seconds(max(needed, ticket.bytes)))


def _lanes(ledger: Ledger) -> tuple[LaneSnapshot, ...]:
    return tuple(
        LaneSnapshot(
            s.lane.name, s.in_use, s.waiting, s.waiting_bytes, s.guaranteed, min(s.limit, ledger.capacity)
        )
        for s in ledger.lanes
    )


def _devices(ledger: Ledger, monitor: Monitor) -> tuple[DeviceSnapshot, ...]:
    # Another process may have put settings into force that have more devices than this one.
    count = min(len(ledger.accounts), len(monitor.names))
    return tuple(_device(ledger, monitor, index) for index in range(count))


def _device(ledger: Ledger, monitor: Monitor, index: int) -> DeviceSnapshot:
    account = ledger.accounts[index]
    verdict = monitor.verdict(index)
    reading, age = monitor.reading(index, clock.monotonic())
    return DeviceSnapshot(
        name=monitor.names[index],
        capacity=account.capacity,
        in_use=account.in_use,
        ceiling=account.ceiling,
        closed_by=verdict.guard,
        reason=verdict.reason,
        reading=reading,
        reading_age=age,
        restart_only=verdict.restart_only,
    )
