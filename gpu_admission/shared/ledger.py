"""The seam: one process's face of a budget that many processes share.

Owns this process's own tickets, its membership and its way to the log. Who may start is the
replica's business, how entries travel the log's; waiting and refusing are the controller's.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import GRANTED, NEW, REFUSED, WAITING, Ticket
from gpu_admission.loops import call_soon, running_loop
from gpu_admission.shared import dump
from gpu_admission.shared.operations import (
    MOST_OPERATIONS,
    Adopt,
    Allow,
    Ask,
    Beat,
    Change,
    Drain,
    End,
    Gone,
    Held,
    Join,
    Operation,
    Refuse,
    Resize,
    Terms,
    flow_key,
)
from gpu_admission.shared.outbox import Outbox
from gpu_admission.shared.process import Pulse, boot_seconds, host_name, new_name, pid, process_of
from gpu_admission.shared.protocol import Entry, Log, LogAway
from gpu_admission.shared.replica import Replica
from gpu_admission.shared.terms import differences
from gpu_admission.shared.views import MemberView, view_members

logger = logging.getLogger("gpu_admission")

_LOOK_FOR_DEATHS = 0.2
_POLL = 1.0
_BEATS_IN_TTL = 5


class SharedLedger:
    """A ledger that many processes share, used as the controller uses one of its own.

    Wiring, for a controller that has a ``Ledger``, a lock and a way to wake:

    - ``start()`` once a process, never before a fork; ``stop()`` at the end. A child that was
      forked makes a ``SharedLedger`` and a log of its own.
    - Take ``lock`` around every read of ``ledger`` (snapshots, forecasts, ``is_full`` …), with
      ``now()`` for its time. ``ledger`` is another object after a new log or new settings: do
      not keep it. Never change it: that is what the methods here are for.
    - To ask: ``await request(ticket)``, or ``ask(ticket)`` in a thread. Then ``ticket.state`` is
      ``GRANTED`` (and started), ``WAITING``, ``REFUSED``, or ``NEW``: the log is away, treat it
      as one that waits, and refuse it with 503 ``budget_unreachable`` when its time is up.
    - Who waits is called through ``woken(tickets)``, under the lock and from any thread: it may
      only set events and the like. Once awake: ``await start_work(ticket)``. ``True``: run.
      ``False``: look at ``ticket.state``; unless it is ``REFUSED`` go on waiting.
    - However it ends (served, timed out, client gone, cancelled): ``release(ticket)``, once or
      more often, from any thread. Its state is ``ENDED`` when that has come back.
    - ``change``, ``grow``, ``allow``, ``resize``, ``refuse_all``, ``drain`` as in ``Ledger``.

    ``resident()`` returns the bytes that this process holds on each device besides its leases.
    ``fallback``: the share of a device that this process may grant by itself while the log is
    away. Nothing here raises for a log that is away, but ``start`` and, when very much has
    piled up, what would add to it: ``LogAway``.
    """

    def __init__(
        self,
        log: Log,
        terms: Terms,
        *,
        woken: Callable[[Sequence[Ticket]], None] = lambda tickets: None,
        resident: Callable[[], Sequence[int]] = tuple,
        fallback: float = 0.0,
        clock: Callable[[], float] = boot_seconds,
        name: str | None = None,
    ) -> None:
        self.log = log
        self.terms = terms
        self.lock = threading.RLock()
        self.replica = Replica(self._own_ticket)
        self.away: str | None = None
        """Why the log can't be reached just now."""
        self.leases_lost = 0
        """How many leases this process held when it was declared dead, and claimed again."""
        self._woken = woken
        self._resident = resident
        self._fallback = fallback
        self._clock = clock
        self._outbox = Outbox(new_name() if name is None else name, clock)
        self._own: dict[int, Ticket] = {}
        self._returns: dict[int, Callable[[], object]] = {}
        self._alone: dict[int, Ticket] = {}
        self._numbers = 0
        self._turn = _Turn(self.lock, self._do_all_work)
        self._is_reading = True
        self._is_in = False
        self._epoch = 0
        self._since = 0.0
        self._seen: tuple[float, float] = (0.0, clock())
        self._beaten = self._looked = -math.inf
        self._changed: list[Ticket] = []
        self._agreed: Terms | None = None
        self._leaving = self._has_left = False
        self._pulse: Pulse | None = None

    # taking part

    def start(self, *, pulse: bool = True) -> None:
        """Join. Raises ``LogAway``, ``ValueError`` for a place that can't be used or other rules."""
        self.log.start(self._outbox.process, self)
        with self._turn:
            self._enter()
            if self.log.knows_deaths:
                self._bury(0.0)
        if pulse:
            self._pulse = Pulse(self.pulse, self.log.wait)
            self._pulse.start()

    def stop(self) -> None:
        """Leave, once the last lease has ended: until then its bytes stay counted."""
        with self._turn:
            for ticket in [t for t in self._own.values() if not t.started]:
                self.release(ticket)
            self._leaving = True
            if self._own:
                return
        self._leave()

    def _leave(self) -> None:
        pulse, self._pulse, self._has_left = self._pulse, None, True
        if pulse is not None:
            pulse.stop()
        with self._turn:
            self._tell_all(Gone(self._outbox.member, certain=True))
        self.log.stop()
        if pulse is not None:
            pulse.join(1.0)

    def _enter(self) -> None:
        """Join, or join again: declare what runs, and ask again for what waits."""
        former = self._outbox.member
        member = self._outbox.enter()
        self._is_in = False
        self._alone.clear()
        holds = tuple(self._held(ticket) for ticket in self._own.values() if ticket.started)
        join = Join(pid(), host_name(), self.terms, self._since, former, holds)
        self._epoch = self.replica.epoch
        self._append(join)
        waiting = [ticket for ticket in self._own.values() if not ticket.started]
        for place in range(0, len(waiting), MOST_OPERATIONS):
            part = waiting[place : place + MOST_OPERATIONS]
            asks = [_ask_for(ticket, NEW) for ticket in part]
            self._append(*asks, asks=[ticket.number for ticket in part])
        logger.debug("joined the budget %s as %s", self.log.where, member)

    def _held(self, ticket: Ticket) -> Held:
        age = max(0.0, self.now() - ticket.granted_at)
        return Held(ticket.number, ticket.bytes, ticket.device, ticket.lane, ticket.flow, age)

    # asking

    async def request(self, ticket: Ticket) -> None:
        """Ask for ``ticket`` and wait until that has come back: see its state.

        Cancelled at any point, it has left the queue and holds nothing. While the log is away
        this returns at once, with a state of ``NEW``.
        """
        self.ask(ticket)
        if ticket.state is NEW and self.away is None:
            await self._come_back(ticket)
        if ticket.state is GRANTED and not self._may_start(ticket):
            await self.start_work(ticket)

    def ask(self, ticket: Ticket) -> None:
        """The same without waiting for it to come back, which on a folder it has done at once."""
        with self._turn:
            if self._leaving:
                ticket.state = REFUSED
                return
            number = self._numbers = self._numbers + 1
            ticket.number = number
            if ticket.flow is not None:
                ticket.flow = flow_key(ticket.flow)
            if self.away is not None and self._grant_alone(ticket):
                return
            self._own[number] = ticket
            try:
                self._append(_ask_for(ticket, ticket.state), asks=(number,))
            except BaseException:
                del self._own[number]
                raise
            if len(self._changed) == 1 and self._changed[0] is ticket:
                self._changed.clear()  # the caller sees for itself
            if ticket.state is WAITING and self.log.knows_deaths:
                self._bury(_LOOK_FOR_DEATHS)

    async def _come_back(self, ticket: Ticket) -> None:
        event, loop = anyio.Event(), running_loop()
        try:
            with self.lock:
                if ticket.state is not NEW:
                    return
                self._returns[ticket.number] = partial(call_soon, loop, event.set)
            await event.wait()
        except BaseException:
            self.release(ticket)
            raise

    async def start_work(self, ticket: Ticket) -> bool:
        """Whether work on ``ticket`` may begin now: right before it does, after any wait.

        A grant that is older than half a ``lease_ttl`` may have been given away meanwhile, if
        this process stood still: then the log is read first.
        """
        if self._may_start(ticket):
            return True
        if ticket.state is not GRANTED or self.away is not None:
            return False
        probe = Ticket(0)
        with self._turn:
            probe.number = self._numbers = self._numbers + 1
            self._append(Beat(tuple(self._resident())), asks=(probe.number,))
            back = self._is_fresh()
        if not back:
            await self._come_back_of(probe.number)
        return self._may_start(ticket)

    async def _come_back_of(self, number: int) -> None:
        event = anyio.Event()
        with self.lock:
            self._returns[number] = partial(call_soon, running_loop(), event.set)
            if self._is_fresh() or self.away is not None:
                event.set()
        await event.wait()

    def _may_start(self, ticket: Ticket) -> bool:
        with self.lock:
            if ticket.started:
                return True
            if ticket.state is not GRANTED or not self._is_fresh() or not self._is_in:
                return False
            ticket.started = True
            return True

    def _is_fresh(self) -> bool:
        return self._clock() - self._outbox.confirmed < self._ttl / 2

    @property
    def _ttl(self) -> float:
        terms = self.replica.terms
        return self.terms.lease_ttl if terms is None else terms.lease_ttl

    def _grant_alone(self, ticket: Ticket) -> bool:
        """While the log is away: grant from this process's own share, to be declared later."""
        ledger = self.replica.ledger
        if ledger is None or not self._fallback:
            return False
        taken = sum(alone.bytes for alone in self._alone.values())
        if taken + ticket.bytes > self._fallback * ledger.accounts[0].limit:
            return False
        ticket.state, ticket.device, ticket.started = GRANTED, 0, True
        ticket.arrived = ticket.granted_at = self.now()
        self._own[ticket.number] = self._alone[ticket.number] = ticket
        return True

    # ending and changing

    def release(self, ticket: Ticket) -> None:
        """End ``ticket``, wherever it is in its life; ending it again changes nothing."""
        with self._turn:
            number = ticket.number
            if self._own.get(number) is not ticket:
                return
            del self._own[number]
            back = self._returns.pop(number, None)
            if back is not None:
                back()
            if self._alone.pop(number, None) is None:
                self._append(End(number))
        if self._leaving and not self._own:
            self._leave()

    def change(self, ticket: Ticket, size: int) -> None:
        """Make a held ticket ``size`` bytes large, whether that fits or not."""
        with self._turn:
            if self._own.get(ticket.number) is ticket:
                self._append(Change(ticket.number, size))

    def grow(self, ticket: Ticket, size: int, *, timeout: float = 1.0) -> bool:
        """The same only where it fits; waits in this thread until that has come back, and says so.

        Raises ``LogAway`` when it did not come back in time: then nothing has grown.
        """
        came = threading.Event()
        with self._turn:
            if self._own.get(ticket.number) is not ticket:
                return False
            before = ticket.bytes
            mark = self._numbers = self._numbers + 1
            self._returns[mark] = came.set
            self._append(Change(ticket.number, size, must_fit=True), asks=(mark,))
        if not came.wait(timeout) or self.away is not None:
            self.change(ticket, before)
            raise LogAway(f"the shared budget {self.log.where} did not answer within {timeout:g} s")
        return ticket.bytes == size

    def refuse_all(self) -> None:
        """Send away all that wait in this process."""
        self._say(Refuse())

    def allow(
        self,
        device: int,
        *,
        capacity: int | None = None,
        ceiling: int | None = None,
        max_running: int | None = None,
    ) -> None:
        """What this process's guards say of ``device``: the lowest of all processes is in force."""
        self._say(Allow(device, capacity, ceiling, max_running))

    def resize(self, capacities: Sequence[int]) -> None:
        """New capacities for all processes. Those that wait and can never fit now are refused."""
        self._say(Resize(tuple(capacities)))

    def drain(self, closed: bool = True) -> None:
        """Admit nothing from now on in any process, and refuse what waits; or undo that."""
        self._say(Drain(closed))

    def _say(self, operation: Operation) -> None:
        with self._turn:
            self._tell_all(operation)

    def _tell_all(self, operation: Operation) -> None:
        self._append(operation)
        self.log.wake({process_of(name) for name in self.replica.members.living} - {self._outbox.process})

    # what there is to see

    @property
    def ledger(self) -> Ledger:
        """The replica's ledger, to read under ``lock``. Raises ``LogAway`` before the first join."""
        ledger = self.replica.ledger
        if ledger is None:
            raise LogAway(f"the shared budget {self.log.where} has not been read yet")
        return ledger

    def now(self) -> float:
        """The log's time now, about: what ``ledger``'s questions take for ``now``."""
        at, seen = self._seen
        return at + (self._clock() - seen)

    def members(self) -> tuple[MemberView, ...]:
        """Which process holds what."""
        with self._turn:
            self.log.catch_up()
            return view_members(self.replica, self._outbox.member, self.now())

    def resident(self, device: int) -> int:
        """Bytes that all processes hold on ``device`` besides their leases."""
        with self.lock:
            return self.replica.members.resident(device)

    @property
    def settles_in(self) -> float:
        """Seconds until a log that has begun anew grants again; 0 when it does."""
        settles = self.replica.settles
        return 0.0 if settles is None else max(0.0, settles - self.now())

    # the log reports

    def received(self, entries: Sequence[Entry]) -> None:
        with self._turn:
            replica, outbox = self.replica, self._outbox
            for at, data in entries:
                changed = replica.apply(at, data)
                if changed:
                    self._changed += changed
                message = replica.message
                if message is not None and message.member == outbox.member:
                    self._came_back(message.serial)
            self._seen = (replica.at, self._clock())

    def _came_back(self, serial: int) -> None:
        if not self._is_in and self._outbox.member in self.replica.members.living:
            self._is_in = True
            self._since = self._since or self.replica.at
        for number in self._outbox.came_back(serial):
            back = self._returns.pop(number, None)
            if back is not None:
                back()

    def restarted(self, snapshot: bytes | None) -> None:
        with self._turn:
            self._is_reading = True
            self._changed.clear()
            self.replica = Replica(self._own_ticket)
            if snapshot is not None:
                dump.load(self.replica, snapshot)

    def went_away(self, why: str) -> None:
        with self._turn:
            if self.away is None:
                logger.warning("%s: requests wait for it; what runs goes on", why)
            self.away = why
            for back in [self._returns.pop(number) for number in list(self._returns)]:
                back()

    def came_back(self) -> None:
        with self._turn:
            if self.away is not None:
                logger.warning("the shared budget %s is back", self.log.where)
            self.away = None
            self._is_reading = False
            member = self.replica.members.living.get(self._outbox.member)
            if self._is_out():
                return  # declared dead: it joins again at once
            for data in self._outbox.again(0 if member is None else member.serial):
                self.log.append(data)
            if member is None:
                return
            self._find_the_missing(member.tickets)
            if self._alone:
                alone, self._alone = self._alone, {}
                self._append(Adopt(tuple(map(self._held, alone.values()))))

    def _find_the_missing(self, known: dict[int, Ticket]) -> None:
        """Refused in a part of the log that this process never read: a snapshot stands for it."""
        for number, ticket in self._own.items():
            if ticket.state is WAITING and number not in known:
                ticket.state = REFUSED
                self._changed.append(ticket)

    def _own_ticket(self, member: str, number: int) -> Ticket | None:
        return self._own.get(number) if member == self._outbox.member else None

    # the turn of the log's wheel

    def pulse(self) -> float:
        """Catch up, beat, look for deaths: called by a thread. Returns seconds until the next."""
        with self._turn:
            if self._has_left:
                return 0.0
            now = self._clock()
            self.log.catch_up()
            self._beat_if_due(now)
            if self.log.knows_deaths:
                self._bury(0.0)
            if self.away is None and not self._is_reading:
                self.log.compact(self._snapshot)
            return self._pause(now)

    def _snapshot(self) -> bytes:
        with self.lock:
            return dump.dump(self.replica)

    def _beat_if_due(self, now: float) -> None:
        resident = tuple(self._resident())
        member = self.replica.members.living.get(self._outbox.member)
        if member is None or self.away is not None:
            return
        due = self.replica.expires and now - self._beaten >= self._ttl / _BEATS_IN_TTL
        late = self.replica.next_change <= self.now()
        if due or late or member.resident != resident:
            self._beaten = now
            self._append(Beat(resident))

    def _pause(self, now: float) -> float:
        """Short while a death would free bytes that are waited for, or the log's time decides."""
        ledger = self.replica.ledger
        pause = _POLL
        if self.log.knows_deaths and ledger is not None and ledger.waiting:
            pause = _LOOK_FOR_DEATHS
        if self.replica.expires:
            pause = min(pause, max(0.01, self._beaten + self._ttl / _BEATS_IN_TTL - now))
        return min(pause, max(0.01, self.replica.next_change - self.now()))

    def _bury(self, pause: float) -> None:
        """Say in the log which processes the kernel says have died."""
        now = self._clock()
        if now - self._looked < pause:
            return
        self._looked = now
        for name in list(self.replica.members.living):
            if name != self._outbox.member and self.log.is_alive(process_of(name)) is False:
                self._append(Gone(name, certain=True))

    # appending

    def _append(self, *operations: Operation, asks: Sequence[int] = ()) -> None:
        data = self._outbox.say(*operations, asks=asks)
        if self.away is None and not self._is_reading:  # else it is appended when the log is back
            self.log.append(data)

    def _do_all_work(self) -> None:
        """What the log's reports call for is done last, outside of the log."""
        while not self._is_reading and self._has_work():
            self._do_work()

    def _has_work(self) -> bool:
        return bool(self._changed) or self.replica.terms is not self._agreed or self._is_out()

    def _is_out(self) -> bool:
        """Whether it took part, or was about to, and does no more against its will."""
        member = self._outbox.member
        if not member or self._has_left or member in self.replica.members.living:
            return False
        return self._is_in or self._epoch != self.replica.epoch

    def _do_work(self) -> None:
        changed, self._changed = self._changed, []
        own = [t for t in changed if t.owner == self._outbox.member and t.number in self._own]
        others = {process_of(t.owner) for t in changed} - {self._outbox.process}
        if others:
            self.log.wake(others)
        if own:
            self._woken(own)
        if self.replica.terms is not self._agreed:
            self._compare_terms()
        if self._is_out():
            self._join_again()

    def _join_again(self) -> None:
        held = sum(ticket.started for ticket in self._own.values())
        if self._is_in:
            self.leases_lost += held
            logger.warning(
                "this process is no member of the shared budget %s any more (it was silent for longer than "
                "lease_ttl=%g s, was evicted, or the log has begun anew): it joins again with %d leases",
                self.log.where,
                self._ttl,
                held,
            )
        self._enter()

    def _compare_terms(self) -> None:
        self._agreed = self.replica.terms
        if self._agreed is not None and self._agreed != self.terms:
            logger.warning(
                "processes that share the budget %s have different settings, the newest are in force: %s",
                self.log.where,
                "; ".join(differences(self.terms, self._agreed)),
            )


class _Turn:
    """Holds the lock for one call; ``last`` is done before the outermost one ends."""

    __slots__ = ("_depth", "_last", "_lock")

    def __init__(self, lock: Any, last: Callable[[], None]) -> None:
        self._lock = lock
        self._last = last
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        try:
            if self._depth == 1:
                self._last()
        finally:
            self._depth -= 1
            self._lock.release()


def _ask_for(ticket: Ticket, state: Any) -> Ask:
    ticket.state = state
    return Ask(ticket.number, ticket.bytes, ticket.lane, ticket.flow)
