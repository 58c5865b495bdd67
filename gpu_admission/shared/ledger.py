"""The seam: one process's face of a budget that many processes share.

Owns what the controller may ask of it. Who may start is up to the replica, taking part to the
membership, how entries travel to the log; waiting and refusing are up to the controller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import msgspec

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import GRANTED, NEW, REFUSED, WAITING, Ticket
from gpu_admission.runtime.answer import Answer
from gpu_admission.runtime.loop import call_soon, running_loop
from gpu_admission.shared.gossip import Use
from gpu_admission.shared.membership import Membership
from gpu_admission.shared.operations import Allow, Drain, Operation, Refuse, Resize, Terms, Why, flow_key
from gpu_admission.shared.owngrants import OwnGrants
from gpu_admission.shared.owntickets import OwnTickets
from gpu_admission.shared.process import Pulse, boot_seconds, new_name
from gpu_admission.shared.protocol import Log
from gpu_admission.shared.replica import Replica
from gpu_admission.shared.resizing import Resizing
from gpu_admission.shared.terms import find_lane, ledger_of
from gpu_admission.shared.views import view_members
from gpu_admission.types import MemberSnapshot


class SharedLedger:
    """A ledger that many processes share, used as the controller uses one of its own.

    - ``start()`` once a process, never before a fork; ``stop()`` at the end.
    - Take ``lock`` around every read of ``ledger``, with ``now()`` for its time. It is another
      object after a new log or new settings: don't keep it, and never change it.
    - To ask: ``await request(ticket)``, or ``ask(ticket)`` in a thread. Then ``ticket.state`` is
      ``GRANTED`` (and started), ``WAITING``, ``REFUSED``, or ``NEW``: the log is away, treat it
      as one that waits, and refuse it with 503 ``budget_unreachable`` when its time is up.
    - Waiters are woken through ``woken(tickets)``, under the lock and from any thread: it may only
      set events and the like. Once awake: ``await start_work(ticket)``. ``True``: run.
      ``False``: look at ``ticket.state``; unless it is ``REFUSED``, go on waiting.
    - However it ends: ``release(ticket)``, once or more often, from any thread. Its state is
      ``ENDED`` when that has come back.

    ``use()`` returns, for each device, the bytes that this process holds besides its leases, and
    those that its leases really take.
    ``devices()``: a key for each of those that this process names, in its order, asked for at ``start``.
    ``fallback``: the share of a device that this process may grant by itself while the log is
    away. While the log is away nothing here raises, except ``start`` and, when very much has
    piled up, what asks for more: ``LogAway``.
    """

    def __init__(
        self,
        log: Log,
        terms: Terms,
        *,
        woken: Callable[[Sequence[Ticket]], object] = lambda tickets: None,
        use: Use = lambda: ((), ()),
        devices: Callable[[], Sequence[str]] = tuple,
        fallback: float = 0.0,
        clock: Callable[[], float] = boot_seconds,
        name: str | None = None,
    ) -> None:
        self.log = log
        self._member = member = Membership(
            log, terms, woken=woken, use=use, clock=clock, name=name or new_name(), devices=devices
        )
        self._turn = member.turn
        self._own = member.own
        self.lock: Any = member.turn.lock
        self._empty = ledger_of(terms)
        self._alone = OwnGrants(member, fallback)
        self._sizes = Resizing(member)
        self._leaving = False
        self._pulse: Pulse | None = None

    def start(self, *, pulse: bool = True) -> None:
        """Join, also after ``stop``. Raises ``ValueError`` for a place that can't be used, or not as it is.

        One that can't be reached is no error: see ``away``. ``pulse=False``: no thread is
        started, and ``pulse`` must be called instead.
        """
        self._leaving = False
        self._member.begin()
        if pulse:
            self._pulse = Pulse(self._member.pulse, self.log.wait)
            self._pulse.start()

    def stop(self) -> None:
        """Leave, once the last lease has ended: until then its bytes stay counted."""
        with self._turn:
            for ticket in self._own.waiting:
                self._release_now(ticket)
            self._leaving = True
            if self._own:
                return
        self._leave()

    def _leave(self) -> None:
        with self._turn:
            if self.has_left:
                return
            self._member.has_left = True
        pulse, self._pulse = self._pulse, None
        if pulse is not None:
            pulse.stop()
        self._member.leave()
        if pulse is not None:
            pulse.join(1.0)

    def pulse(self) -> float:
        """Catch up, beat, look for deaths. Returns the seconds until it is due again."""
        return self._member.pulse()

    @property
    def terms(self) -> Terms:
        """The settings that this process came with; others may be in force."""
        return self._member.terms

    @property
    def has_left(self) -> bool:
        return self._member.has_left

    @property
    def is_in(self) -> bool:
        """Whether it takes part now, as far as it knows."""
        return self._member.is_in

    @property
    def away(self) -> str | None:
        """Why the log can't be reached just now; ``None`` when it can."""
        return self._member.away

    @property
    def settles(self) -> float | None:
        """Seconds until a log that has begun anew lets anything start; ``None`` when it does."""
        with self.lock:
            at = self._member.replica.settles
            return None if at is None else max(0.0, at - self.now())

    @property
    def leases_lost(self) -> int:
        """How many leases this process held when it was declared dead, and claimed again."""
        return self._member.leases_lost

    # asking

    async def request(self, ticket: Ticket) -> None:
        """Ask for ``ticket`` and wait until that has come back: see its state.

        Cancelled at any point, it has left the queue and holds nothing. While the log is away
        this returns at once, with a state of ``NEW``.
        """
        self.ask(ticket)
        if ticket.state is NEW and self.away is None:
            await self._come_back(ticket)
        if ticket.state is GRANTED and not self.may_start(ticket):
            await self.start_work(ticket)

    def ask(
        self, ticket: Ticket, *, came_back: Callable[[Ticket], object] | None = None, start: bool = False
    ) -> None:
        """The same without waiting for it to come back, which on a folder happens at once.

        Otherwise ``came_back`` is called, like ``woken``, once it has come back or can't. ``start``:
        if it is granted by then, its work begins.
        """
        with self._turn:
            if self._leaving:
                ticket.state = REFUSED
                return
            if start and self._member.untold and self._alone.of_this_moment(ticket):
                return
            ticket.number = number = self._own.next_number()
            if ticket.flow is not None:
                ticket.flow = flow_key(ticket.flow)
            if self.away is not None and self._alone.while_away(ticket):
                return
            self._own.add(ticket)
            if ticket.lane:
                find_lane(ticket, self.terms, self.replica.ledger)
            try:
                self._member.ask(ticket)
            except BaseException:
                self._own.remove(ticket)
                raise
            changed = self._member.changed
            if len(changed) == 1 and changed[0] is ticket:
                changed.clear()  # the caller sees for itself
            if ticket.state is GRANTED:
                ticket.started = start and self._member.is_in and self._member.is_fresh
            elif ticket.state is REFUSED:
                self._own.remove(ticket)  # its caller need not release it, and it must not be asked for again
            elif ticket.state is NEW and came_back is not None and self.away is None:
                self._own.when_back(number, partial(came_back, ticket))
            elif ticket.state is WAITING:
                self._member.look_for_bytes()

    def hand_on(self, ticket: Ticket) -> bool:
        """Start ``ticket`` in place of one that has just ended here; whether it did. Else nothing changes."""
        return not self._leaving and self._alone.hand_on(ticket)

    async def _come_back(self, ticket: Ticket) -> None:
        event, loop = anyio.Event(), running_loop()
        try:
            with self.lock:
                if ticket.state is not NEW:
                    return
                self._own.when_back(ticket.number, partial(call_soon, loop, event.set))
            await event.wait()
        except BaseException:
            self.release(ticket)
            raise

    async def start_work(self, ticket: Ticket) -> bool:
        """Whether work on ``ticket`` may begin now: right before it does, after any wait.

        A grant that is older than half a ``lease_ttl`` may have been given away meanwhile, if
        this process stood still: then the log is read first.
        """
        if self.may_start(ticket):
            return True
        if ticket.state is not GRANTED or self.away is not None:
            return False
        with self._turn:
            number = self._own.next_number()
            self._member.beat(number)
        await self._come_back_of(number)
        return self.may_start(ticket)

    async def _come_back_of(self, number: int) -> None:
        event = anyio.Event()
        with self.lock:
            if self._member.is_fresh or self.away is not None:
                return
            self._own.when_back(number, partial(call_soon, running_loop(), event.set))
        await event.wait()

    def may_start(self, ticket: Ticket) -> bool:
        """The same at once: ``False`` too where the log would have to be read first."""
        with self.lock:
            if ticket.started:
                return True
            if ticket.state is not GRANTED or not self._member.is_fresh or not self._member.is_in:
                return False
            ticket.started = True
            return True

    def force(self, ticket: Ticket) -> None:
        """Hold ``ticket`` whether it fits or not: for watching without deciding."""
        with self._turn:
            self._alone.force(ticket)

    # ending and changing

    def release(self, ticket: Ticket) -> None:
        """End ``ticket``, wherever it is in its life; ending it again changes nothing."""
        if not self._leaving and self._alone.end(ticket):
            return
        with self._turn:
            if ticket not in self._own:
                return
            if self._turn.depth > 1:
                self._member.late.append(partial(self._release_now, ticket))
                return
            self._release_now(ticket)
        if self._leaving and not self._own and not self.has_left:
            # Whoever ends the last lease may hold the lock, which leaving waits for.
            threading.Thread(target=self._leave, name="gpu_admission.leave").start()

    def _release_now(self, ticket: Ticket) -> None:
        if ticket not in self._own:
            return
        said = self._own.remove(ticket)
        self._own.back((ticket.number,))
        if said:
            self._member.untold.add(ticket)
            if not self._alone.may_tell_later():
                self._member.flush()

    def change(self, ticket: Ticket, size: int) -> None:
        """Make a held ticket ``size`` bytes large, whether that fits or not."""
        with self._turn:
            if self._turn.depth > 1:
                self._member.late.append(partial(self._sizes.change, ticket, size))
            else:
                self._sizes.change(ticket, size)

    def grow(self, ticket: Ticket, size: int) -> Answer:
        """The same only where it fits. Whether it did is known once that has come back.

        The answer is ``None`` where the log can't be reached. Whoever waits for it no longer must
        ``change`` the ticket to what it is to hold: what was said may still be read.
        """
        answer = Answer()
        with self._turn:
            if self._turn.depth > 1:
                self._member.late.append(partial(self._sizes.grow, ticket, size, answer))
            else:
                self._sizes.grow(ticket, size, answer)
        return answer

    def refuse_all(self) -> None:
        """Refuse all that wait in this process."""
        self._say(Refuse())

    def allow(
        self,
        device: int,
        *,
        capacity: int | None = None,
        ceiling: int | None = None,
        max_running: int | None = None,
        why: Why | None = None,
    ) -> None:
        """What this process's guards say of ``device``: the lowest of all processes is in force."""
        said = Allow(device, capacity, ceiling, max_running, why)
        self._member.allowed[device] = said
        self._say(said)

    def resize(self, capacities: Sequence[int]) -> None:
        """New capacities for all processes. Those that wait and can never fit now are refused."""
        self._member.terms = msgspec.structs.replace(self._member.terms, capacities=tuple(capacities))
        self._empty = ledger_of(self._member.terms)
        self._say(Resize(tuple(capacities)))

    def drain(self, closed: bool = True) -> None:
        """Admit nothing from now on in any process, and refuse what waits; or undo that."""
        self._say(Drain(closed))

    def _say(self, operation: Operation) -> None:
        with self._turn:
            if not self._member.outbox.member or self.has_left:
                return  # what lasts is said when it joins
            if self._turn.depth > 1:  # from a garbage collection in the middle of another append
                self._member.late.append(partial(self._member.tell_all, operation))
            else:
                self._member.tell_all(operation)

    @property
    def replica(self) -> Replica:
        """This process's copy of everything, to read under ``lock``."""
        return self._member.replica

    @property
    def ledger(self) -> Ledger:
        """The replica's ledger, to read under ``lock``; an empty one until a log has been joined."""
        if self._member.untold and not self._turn.depth:
            self._alone.tell()  # whoever looks must see what has ended
        return self.ledger_as_read

    @property
    def ledger_as_read(self) -> Ledger:
        """The same, except for what has ended but was not said yet."""
        return self._member.replica.ledger or self._empty

    def now(self) -> float:
        """The log's time now, roughly: the ``now`` for ``ledger``'s methods."""
        return self._member.now()

    def catch_up(self) -> None:
        """Take in what is in the log already; nothing where it has interrupted that in this very thread."""
        with self._turn:
            if not self.has_left and self._turn.depth == 1:
                self.log.catch_up()

    def members(self) -> tuple[MemberSnapshot, ...]:
        """Which process holds what."""
        self.catch_up()
        with self._turn:
            return view_members(self.replica, self._member.outbox.member, self.now())

    @property
    def member(self) -> str:
        """What the others call this process now."""
        return self._member.outbox.member

    @property
    def unheard(self) -> int:
        """How many entries of this process have not come back from the log yet."""
        return len(self._member.outbox)

    @property
    def own(self) -> OwnTickets:
        """This process's tickets, to read under ``lock``."""
        return self._own
