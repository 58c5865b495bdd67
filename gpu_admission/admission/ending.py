"""The end of a lease: what guards and estimators learn from it, its bytes, and who hears of it.

Owns the order of these, and that each happens once, from whichever thread, signal handler or
garbage collection a lease ends in. When it may end is the lease's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpu_admission.admission.events import Events
from gpu_admission.admission.feedback import Feedback
from gpu_admission.admission.lease import Kind, Lease
from gpu_admission.admission.refusals import Refusals
from gpu_admission.admission.seam import Budget
from gpu_admission.admission.shares import Share
from gpu_admission.budget.ticket import GRANTED, NEW
from gpu_admission.errors import Rejected
from gpu_admission.guards.exceptions import classify
from gpu_admission.guards.monitor import Monitor
from gpu_admission.request import RequestInfo
from gpu_admission.runtime import clock
from gpu_admission.runtime.answer import Answer
from gpu_admission.runtime.failure import log_failure
from gpu_admission.runtime.loop import has_loop
from gpu_admission.runtime.turn import Turn
from gpu_admission.settings import Settings
from gpu_admission.types import Device, Outcome

_ROUND_TRIP = 1.0
"""Seconds that a shared budget gets to say whether a lease may grow."""
_IN_LOOP = 0.1
"""The same where a plain call holds up an event loop meanwhile."""


class Endings:
    """Issues an admission's leases in one process, and answers them when they change or end."""

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
        """In a forked process: these leases are the parent's, and so are the bytes they hold."""
        self._is_ours = False

    def end(self, lease: Lease) -> None:
        """Give its bytes back, unless that was done or a handle is open."""
        turn = self.turn
        if not self._is_ours:
            lease.ended = True
            return
        if not (turn.lock.acquire(False) or turn.waited()):
            turn.leave(partial(self.end, lease))
            return
        now = None
        try:
            if turn.depth:
                # The garbage collector closes a generator that holds a lease while this very
                # thread changes the ledger: it ends when that change is done.
                turn.late.append(partial(self.end, lease))
                return
            if lease.ended or lease.handles:
                return
            if lease.share is None or not self._is_outlived(lease):
                now = self._give_back(lease, turn)
        finally:
            turn.lock.release()
        self._tell(lease, now)
        if turn.late:
            turn.catch_up()

    def _tell(self, lease: Lease, ended_at: float | None) -> None:
        """Tell observers of a lease that has ended, or goes on for blocks that outlive its request."""
        if ended_at is None:
            self._resized(lease)
        elif self._events.observers and lease.ticket.state is not NEW:  # else it was given in mode "off"
            self._events.of("released", lease, held=ended_at - lease.ticket.granted_at)

    def _give_back(self, lease: Lease, turn: Turn) -> float:
        lease.ended = True
        went_well = lease.outcome[0] == "ok"
        turn.depth = 1
        try:
            told = lease.feedback is not None or lease.peak is not None
            if told or not went_well or self._monitor.is_watching:
                self._learn_from(lease)
        finally:
            now = self._locked.release_in_turn(lease.ticket)
            turn.depth = 0
        if went_well:
            self.succeeded_at = now
        return now

    def _learn_from(self, lease: Lease) -> None:
        """Runs before the bytes are freed, so that the next request starts with what this one has shown."""
        kind, error = lease.outcome
        if lease.feedback is not None:
            lease.feedback.end(lease.peak, kind)
        actual = lease.actual
        if actual is not None and kind == "ok":
            self._events.actuals.note(lease.route, lease.estimate.bytes, actual)
        if kind != "ok" or self._monitor.is_watching:
            at = clock.monotonic()
            self._monitor.ended(lease.ticket.device, kind, lease.ticket.bytes, error, at)

    def resize(self, lease: Lease, size: int) -> None:
        """Hold ``size`` bytes from now on. Raises ``Rejected`` for growth that does not fit now."""
        with self._locked:
            if lease.ended:
                raise RuntimeError("this lease has ended: it can't be resized")
            grows = self._grows(lease, size)
            if not grows:
                self._hold(lease, size)
        if grows:  # not inside the turn: a shared budget has to hear from others first
            self._grow(lease, size)
        with self._locked:
            if lease.share is not None:
                lease.share.cut(size)
                lease.share.size = size
        self._resized(lease)

    def _grow(self, lease: Lease, size: int) -> None:
        before, says = _sure(lease), None
        try:
            says = _waited_for(self._locked.grow(lease.ticket, size))
        finally:
            if says is None:
                with self._locked:
                    self._hold(lease, before)
        if not says:
            rejected = self._no_growth(lease, size, says)
            self._refusals.complete(rejected, size)
            raise rejected
        lease.told = size

    def open_share(self, lease: Lease, size: int, around: Share | None) -> Share:
        """Claim ``size`` bytes until the share is closed; they are held once ``fund`` has returned."""
        with self._locked:
            if lease.ended:
                raise RuntimeError("this lease has ended: nothing can be held by it")
            root = lease.share
            if root is None:
                lease.share = root = Share(lease.ticket.bytes)
            return (around or root).open(size)

    async def fund(self, lease: Lease, share: Share) -> None:
        """Hold what ``share`` claims. Raises ``Rejected`` where that does not fit now; then it is closed."""
        asked = self._ask_for(lease, share)
        if asked is None:
            return
        try:
            says = await asked.come(_ROUND_TRIP)
        except BaseException:
            self.close_share(lease, share)
            raise
        self._answered(lease, share, says)

    def fund_here(self, lease: Lease, share: Share) -> None:
        """The same for a thread: it waits there where a shared budget has to be asked."""
        asked = self._ask_for(lease, share)
        if asked is None:
            return
        try:
            says = _waited_for(asked)
        except BaseException:
            self.close_share(lease, share)
            raise
        self._answered(lease, share, says)

    def _ask_for(self, lease: Lease, share: Share) -> Answer | None:
        """The budget's answer, where it has yet to come; ``None``: what ``share`` claims is held."""
        with self._locked:
            before, size = lease.bytes, _claimed(lease)
            share.is_asked = grows = self._grows(lease, size)
            if not grows:
                self._hold(lease, size)
        if grows:
            asked = self._locked.grow(lease.ticket, size)
            if not asked.is_given:
                return asked
            self._answered(lease, share, asked.says)
        elif size != before:
            self._resized(lease)
        return None

    def _answered(self, lease: Lease, share: Share, says: bool | None) -> None:
        if not says:
            rejected = self._no_growth(lease, _claimed(lease), says)
            self.close_share(lease, share)
            raise rejected
        with self._locked:
            share.is_asked = False
            size = _claimed(lease)
            if size != lease.bytes:  # others have changed it meanwhile
                self._hold(lease, size)
            lease.told = size
        self._resized(lease)

    def close_share(self, lease: Lease, share: Share) -> None:
        """Give back what was held for it alone, and end the lease with the last one that outlives it."""
        if self._is_ours:
            self.turn.take(partial(self._close_share, lease, share))

    def _close_share(self, lease: Lease, share: Share) -> Callable[[], object] | None:
        if not share.is_open:
            return None
        share.close()
        if lease.ended or lease.share is None:
            return None
        before, after = lease.ticket.bytes, lease.share.bytes
        if after:
            self._hold(lease, after)
        return partial(self._share_closed, lease, has_changed=bool(after) and after != before)

    def _share_closed(self, lease: Lease, *, has_changed: bool) -> None:
        if lease.is_over:
            self.end(lease)
        if has_changed:
            self._resized(lease)

    def _is_outlived(self, lease: Lease) -> bool:
        """Whether blocks outlive their request; if so, its lease holds what they asked for from now on."""
        root = lease.share
        if root is None or not root.inside:
            return False
        if root.is_open:
            root.close()
            self._hold(lease, root.bytes)
        return True

    def _grows(self, lease: Lease, size: int) -> bool:
        """Whether the budget has to be asked before ``size`` bytes may be held."""
        return size > _sure(lease) and self.settings.mode == "enforce"

    def _no_growth(self, lease: Lease, size: int, says: bool | None) -> Rejected:
        lane = lease.ticket.lane
        if size > self._locked.ledger.largest(lane):
            return self._refusals.too_large(size, lane)
        return self._refusals.unreachable() if says is None else self._refusals.no_room(size)

    def _hold(self, lease: Lease, size: int) -> None:
        ticket = lease.ticket
        if ticket.state is not GRANTED:
            ticket.bytes = size
        elif lease.share is not None and lease.share.is_in_doubt:
            # What is counted for a claim that may still be refused must not come in by another's way.
            self._locked.grow(ticket, size)
            lease.told = min(size, _sure(lease))
        else:
            self._locked.change(ticket, size)
            lease.told = size

    def _resized(self, lease: Lease) -> None:
        if self._events.observers and lease.ticket.state is GRANTED:
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
        except Exception as failure:
            log_failure(f"classify failed on {name}", failure, "it counts as an error")
            return "error", name
        return kind if kind in ("oom", "fault") else "error", name

    def out_of_memory(self, status: int) -> Rejected:
        """The refusal in place of an answer that ran out of memory before it began."""
        rejected = self._refusals.out_of_memory(status)
        self._refusals.complete(rejected, None)
        return rejected


def _sure(lease: Lease) -> int:
    """The bytes that it has whatever may still be on its way to a shared budget and back."""
    return lease.bytes if lease.told is None else min(lease.bytes, lease.told)


def _claimed(lease: Lease) -> int:
    """The bytes that the claims on it come to."""
    return lease.bytes if lease.share is None else lease.share.bytes


def _waited_for(asked: Answer) -> bool | None:
    """What the budget says, waited for in this thread."""
    return asked.wait(_IN_LOOP if not asked.is_given and has_loop() else _ROUND_TRIP)
