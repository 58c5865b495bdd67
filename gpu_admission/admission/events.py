"""What happened, counted and passed on to observers. Nothing here decides anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, TypeAlias

import anyio.to_thread

from gpu_admission.admission.actuals import Actuals
from gpu_admission.admission.lease import Lease
from gpu_admission.errors import Rejected
from gpu_admission.runtime import clock
from gpu_admission.runtime.failure import log_failure
from gpu_admission.types import Event, FlushingObserver, NamingObserver, Observer

LeaseEvent: TypeAlias = Literal["admitted", "resized", "released", "shadow"]


class Events:
    """The counts of one admission, and its observers.

    An observer that raises is logged and harms nobody else.
    """

    def __init__(self, lanes: Sequence[str]) -> None:
        self._lanes = lanes
        self.counts: dict[str, int] = defaultdict(int)
        """``admitted`` and ``disconnected``, and each refusal by its reason."""
        self.actuals = Actuals()
        """What requests took beside what they were charged."""
        self.observers: tuple[Observer, ...] = ()
        self.needs_request_id = False
        """Whether an observer asks for the request's id."""

    def add(self, observer: Observer) -> None:
        """Call ``observer`` with each event from now on."""
        self.observers = (*self.observers, observer)
        self.needs_request_id = any(
            isinstance(each, NamingObserver) and each.needs_request_id for each in self.observers
        )

    @property
    def flushing(self) -> Sequence[FlushingObserver]:
        """The observers that work off events later."""
        return [each for each in self.observers if isinstance(each, FlushingObserver)]

    async def flush(self) -> None:
        """Have observers work off what they know: where a signal ends a server, no other chance comes."""
        for observer in self.flushing:
            try:
                await anyio.to_thread.run_sync(observer.flush)
            except Exception as error:
                log_failure(f"observer {observer!r} failed", error, "what it had noted may be lost")

    def started(self, capacity: int) -> None:
        """Work begins in this process."""
        if self.observers:
            now = clock.monotonic()
            self._emit(Event(kind="started", at=now, route="*", lane=self._lanes[0], bytes=capacity))

    def refused(self, rejected: Rejected, lane: int, route: str) -> None:
        """A request was not let in."""
        self.counts[rejected.reason] += 1
        if not self.observers:
            return
        event = Event(
            kind="refused",
            at=clock.monotonic(),
            route=route,
            lane=self._lanes[lane],
            bytes=rejected.needed or 0,
            reason=rejected.reason,
            status=rejected.status,
            waited=rejected.waited,
        )
        self._emit(event)

    def left(self, lane: int, route: str) -> None:
        """A client went away before the app was called."""
        self.counts["disconnected"] += 1
        if self.observers:
            self._emit(Event(kind="disconnected", at=clock.monotonic(), route=route, lane=self._lanes[lane]))

    def of(self, kind: LeaseEvent, lease: Lease, *, reason: str = "", held: float = 0.0) -> None:
        """Something happened to ``lease``. Not to be called where there are no observers: it costs."""
        ticket = lease.ticket
        event = Event(
            kind=kind,
            at=clock.monotonic(),
            route=lease.route,
            lane=lease.lane,
            reason=reason,
            bytes=ticket.bytes,
            waited=lease.waited,
            held=held,
            device=lease.device,
            peak=lease.peak,
            actual=lease.actual,
            outcome=lease.outcome[0],
            lease=lease.number,
            estimate=lease.estimate,
        )
        self._emit(event)

    def _emit(self, event: Event) -> None:
        for observer in self.observers:
            try:
                observer(event)
            except Exception as error:
                log_failure(f"observer {observer!r} failed", error, "the event is lost to it")
