"""The ledger behind its one lock: every change goes through here, and wakes those whom it concerns.

Owns that a change is whole before the next one begins, whichever thread, signal handler or
garbage collection it comes from, and that what it granted or refused is woken. Who may start is
the ledger's business, and how to wake the waiting's. A ledger that many processes share has the
same face: its changes may take effect only when they have come back through its log.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gpu_admission.admission.seam import Woken
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import GRANTED, Ticket
from gpu_admission.guards.verdict import Verdict
from gpu_admission.runtime import clock
from gpu_admission.runtime.answer import Answer
from gpu_admission.runtime.turn import Turn
from gpu_admission.types import MemberSnapshot


class LockedLedger:
    """A ledger, its turn and its wake-ups.

    Read ``ledger`` inside ``with locked:`` where several figures must agree, with ``now()`` for
    its time; never change it there. ``woken(tickets)`` is called inside the turn, from any
    thread, with those that a change has granted or refused: it may only schedule.
    """

    __slots__ = ("_woken", "lane_names", "ledger", "turn")

    is_joined = True
    """Whether there is nothing left to do before a request may be asked for."""
    is_given = False
    """Whether other processes gave its capacity in bytes."""
    may_resize = True
    """Whether ``change`` takes a ticket that waits, too."""
    away: str | None = None
    """Why the budget can't be reached just now."""
    is_cut_off = False
    """Whether nothing can start before the budget is reached for the first time."""
    settles: float | None = None
    """Seconds until a budget that has begun anew lets anything start."""
    where: str | None = None
    """Name of the budget, where several processes share it."""

    def __init__(self, ledger: Ledger, woken: Woken) -> None:
        self.ledger = ledger
        self.lane_names: Sequence[str] = tuple(state.lane.name for state in ledger.lanes)
        self.turn = Turn()
        self._woken = woken

    def __enter__(self) -> Ledger:
        self.turn.__enter__()
        return self.ledger

    def __exit__(self, *error: object) -> None:
        self.turn.__exit__(*error)

    def now(self) -> float:
        """The ledger's time."""
        return clock.monotonic()

    @property
    def is_closed(self) -> bool:
        """Whether nothing is let in any more: drained."""
        return self.ledger.closed

    def catch_up(self) -> None:
        """Nothing to take in: no other process shares this budget."""

    def members(self) -> tuple[MemberSnapshot, ...]:
        """The processes that share it, and what each of them holds."""
        return ()

    # its life

    async def join(self) -> None:
        """Begin to take part, where several processes share it."""

    def join_aside(self) -> None:
        """The same without waiting for it."""

    async def rest(self) -> None:
        """Take part no more until something is asked again."""

    async def leave(self) -> None:
        """Take part no more, once the last lease has ended."""

    # one ticket

    def start(self, ticket: Ticket) -> bool:
        """Have ``ticket`` granted if it fits and nobody waits; whether it was. Else nothing has changed."""
        turn = self.turn
        with turn.lock:
            turn.depth += 1
            try:
                starts = self.ledger.start(ticket, clock.monotonic())
            finally:
                turn.depth -= 1
        if turn.late:
            turn.catch_up()
        return starts

    def ask(self, ticket: Ticket) -> bool:
        """Have ``ticket`` granted, refused or put into the queue: see its state. Whether it starts now."""
        turn = self.turn
        with turn.lock:
            turn.depth += 1
            try:
                changed = self.ledger.request(ticket, clock.monotonic())
                if changed and (changed[0] is not ticket or len(changed) > 1):
                    self._woken(changed)  # joining may have let an earlier ticket start
            finally:
                turn.depth -= 1
        if turn.late:
            turn.catch_up()
        return ticket.state is GRANTED

    async def may_start(self, ticket: Ticket) -> bool:
        """Whether the work of a granted ``ticket`` may begin now, after it has waited."""
        return ticket.state is GRANTED

    def release(self, ticket: Ticket) -> None:
        """End ``ticket``, wherever it is in its life; ending it again changes nothing."""
        self.turn.take(partial(self._release, ticket))

    def _release(self, ticket: Ticket) -> None:
        self.release_in_turn(ticket)

    def release_in_turn(self, ticket: Ticket) -> float:
        """The same where the caller has the turn, without taking it again. Returns the ledger's time."""
        now = clock.monotonic()
        changed = self.ledger.release(ticket, now)
        if changed:
            self._woken(changed)
        return now

    def force(self, ticket: Ticket) -> None:
        """Hold ``ticket`` whether it fits or not: for watching without deciding."""
        with self.turn:
            self.ledger.force(ticket, self.now())

    def change(self, ticket: Ticket, size: int) -> None:
        """Make a ticket that is held, or waits, ``size`` bytes large, as ``Ledger.change``."""
        with self.turn:
            self._woken(self.ledger.change(ticket, size, self.now()))

    def grow(self, ticket: Ticket, size: int) -> Answer:
        """The same where it fits now; whether it did, which is known at once."""
        with self.turn:
            fits = size <= ticket.bytes or self.ledger.can_grow(ticket, size)
            if ticket.state is GRANTED and fits:
                self._woken(self.ledger.change(ticket, size, self.now()))
                return Answer().give(True)
            return Answer().give(False)

    def held_here(self, device: int) -> int:
        return self.ledger.accounts[device].in_use

    def taken_by_others(self, device: int) -> int:
        return 0

    def closed_by_others(self) -> Verdict | None:
        return None

    # the whole

    def held(self, device: int) -> tuple[int, int]:
        """What ``device`` has in all, and how much of it leases hold."""
        account = self.ledger.accounts[device]
        return account.capacity, account.in_use

    def allow(
        self,
        device: int,
        *,
        capacity: int | None = None,
        ceiling: int | None = None,
        max_running: int | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        """Set what ``device`` may hold, as ``Ledger.allow``."""
        with self.turn:
            changed = self.ledger.allow(
                device, self.now(), capacity=capacity, ceiling=ceiling, max_running=max_running
            )
            self._woken(changed)

    def resize(self, capacity: int) -> None:
        """A new capacity for each device. Those who wait and can never fit now are refused."""
        with self.turn:
            self._woken(self.ledger.resize([capacity] * len(self.ledger.accounts), self.now()))

    def drain(self) -> None:
        """Let nothing in from now on, and refuse all who wait."""
        with self.turn:
            self._woken(self.ledger.close(self.now()))

    def refuse_all(self) -> None:
        """Send all who wait away."""
        with self.turn:
            self._woken(self.ledger.refuse_all(self.now()))
