"""The end of a lease: what guards and estimators learn from it, its bytes, and who hears of it.

Owns the order of these, and that each happens once, from whichever thread, signal handler or
garbage collection a lease ends in. When it may end is the lease's business.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from gpu_admission.admission.events import Events
from gpu_admission.admission.feedback import Feedback
from gpu_admission.admission.lease import Kind, Lease
from gpu_admission.admission.refusals import Refusals
from gpu_admission.admission.seam import Budget
from gpu_admission.budget.ticket import GRANTED, NEW
from gpu_admission.errors import Rejected
from gpu_admission.guards.classify import classify
from gpu_admission.guards.monitor import Monitor
from gpu_admission.request import RequestInfo
from gpu_admission.runtime import clock
from gpu_admission.runtime.turn import Turn
from gpu_admission.settings import Settings
from gpu_admission.types import Device, Outcome

logger = logging.getLogger("gpu_admission")


class Endings:
    """The issuer of an admission's leases in one process: what they ask when they change or end."""

    def __init__(
        self,
        admission: object,
        settings: Settings,
        locked: Budget,
        monitor: Monitor,
        events: Events,
        refusals: Refusals,
    ) -> None:
        self.admission = admission
        self.settings = settings
        self.turn = locked.turn
        self.succeeded_at: float | None = None
        """When a lease last ended well."""
        self._locked = locked
        self._monitor = monitor
        self._events = events
        self._refusals = refusals
        self._is_ours = True

    @property
    def lanes(self) -> Sequence[str]:
        return self._locked.lane_names

    @property
    def devices(self) -> Sequence[Device]:
        return self._monitor.devices

    @property
    def device_names(self) -> Sequence[str]:
        return self._monitor.names

    def disown(self) -> None:
        """This is a forked process: its leases are the parent's, and what they hold is none of ours."""
        self._is_ours = False
        # Another thread of the parent may have held the lock at the fork: here it would for ever.
        self.turn = self._locked.turn = Turn()

    def end(self, lease: Lease) -> None:
        """Give its bytes back, unless that was done or a handle is open."""
        turn = self.turn
        if not self._is_ours:
            lease.ended = True
            return
        with turn.lock:
            if turn.depth:
                # The garbage collector closes a generator that holds a lease while this very
                # thread changes the ledger: it ends when that change is done.
                turn.late.append(partial(self.end, lease))
                return
            if lease.ended or lease.handles:
                return
            lease.ended = True
            turn.depth = 1
            try:
                self._learn_from(lease)
            finally:
                self._locked.release(lease.ticket)
                turn.depth = 0
        if self._events.observers and lease.ticket.state is not NEW:  # else it was given in mode "off"
            self._events.of("released", lease, held=self._locked.now() - lease.ticket.granted_at)
        if turn.late:
            turn.catch_up()

    def _learn_from(self, lease: Lease) -> None:
        """Before its bytes are free: the next one starts by what this one has shown."""
        kind, error = lease.outcome
        now = clock.monotonic()
        if kind == "ok":
            self.succeeded_at = now
        if lease.feedback is not None:
            lease.feedback.end(lease.peak, well=kind == "ok")
        if kind != "ok" or self._monitor.is_watching:
            self._monitor.ended(lease.ticket.device, kind, lease.ticket.bytes, error, now)

    def resize(self, lease: Lease, size: int) -> None:
        """Hold ``size`` bytes from now on. Raises ``Rejected`` for growth that does not fit now."""
        ticket = lease.ticket
        with self._locked:
            if lease.ended:
                raise RuntimeError("this lease has ended: it can't be resized")
            grows = self.settings.mode == "enforce" and size > ticket.bytes
            if ticket.state is not GRANTED:
                ticket.bytes = size
            elif not grows:
                self._locked.change(ticket, size)
        # Not inside the turn: a shared budget has to hear from others first.
        if grows and ticket.state is GRANTED and not self._locked.grow(ticket, size):
            rejected = self._refusals.no_room(size)
            self._refusals.complete(rejected, size)
            raise rejected
        if self._events.observers and ticket.state is GRANTED:
            self._events.of("resized", lease)

    def teach(self, lease: Lease, estimator: Any, info: RequestInfo) -> None:
        """Have ``estimator`` told at the end of ``lease`` what it really took."""
        with self._locked:
            lease.feedback = Feedback(estimator, info, lease.estimate, self._locked)

    def report_outcome(self, outcome: Outcome, device: int = 0) -> None:
        """Tell the guards of a device how work on it ended; leases do so by themselves."""
        self._monitor.ended(device, outcome.kind, outcome.bytes, outcome.error, outcome.at)

    def classify(self, error: BaseException) -> tuple[Kind, str]:
        """How work that raised ``error`` ended, and the name of its class."""
        name = type(error).__name__
        if not isinstance(error, Exception):
            return "client", name
        try:
            kind = (self.settings.classify or classify)(error)
        except Exception:
            logger.exception("classify failed on %s: it counts as an error", name)
            return "error", name
        return kind if kind in ("oom", "fault") else "error", name

    def out_of_memory(self, status: int) -> Rejected:
        """The refusal in place of an answer that ran out of memory before it began."""
        rejected = self._refusals.out_of_memory(status)
        self._refusals.complete(rejected, None)
        return rejected
