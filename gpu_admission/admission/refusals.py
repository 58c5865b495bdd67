"""From a state of the budget to the refusal that explains it: which setting said no, and when to come back.

Builds exceptions and nothing else: raising, counting and rendering are elsewhere. All that a
detail may say about other requests is how many wait.
"""

from __future__ import annotations

import math
import random

from gpu_admission.admission.actuals import Actual
from gpu_admission.admission.load import HEADER, LoadReport
from gpu_admission.admission.seam import Budget
from gpu_admission.budget.ticket import Ticket
from gpu_admission.errors import QueueFull, QueueTimeout, Rejected, TooLarge, Unavailable
from gpu_admission.guards.verdict import Verdict
from gpu_admission.runtime import clock
from gpu_admission.settings import Settings
from gpu_admission.sizes import format_bytes

_LONGEST = 60
_WORTH_TELLING = 0.1
"""Seconds waited before the queue that a refusal tells of."""


def retry_after(forecast: float | None, otherwise: float) -> int:
    """Whole seconds from 1 to 60: the forecast wait, spread out so that clients do not return together.

    ``otherwise`` is used while no wait can be forecast. A wait that makes no sense counts as 0.
    """
    seconds = otherwise if forecast is None else forecast
    if not seconds >= 0:
        seconds = 0.0
    spread = max(2.0, min(seconds, _LONGEST) / 2)
    # At the cap the spread lies below it: all at 60 would return together.
    seconds = min(seconds, _LONGEST - spread)
    return min(_LONGEST, max(1, math.ceil(seconds + random.uniform(0, spread))))


def _limit(setting: str, longest: float) -> str:
    if setting == "deadline":
        return f"the request's own deadline of {longest:g} s"
    return f"{setting}={longest:g} s"


def _late(setting: str, detail: str, needed: int | None = None) -> Rejected:
    reason = "deadline" if setting == "deadline" else "queue_timeout"
    return QueueTimeout(reason, detail, needed=needed)


def _lacks(detail: str, needed: int) -> Rejected:
    """The refusal of what holds bytes already, and so may not wait for more: nothing need be in the queue."""
    rejected = QueueFull("queue_full", detail, needed=needed)
    rejected.title = "The request needs more than it holds, and that is not free now"
    return rejected


class Refusals:
    """Refusals of one admission."""

    def __init__(self, settings: Settings, locked: Budget) -> None:
        self._settings = settings
        self._locked = locked
        self.load = LoadReport(locked)

    def why_not(self, ticket: Ticket, closed: Verdict | None, trying: Verdict | None) -> Rejected:
        """Why the ledger has refused ``ticket``, where guards say ``closed``, or ``trying``."""
        with self._locked as ledger:
            if self._locked.is_closed:
                return self.draining()
            if self._locked.away:
                return self.unreachable(ticket.bytes)
            if closed is not None:
                return self.closed(closed)
            if ticket.bytes > ledger.largest(ticket.lane):
                return self.too_large(ticket.bytes, ticket.lane)
            if trying is not None:
                return self.closed(trying)
            if (settles := self._locked.settles) is not None:
                return self.settling(settles)
            return self.queue_full(ticket.lane, of_flow=not ledger.is_full(ticket.lane))

    def draining(self) -> Rejected:
        where = self._locked.where
        if where is not None and self._locked.ledger.closed:
            return Unavailable("draining", f"the shared budget {where} was drained, for all processes")
        return Unavailable("draining", "the server is shutting down: drain() was called")

    def unreachable(self, needed: int | None = None) -> Rejected:
        """The budget that several processes share did not answer a request of ``needed`` bytes."""
        share = self._settings.shared_fallback
        why = self._locked.away or f"the shared budget {self._locked.where} did not answer"
        return Unavailable(
            "budget_unreachable",
            f"{why}; shared= says where it lies, and shared_fallback={share:g} what this process grants "
            f"by itself meanwhile{self._too_small(share, needed)}",
        )

    def _too_small(self, share: float, needed: int | None) -> str:
        """Why nothing of ``needed`` bytes could ever be granted by a ``share`` of one's own; else empty."""
        if not share or needed is None:
            return ""
        if self._locked.is_cut_off:
            return ": nothing, since it was never reached"
        largest = max(self._locked.ledger.shares(share))
        if needed <= largest:
            return ""
        return f": {format_bytes(largest)} of a device, and this needs {format_bytes(needed)}"

    def settling(self, seconds: float) -> Rejected:
        """The budget that several processes share has just begun anew: nothing starts for ``seconds``."""
        ttl = self._settings.lease_ttl
        rejected = Unavailable(
            "budget_unreachable",
            f"the shared budget {self._locked.where} begins anew and grants nothing for another "
            f"{seconds:.1f} s (lease_ttl={ttl:g} s), in which processes say what they hold",
        )
        rejected.retry_after = min(_LONGEST, max(1, math.ceil(seconds)))
        return rejected

    def closed(self, verdict: Verdict) -> Rejected:
        rejected = Unavailable(
            "gpu_unavailable",
            f"guard {verdict.guard!r} lets nothing start: {verdict.reason}",
            restart_only=verdict.restart_only,
        )
        if verdict.retry_at is not None and rejected.retryable:
            rejected.retry_after = retry_after(verdict.retry_at - clock.monotonic(), 0.0)
        return rejected

    def out_of_memory(self, status: int) -> Rejected:
        rejected = Unavailable("gpu_unavailable", f"the device ran out of memory (oom_status={status})")
        rejected.status = rejected.status_code = status
        return rejected

    def too_large(self, needed: int, lane: int | None) -> Rejected:
        """``lane``: ``None`` where the capacity alone says no."""
        ledger = self._locked.ledger
        largest = capacity = max(account.capacity for account in ledger.accounts)
        which = "capacity"
        if lane is not None and ledger.largest(lane) != capacity:
            largest = ledger.largest(lane)
            which = f"lane {ledger.lanes[lane].lane.name!r}: limit"
        return TooLarge(
            "too_large",
            f"this request needs {format_bytes(needed)} and can never fit: {which}={format_bytes(largest)}",
            needed=needed,
            capacity=largest,
        )

    def queue_full(self, lane: int, *, of_flow: bool = False) -> Rejected:
        ledger = self._locked.ledger
        state = ledger.lanes[lane]
        if not state.max_waiting:
            return QueueFull("queue_full", "it does not fit now, and max_waiting=0 lets nobody wait")
        if of_flow:
            most = ledger.max_waiting_per_flow
            return QueueFull("queue_full", f"max_waiting_per_flow={most} requests of this flow wait already")
        where = f" in lane {state.lane.name!r}" if len(ledger.lanes) > 1 else ""
        return QueueFull("queue_full", f"max_waiting={state.max_waiting} requests wait already{where}")

    def unread(self, longest: float, setting: str) -> Rejected:
        """The turn of a large body to be read did not come in time."""
        within = _limit(setting, longest)
        return _late(setting, f"its body was not read within {within}: too many large ones are read now")

    def timed_out(self, ticket: Ticket, longest: float, setting: str) -> Rejected:
        before = ticket.waited_before
        return _late(
            setting,
            f"{format_bytes(ticket.bytes)} were not free within {_limit(setting, longest)}"
            + (
                f", {before:.1f} s of which went by before it could queue" if before >= _WORTH_TELLING else ""
            ),
            ticket.bytes,
        )

    def too_late(self, ticket: Ticket, forecast: float, longest: float, setting: str) -> Rejected:
        before = ticket.waited_before
        return _late(
            setting,
            f"the forecast wait of {forecast:.1f} s"
            + (f", after {before:.1f} s before it could queue," if before >= _WORTH_TELLING else "")
            + f" exceeds {_limit(setting, longest)} (refuse_early=True)",
            ticket.bytes,
        )

    def no_room(self, needed: int) -> Rejected:
        detail = f"growing to {format_bytes(needed)} does not fit now, and growing never waits"
        return self._nothing_now() or _lacks(detail, needed)

    def _nothing_now(self) -> Rejected | None:
        """Why nothing can be had, whatever is free: a shared budget is away, or begins anew."""
        if self._locked.away:
            return self.unreachable()
        settles = self._locked.settles
        return None if settles is None else self.settling(settles)

    def no_more(self, size: int, missing: int, least: int, lane: int) -> Rejected:
        """Work of ``size`` bytes lacks ``missing`` now, ``least`` at any time, and may not wait for them."""
        with self._locked as ledger:
            if size > max(account.capacity for account in ledger.accounts):
                return self.too_large(size, None)
            in_force = ledger.lane_called(self._settings.lanes[lane].name)
            if least > ledger.largest(in_force):
                return self.too_large(least, in_force)
        more = format_bytes(missing)
        detail = f"its batch needs {more} more than its request holds, and they are not free now"
        return self._nothing_now() or _lacks(detail, missing)

    def complete(
        self,
        rejected: Rejected,
        needed: int | None,
        lowered: Verdict | None = None,
        actual: Actual | None = None,
    ) -> None:
        """Fill in what the refusal was raised without: sizes, the queue, and when to come back.

        ``lowered`` is named along with the setting if it made the wait longer; ``actual``, what requests
        of the route took, where the size of this one was too much.
        """
        if actual is not None and (rejected.needed or needed) and rejected.status in (413, 429):
            rejected.detail += f"; requests of this route have taken {actual.share:.0%} of their estimate"
        if lowered is not None and lowered.ceiling and rejected.status == 429:
            room = format_bytes(lowered.ceiling)
            rejected.detail += f"; guard {lowered.guard!r} lets {room} be held now: {lowered.reason}"
        with self._locked as ledger:
            forecast = ledger.forecast(rejected.needed or needed or ledger.usual, self._locked.now())
            capacity, waiting = max(account.capacity for account in ledger.accounts), ledger.waiting
        rejected.complete(
            needed=needed,
            capacity=capacity,
            waiting=waiting,
            retry_after=retry_after(forecast, self._settings.timeout / 2),
        )
        if self._settings.load_header:
            rejected.headers = {**(rejected.headers or {}), HEADER: self.load.header(rejected.status)}
