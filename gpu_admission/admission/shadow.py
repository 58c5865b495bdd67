"""Shadow mode: leases that are always given, what would have happened to them, and its summary.

Owns that nothing is refused or delayed. The ledger says what would have been. The first
request of a minute starts the summary's clock, so that an idle service logs nothing and a few
requests by hand are summed up too.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from gpu_admission.admission.events import Events
from gpu_admission.admission.lease import Issuer, Lease
from gpu_admission.admission.refusals import Refusals
from gpu_admission.admission.seam import Budget
from gpu_admission.admission.waiting import Waiting
from gpu_admission.budget.ticket import NEW, WAITING, Ticket
from gpu_admission.guards.monitor import Monitor
from gpu_admission.runtime.fork import in_child
from gpu_admission.runtime.turn import Turn
from gpu_admission.settings import Settings
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Estimate, Event, Snapshot

logger = logging.getLogger("gpu_admission")


class Shadow:
    """Gives a lease to everyone, and counts what would have been refused or delayed."""

    def __init__(
        self,
        issuer: Issuer,
        locked: Budget,
        monitor: Monitor,
        events: Events,
        refusals: Refusals,
        waiting: Waiting,
    ) -> None:
        self._issuer = issuer
        self._locked = locked
        self._monitor = monitor
        self._events = events
        self._refusals = refusals
        self._waiting = waiting

    def lease(self, ticket: Ticket, estimate: Estimate, route: str) -> Lease:
        """The lease on ``ticket``, which is held whether it fits or not."""
        locked, lane = self._locked, ticket.lane
        with locked:
            starts = locked.ask(ticket)
            would = "" if starts else self._would(ticket, lane)
            if not starts:
                locked.release_in_turn(ticket)
                locked.force(ticket)
        self._events.counts["admitted"] += 1
        if would:
            self._events.counts[f"shadow_{would}"] += 1
        lease = Lease(self._issuer, ticket, estimate, route)
        if self._events.observers:
            try:
                self._events.of("shadow", lease, reason=would)
            except BaseException:
                lease.release()
                raise
        return lease

    def _would(self, ticket: Ticket, lane: int) -> str:
        """What a request that did not start at once would have come to: ``waited``, or a reason."""
        monitor = self._monitor
        if not monitor.is_measured:
            return ""
        if ticket.state is NEW:
            return self._guess(ticket)
        if ticket.state is not WAITING or monitor.closed is not None:
            return self._refusals.why_not(ticket, monitor.closed, monitor.trying).reason
        with self._locked as ledger:
            forecast = ledger.forecast_of(ticket, self._locked.now())
        longest, _ = self._waiting.patience(lane, None, None)
        return "queue_timeout" if longest == 0 or (forecast or 0.0) > longest else "waited"

    def _guess(self, ticket: Ticket) -> str:
        """The same, for a shared budget that has not answered yet."""
        with self._locked as ledger:
            starts = not ledger.waiting and ticket.bytes <= ledger.available
        return "" if starts else "waited"


class _Watched(Protocol):
    """What the summary asks of an admission."""

    settings: Settings

    @property
    def in_use(self) -> int: ...
    def snapshot(self) -> Snapshot: ...


def would_have(counts: Counter[str]) -> str:
    """``"would have refused 12 of 240 (queue_full 12), delayed 31"``, from the count of each reason."""
    refused = {reason: n for reason, n in counts.most_common() if reason not in ("", "waited")}
    text = f"would have refused {sum(refused.values())} of {counts.total()}"
    if refused:
        text += f" ({', '.join(f'{reason} {n}' for reason, n in refused.items())})"
    return f"{text}, delayed {counts['waited']}"


class ShadowSummary:
    """Logs a line every ``every`` seconds: what would have been refused, and the most bytes held at once.

    At shutdown, what came since the last one.
    """

    def __init__(self, every: float = 60.0, *, timer: Callable[..., Any] = threading.Timer) -> None:
        self._every = every
        self._timer = timer
        # Reentrant: the garbage collector may end a lease, and so call this, while the lock is held.
        self._lock = Turn()
        self._begin_anew()
        in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        """Also in a forked process: what was counted is the parent's to say, and so is the timer."""
        self._counts: Counter[str] = Counter()
        self._peak = 0
        self._running = False
        self._waits: Any = None
        """The timer that was started last."""

    def watch(self, admission: _Watched) -> None:
        self._admission = admission

    def __call__(self, event: Event) -> None:
        if event.kind != "shadow":
            return
        in_use = self._admission.in_use
        with self._lock:
            self._counts[event.reason] += 1
            self._peak = max(self._peak, in_use)
            if self._running:
                return
            self._running = True
        timer = self._waits = self._timer(self._every, self.say)
        timer.daemon = True
        timer.start()

    def flush(self) -> None:
        """Log what there is now: at shutdown, where a timer would come too late."""
        if self._waits is not None:
            self._waits.cancel()
        self.say()

    def say(self) -> None:
        """Log what came since the last time."""
        with self._lock:
            counts, peak = self._counts, self._peak
            self._counts, self._peak, self._running = Counter(), 0, False
        if not counts:
            return
        logger.info(
            "shadow mode of %r: %s; peak %s of %s",
            self._admission.settings.name,
            would_have(counts),
            format_bytes(peak),
            format_bytes(self._admission.snapshot().capacity),
        )
