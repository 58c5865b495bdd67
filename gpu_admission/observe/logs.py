"""What happens to requests, as lines of the standard ``logging`` with structured extras.

Owns the words, the levels and the extras. A line never holds a body, a raw path, a header
or a key; the one exception is the request id, which must be printable and short.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gpu_admission.http.request_id import current_request_id
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Event

if TYPE_CHECKING:
    from gpu_admission.admission import Admission

_BROKEN = ("oom", "fault", "error")
_EXTRAS = ("route", "lane", "reason", "status", "bytes", "waited", "held", "device", "peak", "outcome")


class Logs:
    """An observer that logs each event: refusals and clients that left at INFO, bad ends at WARNING.

    Everything else, with the memory before and after, is at DEBUG. Extras of each line: ``request_id``
    (from ``X-Request-ID``, or made), ``event``, ``lease``, and the fields of ``Event`` in
    bytes and seconds.
    """

    needs_request_id = True

    def __init__(self, logger: logging.Logger | str = "gpu_admission.requests") -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._ids: dict[int, str] = {}
        """Request ids of open leases, since a lease may end in another context."""

    def watch(self, admission: Admission) -> None:
        self._admission = admission

    def __call__(self, event: Event) -> None:
        request_id = self._request_id(event)
        level = _level(event)
        if event.kind == "started" or not self._logger.isEnabledFor(level):
            return
        extra = {name: getattr(event, name) for name in _EXTRAS}
        extra |= {"request_id": request_id, "event": event.kind, "lease": event.lease}
        if level == logging.DEBUG:
            extra |= self._memory()
        self._logger.log(level, "%s", _words(event, request_id), extra=extra)

    def _request_id(self, event: Event) -> str:
        if event.kind in ("admitted", "shadow"):
            return self._ids.setdefault(event.lease, current_request_id())
        if event.kind == "released":
            return self._ids.pop(event.lease, "")
        return self._ids.get(event.lease) or current_request_id()

    def _memory(self) -> dict[str, Any]:
        """What is held, and the devices' last readings with their age."""
        snapshot = self._admission.snapshot()
        return {
            "in_use": snapshot.in_use,
            "devices": [
                {
                    "name": device.name,
                    "used": device.reading and device.reading.used,
                    "allocated": device.reading and device.reading.allocated,
                    "age": device.reading_age,
                }
                for device in snapshot.devices
            ],
        }


class RequestIdFilter(logging.Filter):
    """Puts ``request_id`` on every record of a handler, including the app's own lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "request_id"):
            record.request_id = current_request_id()
        return True


def _level(event: Event) -> int:
    if event.kind == "released":
        return logging.WARNING if event.outcome in _BROKEN else logging.DEBUG
    if event.kind in ("refused", "disconnected") or event.reason:
        return logging.INFO
    return logging.DEBUG


def _words(event: Event, request_id: str) -> str:
    tail = f"route={event.route} lane={event.lane} request_id={request_id}"
    size = format_bytes(event.bytes)
    match event.kind:
        case "refused":
            after = f" after {event.waited:.3f} s" if event.waited else ""
            return f"refused {size}{after}: {event.reason} ({event.status}) {tail}"
        case "disconnected":
            return f"the client left before it was its turn {tail}"
        case "shadow" if event.reason:
            return f"would not have started: {event.reason}, {size} {tail}"
        case "released":
            return f"lease {event.lease} of {size} ended after {event.held:.3f} s: {event.outcome} {tail}"
        case "resized":
            return f"lease {event.lease} holds {size} now {tail}"
        case _:
            return f"lease {event.lease} of {size} began after {event.waited:.3f} s {tail}"
