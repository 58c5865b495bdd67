"""Liveness and readiness for orchestrators, as a small app to mount.

Owns what is healthy and how it is told. Liveness is "this process answers", and stays well
under any load: a monitor that kills for load makes it worse. Readiness fails only for
what a restart or a drain would mend, for a capacity that can't be measured, while a shared budget
that has begun anew lets nothing start, and before one was reached for the first time; a busy, hot
or shrunk device stays ready. Everything comes from one snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router

from gpu_admission.types import DeviceSnapshot, Receive, Scope, Send, Snapshot

_HEADERS = {"Cache-Control": "no-store"}


class Observed(Protocol):
    """The part of an admission that is read here."""

    def snapshot(self) -> Snapshot: ...


class Health:
    """``/live`` and ``/ready`` of ``admission``: ``app.mount("/health", Health(admission))``.

    ``/live`` answers 200. ``/ready`` answers 200, or 503 while draining, when every device is
    closed until restart, while no device reports its memory, until a shared budget that has begun
    anew grants (``settles_seconds``), and in a process that has never reached its shared budget:
    nothing can start then. One that took part stays ready while the budget is ``away``: requests
    wait for it. The answer has the readings and ceilings, ``closed_by`` where nothing may start,
    and ``lowered_by`` where less than the capacity may be held.
    """

    def __init__(self, admission: Observed) -> None:
        self._admission = admission
        self._router = Router([Route("/live", self._live), Route("/ready", self._ready)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)

    async def _live(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "live"}, headers=_HEADERS)

    async def _ready(self, request: Request) -> JSONResponse:
        report = readiness(self._admission.snapshot())
        return JSONResponse(report, 200 if report["ready"] else 503, headers=_HEADERS)


def readiness(snapshot: Snapshot) -> dict[str, Any]:
    """Whether traffic should come here, and everything known about that, as plain JSON types."""
    broken = [device.name for device in snapshot.devices if device.restart_only]
    out_of_order = bool(broken) and len(broken) == len(snapshot.devices)
    untold = [device.closed_by == "capacity" for device in snapshot.devices]
    unknown = bool(untold) and all(untold)
    status = _status(snapshot, out_of_order, unknown)
    return {
        "ready": status == "ready",
        "status": status,
        "mode": snapshot.mode,
        "capacity_bytes": snapshot.capacity,
        "ceiling_bytes": snapshot.ceiling,
        "in_use_bytes": snapshot.in_use,
        "running": snapshot.running,
        "waiting": snapshot.waiting,
        **_by(snapshot.closed_by, is_closed=snapshot.closed_by == "drain" or not snapshot.ceiling),
        "away": snapshot.away,
        "settles_seconds": snapshot.settles,
        "last_success_seconds": snapshot.last_success,
        "devices": [_device(device) for device in snapshot.devices],
    }


def _status(snapshot: Snapshot, out_of_order: bool, unknown: bool) -> str:
    if snapshot.draining:
        return "draining"
    if out_of_order:
        return "restart needed"
    if unknown:
        return "capacity unknown"
    if snapshot.cut_off:
        return "shared budget unreachable"
    return "ready" if snapshot.settles is None else "shared budget begins anew"


def _by(guard: str | None, *, is_closed: bool) -> Mapping[str, str | None]:
    """Who lets nothing start, or who lets less be held than the capacity."""
    return {"closed_by": guard if is_closed else None, "lowered_by": None if is_closed else guard}


def _device(device: DeviceSnapshot) -> Mapping[str, Any]:
    reading = device.reading
    return {
        "name": device.name,
        "capacity_bytes": device.capacity,
        "in_use_bytes": device.in_use,
        "ceiling_bytes": device.ceiling,
        **_by(device.closed_by, is_closed=device.ceiling == 0 or device.restart_only),
        "reason": device.reason,
        "restart_needed": device.restart_only,
        "reading_age_seconds": device.reading_age,
        "total_bytes": reading and reading.total,
        "used_bytes": reading and reading.used,
        "ours_bytes": reading and reading.ours,
        "temperature_celsius": reading and reading.temperature,
        "utilization_ratio": reading and reading.utilization,
        "faults": list(reading.faults) if reading else [],
        "error": reading and reading.error,
    }
