"""The only place that waits: a ticket in the queue, until it is granted, refused, too late or given up.

Owns how long a request may wait, and that it has left the queue however its wait ends. Who is
next is the ledger's business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from gpu_admission.admission.refusals import Refusals
from gpu_admission.admission.seam import Budget
from gpu_admission.budget.ticket import GRANTED, NEW, REFUSED, WAITING, State, Ticket
from gpu_admission.errors import ClientLeft, Rejected
from gpu_admission.guards.monitor import Monitor
from gpu_admission.runtime.home import Home
from gpu_admission.settings import Settings

Gone = Callable[[], Awaitable[None]]
_ROUND_TRIP = 1.0
"""Least seconds that a shared budget gets to answer: with ``timeout=0`` nothing could start otherwise."""
_LOOK_AGAIN = 0.25


class Waiter:
    """One waiting task. ``scope`` is what it waits in: cancelled when there is news.

    All it needs is a scope: a task or an event for each of ten thousand waiting requests would
    take several times the memory.
    """

    __slots__ = ("left", "scope")

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.left = False
        """Its client has gone."""

    async def sleep(self, until: float, gone: Gone | None) -> None:
        """Until it is woken, ``gone`` has returned, or its time is up."""
        self.scope.deadline = until
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

    def __init__(self, settings: Settings, locked: Budget, monitor: Monitor, refusals: Refusals) -> None:
        self._settings = settings
        self._locked = locked
        self._monitor = monitor
        self._refusals = refusals

    def patience(self, lane: int, timeout: float | None, deadline: float | None) -> tuple[float, str]:
        """How long a request may wait in all, and the name of the setting that says so."""
        own = self._settings.lanes[lane]
        setting, longest = ("timeout", self._settings.timeout)
        if own.timeout is not None:
            setting, longest = f"lane {own.name!r}: timeout", own.timeout
        if timeout is not None:
            setting, longest = "timeout", timeout
        if deadline is not None and deadline < longest:
            return deadline, "deadline"
        return longest, setting

    async def wait(
        self, ticket: Ticket, lane: int, timeout: float | None, deadline: float | None, gone: Gone | None
    ) -> None:
        """Return when ``ticket`` is granted. Otherwise raises, and it has left the queue.

        ``Rejected`` if it was refused or has waited as long as it may, ``ClientLeft`` after ``gone``
        has returned.
        """
        try:
            if ticket.state is REFUSED:
                raise self._why_not(ticket)
            longest, setting = self.patience(lane, timeout, deadline)
            starts = await self._line_up(ticket, longest, setting, gone)
        except BaseException:
            # Cancelled from outside, perhaps in the very turn of the loop in which it was
            # granted: those bytes go to the next, or they would stay held for ever.
            self._locked.release(ticket)
            raise
        if not starts:
            raise self._given_up(ticket, longest, setting)

    async def _line_up(self, ticket: Ticket, longest: float, setting: str, gone: Gone | None) -> bool:
        """Whether it starts; if not, it was refused or its time is up, and it may still be in the queue."""
        begun = anyio.current_time()
        is_new_here = True
        while True:
            state = ticket.state
            if state is GRANTED and await self._locked.may_start(ticket):
                return True
            if state is REFUSED or (state is not GRANTED and self._locked.is_closed):
                return False
            if state is WAITING and is_new_here:
                is_new_here = False
                self._refuse_early(ticket, longest, setting)
            waiter = self._waiter_of(ticket, state)
            if waiter is None:
                continue
            until = begun + max(longest - ticket.waited_before, _ROUND_TRIP if state is NEW else 0.0)
            # A grant that may not be used yet, because the log is out of reach, is checked again later.
            look = anyio.current_time() + _LOOK_AGAIN if state is GRANTED else until
            await waiter.sleep(min(until, look), gone)
            if waiter.left:
                raise ClientLeft("the client left while it waited")
            if ticket.state is state and anyio.current_time() >= until:
                return False

    def _waiter_of(self, ticket: Ticket, state: State) -> Waiter | None:
        """The waiter of ``ticket``; ``None`` if its ``state`` has changed by now."""
        waiter = Waiter()
        with self._locked:
            # Another thread may have granted it since it was asked for, when there was nothing
            # to wake yet; from here on whoever grants it finds the waiter.
            if ticket.state is not state:
                return None
            ticket.waiter = waiter
        return waiter

    def _given_up(self, ticket: Ticket, longest: float, setting: str) -> Rejected:
        """Why it goes without its bytes; from here on it is out of the queue."""
        state = ticket.state
        self._locked.release(ticket)
        if state is REFUSED or self._locked.is_closed:
            rejected = self._why_not(ticket)
        elif state is not WAITING or self._locked.away:
            rejected = self._refusals.unreachable(ticket.bytes)
        elif (settles := self._locked.settles) is not None:
            rejected = self._refusals.settling(settles)
        else:
            rejected = self._refusals.timed_out(ticket, longest, setting)
        rejected.waited = ticket.waited_before + self._locked.now() - ticket.arrived
        return rejected

    def _refuse_early(self, ticket: Ticket, longest: float, setting: str) -> None:
        """Refuse to queue for a device that is closed or being tried out, or for longer than allowed.

        That a budget has begun anew is no forecast: until it grants, nothing can start.
        """
        verdict = self._monitor.closed or self._monitor.trying or self._locked.closed_by_others()
        if verdict is not None:
            raise self._refusals.closed(verdict)
        settles = self._locked.settles
        if settles is not None and ticket.waited_before + settles > longest:
            raise self._refusals.settling(settles)
        if not self._settings.refuse_early:
            return
        with self._locked as ledger:
            forecast = ledger.forecast_of(ticket, self._locked.now())
        if forecast is not None and ticket.waited_before + forecast > longest:
            raise self._refusals.too_late(ticket, forecast, longest, setting)

    def _why_not(self, ticket: Ticket) -> Rejected:
        closed = self._monitor.closed or self._locked.closed_by_others()
        return self._refusals.why_not(ticket, closed, self._monitor.trying)
