"""The only place that waits: a ticket in the queue, until it is granted, refused, too late or given up.

Owns how long a request may wait, and that it has left the queue however its wait ends. Who is
next is the ledger's business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from gpu_admission.admission.locked import LockedLedger
from gpu_admission.admission.refusals import Refusals
from gpu_admission.budget.ticket import GRANTED, REFUSED, Ticket
from gpu_admission.errors import ClientLeft, Rejected
from gpu_admission.guards.monitor import Monitor
from gpu_admission.runtime.loop import Home
from gpu_admission.settings import Settings

Deadline = Callable[[], float | None]
Gone = Callable[[], Awaitable[None]]


class Waiter:
    """One waiting task. ``scope`` is what it waits in: cancelled when there is news.

    A scope of its own is all that it takes: a task or an event for each of ten thousand
    would take several times the memory.
    """

    __slots__ = ("left", "scope")

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.left = False
        """Its client has gone."""

    async def sleep(self, seconds: float, gone: Gone | None) -> None:
        """Until it is woken, ``gone`` has returned, or its time is up."""
        self.scope.deadline = anyio.current_time() + seconds
        with self.scope:
            await (anyio.sleep_forever() if gone is None else gone())
            self.left = True


def wake(home: Home, tickets: Sequence[Ticket]) -> None:
    """Wake those of ``tickets`` that wait, in the event loop where they do."""
    for ticket in tickets:
        if ticket.waiter is not None:
            home.call(ticket.waiter.scope.cancel)


class Waiting:
    """The waits of one admission."""

    def __init__(
        self, settings: Settings, locked: LockedLedger, monitor: Monitor, refusals: Refusals
    ) -> None:
        self._settings = settings
        self._locked = locked
        self._monitor = monitor
        self._refusals = refusals

    def patience(self, lane: int, timeout: float | None, deadline: Deadline | None) -> tuple[float, str]:
        """How long to wait, and the name of the setting that says so."""
        own = self._settings.lanes[lane]
        setting, longest = ("timeout", self._settings.timeout)
        if own.timeout is not None:
            setting, longest = f"lane {own.name!r}: timeout", own.timeout
        if timeout is not None:
            setting, longest = "timeout", timeout
        limit = None if deadline is None else deadline()
        if limit is not None and limit < longest:
            return limit, "deadline"
        return longest, setting

    async def wait(
        self, ticket: Ticket, timeout: float | None, deadline: Deadline | None, gone: Gone | None
    ) -> None:
        """Return when ``ticket`` is granted. Otherwise raises, and it has left the queue.

        ``Rejected`` for one that was refused or waited as long as it may, ``ClientLeft`` after
        ``gone`` has returned.
        """
        waiter = self._line_up(ticket)
        if waiter is None:
            if ticket.state is GRANTED:
                return
            raise self._why_not(ticket)
        try:
            longest, setting = self.patience(ticket.lane, timeout, deadline)
            self._refuse_early(ticket, longest, setting)
            await waiter.sleep(longest, gone)
        except BaseException:
            # Cancelled from outside, perhaps in the very turn of the loop in which it was
            # granted: those bytes go to the next, or they would stay held for ever.
            self._locked.release(ticket)
            raise
        # Granted while its time ran out, in one turn of the loop: it has its bytes.
        if ticket.state is not GRANTED or waiter.left:
            raise self._given_up(ticket, waiter, longest, setting)

    def _line_up(self, ticket: Ticket) -> Waiter | None:
        """What ``ticket`` waits with; ``None`` where it is granted or refused."""
        if ticket.state is REFUSED:
            return None
        waiter = Waiter()
        with self._locked:
            # Another thread may have granted it since it was asked for, when there was nothing
            # to wake yet; from here on whoever grants it finds the waiter.
            if ticket.state is GRANTED or ticket.state is REFUSED:
                return None
            ticket.waiter = waiter
        return waiter

    def _given_up(self, ticket: Ticket, waiter: Waiter, longest: float, setting: str) -> Exception:
        """Why it goes without its bytes; from here on it is out of the queue."""
        was_refused = ticket.state is REFUSED
        self._locked.release(ticket)
        if waiter.left:
            return ClientLeft("the client left while it waited")
        if was_refused:
            rejected = self._why_not(ticket)
        else:
            rejected = self._refusals.timed_out(ticket.bytes, longest, setting)
        rejected.waited = self._locked.now() - ticket.arrived
        return rejected

    def _refuse_early(self, ticket: Ticket, longest: float, setting: str) -> None:
        """Nobody joins the queue of a device that is closed or tried out, or for longer than it may wait."""
        verdict = self._monitor.closed or self._monitor.trying
        if verdict is not None:
            raise self._refusals.closed(verdict)
        if not self._settings.refuse_early:
            return
        with self._locked as ledger:
            forecast = ledger.forecast_of(ticket, self._locked.now())
        if forecast is not None and forecast > longest:
            raise self._refusals.too_late(ticket.bytes, forecast, longest, setting)

    def _why_not(self, ticket: Ticket) -> Rejected:
        return self._refusals.why_not(ticket, self._monitor.closed, self._monitor.trying)
