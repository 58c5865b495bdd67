"""What the status page shows: open leases, the queue, the last refusals, the last ten minutes.

An observer that remembers what a snapshot does not have, and combines both into plain JSON
types. Route patterns, names, bytes and times only: never a body, a raw path, a header or a key.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from gpu_admission.observe.history import History
from gpu_admission.observe.routelabel import shown
from gpu_admission.runtime.turn import Turn
from gpu_admission.types import DeviceSnapshot, Event

if TYPE_CHECKING:
    from gpu_admission.admission import Admission

_MOST_LEASES = 300


class Board:
    """``admission.observe(Board())``; then ``state()``. Knows the leases that began after that."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Reentrant: the garbage collector may end a lease, and so call this, while the lock is held.
        self._lock = Turn()
        self._leases: dict[int, tuple[float, Event]] = {}
        """Open leases by number: when each began, and its last event, which has what it holds now."""
        self._refusals: deque[Event] = deque(maxlen=20)
        self._measured: deque[Event] = deque(maxlen=30)
        self._history = History()

    def watch(self, admission: Admission) -> None:
        self._admission = admission

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.kind in ("admitted", "shadow"):
                self._leases[event.lease] = (event.at, event)
            elif event.kind == "resized" and event.lease in self._leases:
                self._leases[event.lease] = (self._leases[event.lease][0], event)
            elif event.kind == "released":
                self._forget(event)
            if event.kind == "refused" or event.reason:
                self._refusals.append(event)
        self._record(event.at)

    def _forget(self, event: Event) -> None:
        self._leases.pop(event.lease, None)
        if event.actual and event.estimate is not None:
            self._measured.append(event)

    def _record(self, now: float) -> None:
        self._history.record(now, self._admission.in_use, self._admission.waiting)

    def state(self) -> dict[str, Any]:
        """Everything now, as plain JSON types: bytes and seconds."""
        now = self._clock()
        self._record(now)
        snapshot = self._admission.snapshot()
        with self._lock:
            leases = sorted(self._leases.values(), key=lambda each: each[1].lease)
            refusals, measured = list(self._refusals), list(self._measured)
        known = sum(event.bytes for _, event in leases)
        return {
            "budget": self._admission.settings.name,
            "process": os.getpid(),
            "mode": snapshot.mode,
            "draining": snapshot.draining,
            "capacity": snapshot.capacity,
            "ceiling": snapshot.ceiling,
            "in_use": snapshot.in_use,
            "available": snapshot.available,
            "peak": snapshot.peak,
            "running": snapshot.running,
            "waiting": snapshot.waiting,
            "waiting_bytes": snapshot.waiting_bytes,
            "buffered": snapshot.buffered_bytes,
            "forecast": snapshot.forecast,
            "counts": dict(snapshot.counts),
            "devices": [_device(device) for device in snapshot.devices],
            "lanes": [_plain(lane) for lane in snapshot.lanes],
            "leases": [_lease(event, now - began) for began, event in leases[:_MOST_LEASES]],
            "other_leases": max(0, snapshot.in_use - known),
            "shared": snapshot.shared,
            "away": snapshot.away,
            "cut_off": snapshot.cut_off,
            "settles": snapshot.settles,
            "members": [_plain(member) for member in snapshot.members],
            "queue": [_plain(waiting) for waiting in self._admission.queue()],
            "refusals": [_refusal(event, now) for event in reversed(refusals)],
            "estimates": _estimates(measured),
            "learning": self._admission.report().learning,
            "history": {"step": self._history.step, "rows": self._history.rows()},
        }


def _plain(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _device(device: DeviceSnapshot) -> Mapping[str, Any]:
    reading = device.reading
    return {
        "name": device.name,
        "capacity": device.capacity,
        "in_use": device.in_use,
        "ceiling": device.ceiling,
        "closed_by": device.closed_by,
        "reason": device.reason,
        "restart_needed": device.restart_only,
        "total": reading and reading.total,
        "used": reading and reading.used,
        "foreign": reading and reading.foreign,
        "temperature": reading and reading.temperature,
        "age": device.reading_age,
        "error": reading and reading.error,
    }


def _lease(event: Event, age: float) -> Mapping[str, Any]:
    return {
        "lease": event.lease,
        "bytes": event.bytes,
        "lane": event.lane,
        "route": shown(event.route),
        "device": event.device,
        "age": age,
    }


def _refusal(event: Event, now: float) -> Mapping[str, Any]:
    return {
        "ago": now - event.at,
        "reason": event.reason,
        "status": event.status,
        "shadow": event.kind == "shadow",
        "lane": event.lane,
        "route": shown(event.route),
        "bytes": event.bytes,
    }


def _estimates(measured: Sequence[Event]) -> Mapping[str, Any]:
    rows = [
        {
            "lease": event.lease,
            "route": shown(event.route),
            "lane": event.lane,
            "estimate": event.charged,
            "peak": event.actual or 1,
        }
        for event in reversed(measured)
    ]
    ratios = [event.charged / (event.actual or 1) for event in measured]
    return {"rows": rows, "median_ratio": median(ratios) if ratios else None}
