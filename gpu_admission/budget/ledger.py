"""Who may start. Pure and synchronous: no clock, no I/O, no async, no logging.

Every method takes ``now``, changes the state, runs the one deciding function and returns
the tickets that were granted; the caller wakes them. So a planner can replay a trace
through this very code. Rendering, waiting and measuring must not be put here.

The rules, in the order in which ``_next`` applies them:

1. The head of a lane starts when its bytes fit. Heads that are *due* (passed
   ``max_bypass`` times, or at the head for ``max_bypass_wait`` seconds) come first, then
   those inside their lane's guarantee, then by priority, then by arrival.
2. A head that does not fit holds back every head that comes after it, except one inside
   its own lane's guarantee. A due head holds back those too, unless it will fit beside
   all guarantees.
3. In the gap that it leaves, *small* requests may start (see ``SmallSizes``), while their
   own lane's head is not due. While a head that is due, or inside its lane's guarantee,
   does not fit, only small ones inside their own lane's guarantee may.
4. A head that its own lane's limit keeps waiting holds back no other lane, and one that
   is above every ceiling holds back nobody: room that is made for it would lie idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpu_admission.budget.forecast import DrainRate, seconds_to_start
from gpu_admission.budget.lanes import Lane, LaneState
from gpu_admission.budget.placement import Placement, most_free
from gpu_admission.budget.small import SmallSizes
from gpu_admission.budget.ticket import ENDED, GRANTED, REFUSED, WAITING, Ticket

_NOBODY: tuple[Ticket, ...] = ()
_NO_LIMIT = 1 << 63


class Account:
    """One device's bytes."""

    __slots__ = ("capacity", "ceiling", "in_use", "limit", "max_running", "running")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.ceiling: int | None = None
        self.limit = capacity
        """What may be held now: the smaller of capacity and ceiling."""
        self.in_use = 0
        self.running = 0
        self.max_running: float = math.inf
        """Leases that may run on it at once; a breaker that tries it out sets a small one."""

    @property
    def free(self) -> int:
        """Bytes that may start here now; below 0 when nothing may."""
        return self.limit - self.in_use if self.running < self.max_running else -1

    def allow(self, capacity: int, ceiling: int | None) -> None:
        self.capacity = capacity
        self.ceiling = ceiling
        self.limit = capacity if ceiling is None else max(0, min(capacity, ceiling))


class Ledger:
    """The budget of one or several devices, its leases and its one queue of lanes.

    ``capacities`` in bytes, one a device; a request is placed on one of them, never split.
    """

    def __init__(
        self,
        capacities: Sequence[int],
        *,
        lanes: Sequence[Lane] = (Lane("default"),),
        max_waiting: int = 100,
        max_waiting_per_flow: int | None = None,
        max_running: int | None = None,
        max_bypass: int = 32,
        max_bypass_wait: float = 30.0,
        placement: Placement = most_free,
        small: SmallSizes | None = None,
    ) -> None:
        self.accounts = [Account(capacity) for capacity in capacities]
        self.lanes = [LaneState(lane, max_waiting) for lane in lanes]
        self.max_waiting_per_flow = max_waiting_per_flow
        self.max_running: float = math.inf if max_running is None else max_running
        self.max_bypass = max_bypass
        self.max_bypass_wait = max_bypass_wait
        self.placement = placement
        self.closed = False
        """Nobody starts or waits any more."""
        self.running = 0
        self.waiting = 0
        self.in_use = 0
        self.peak = 0
        self.grants = 0
        self.drain = DrainRate()
        self._sizes = SmallSizes() if small is None else small
        self._note = self._sizes.note
        self._share_out()

    # what is asked of it

    def request(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """Grant ``ticket``, let it wait, or refuse it: see its state.

        Refused is what can never fit, what comes when no more may wait, and everybody
        once the ledger is ``closed``.
        """
        ticket.arrived = now
        size = ticket.bytes
        lane = self.lanes[ticket.lane]
        if size <= lane.largest:
            self._note(size)  # what can never fit costs nothing to ask, and would make the rest look small
        if not self.waiting and self.running < self.max_running and lane.in_use + size <= lane.limit:
            device = self._place(size)
            if device is not None:
                self._grant(ticket, device, now)
                return (ticket,)
        if self.closed or size > lane.largest or self._line_is_full(lane, ticket):
            ticket.state = REFUSED
            return _NOBODY
        return self._join(ticket, lane, now)

    def force(self, ticket: Ticket, now: float) -> None:
        """Hold ``ticket`` whether it fits or not: for watching without deciding."""
        ticket.arrived = now
        device = self._place(ticket.bytes)
        self._grant(ticket, 0 if device is None else device, now)

    def release(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """End ``ticket``, wherever it is in its life; ending it again changes nothing."""
        if ticket.state is GRANTED:
            self._put_back(ticket, now)
        elif ticket.state is WAITING:
            self._leave(ticket, now)
        else:
            return _NOBODY
        ticket.state = ENDED
        return self._dispatch(now) if self.waiting else _NOBODY

    def can_grow(self, ticket: Ticket, size: int) -> bool:
        """Whether a held ticket may be made that large now, ahead of those who wait."""
        more = size - ticket.bytes
        account, lane = self.accounts[ticket.device], self.lanes[ticket.lane]
        return account.in_use + more <= account.limit and lane.in_use + more <= lane.limit

    def change(self, ticket: Ticket, size: int, now: float) -> Sequence[Ticket]:
        """Make a held ticket ``size`` bytes large, whether that fits or not."""
        more = size - ticket.bytes
        ticket.bytes = size
        self.accounts[ticket.device].in_use += more
        self.lanes[ticket.lane].in_use += more
        self.in_use += more
        self.peak = max(self.peak, self.in_use)
        return self._dispatch(now)

    def allow(
        self,
        device: int,
        now: float,
        *,
        capacity: int | None = None,
        ceiling: int | None = None,
        max_running: int | None = None,
    ) -> Sequence[Ticket]:
        """Set what ``device`` may hold. Nothing is taken back: a smaller limit only stops grants."""
        account = self.accounts[device]
        account.allow(account.capacity if capacity is None else capacity, ceiling)
        account.max_running = math.inf if max_running is None else max_running
        self._share_out()
        return self._dispatch(now)

    def resize(self, capacities: Sequence[int], now: float) -> Sequence[Ticket]:
        """New capacities. Returns the granted, and those waiting that can never fit now: refused."""
        for account, capacity in zip(self.accounts, capacities, strict=True):
            account.allow(capacity, account.ceiling)
        self._share_out()
        refused = [ticket for ticket in self._all_waiting() if ticket.bytes > self.largest(ticket.lane)]
        self._refuse(refused, now)
        return [*refused, *self._dispatch(now)]

    def close(self, now: float) -> Sequence[Ticket]:
        """Refuse everybody from now on; returns those who waited. Leases run on."""
        self.closed = True
        self.max_running = 0
        return self.refuse_all(now)

    def refuse_all(self, now: float) -> Sequence[Ticket]:
        """Send all who wait away; returns them."""
        refused = self._all_waiting()
        self._refuse(refused, now)
        return refused

    def run_at_most(self, max_running: int | None, now: float) -> Sequence[Ticket]:
        if not self.closed:
            self.max_running = math.inf if max_running is None else max_running
        return self._dispatch(now)

    # what is asked about it

    @property
    def capacity(self) -> int:
        return sum(account.capacity for account in self.accounts)

    @property
    def waiting_bytes(self) -> int:
        return sum(lane.waiting_bytes for lane in self.lanes)

    @property
    def available(self) -> int:
        """Most bytes that one request could be granted now."""
        return max(0, max(account.free for account in self.accounts))

    def largest(self, lane: int = 0) -> int:
        """Bytes of the largest request that can ever start in ``lane``."""
        return self.lanes[lane].largest

    def is_full(self, lane: int) -> bool:
        """Whether a newcomer to ``lane`` is refused, whatever it asks."""
        state = self.lanes[lane]
        return 0 < state.max_waiting <= state.waiting

    @property
    def usual(self) -> int:
        """The median of the sizes asked lately; 0 while nothing was."""
        return self._sizes.median

    @property
    def asked(self) -> Sequence[int]:
        """Sizes asked lately, oldest first."""
        return self._sizes.asked

    def forecast(self, size: int, now: float, *, lane: int = 0, flow: Any = None) -> float | None:
        """Seconds that ``size`` bytes would wait if they came now; ``None`` while nothing has drained."""
        state = self.lanes[lane]
        return seconds_to_start(self, state, size, state.ahead_of(flow), now)

    def forecast_of(self, ticket: Ticket, now: float) -> float | None:
        """The same for one that waits and was the last to join its lane."""
        state = self.lanes[ticket.lane]
        ahead = state.ahead_of(ticket.flow) - ticket.bytes
        return seconds_to_start(self, state, ticket.bytes, max(0, ahead), now)

    # the changes

    def _join(self, ticket: Ticket, lane: LaneState, now: float) -> Sequence[Ticket]:
        ticket.state = WAITING
        lane.join(ticket, now)
        self.waiting += 1
        granted = self._dispatch(now)
        if lane.max_waiting == 0 and ticket.state is WAITING:
            self._leave(ticket, now)
            ticket.state = REFUSED
            return [*granted, *self._dispatch(now)]
        return granted

    def _line_is_full(self, lane: LaneState, ticket: Ticket) -> bool:
        if 0 < lane.max_waiting <= lane.waiting:
            return True
        most = self.max_waiting_per_flow
        return most is not None and ticket.flow is not None and lane.waiting_of(ticket.flow) >= most

    def _leave(self, ticket: Ticket, now: float) -> None:
        self.lanes[ticket.lane].leave(ticket, now)
        self.waiting -= 1

    def _all_waiting(self) -> list[Ticket]:
        return [ticket for lane in self.lanes for ticket in lane.tickets()]

    def _refuse(self, tickets: Sequence[Ticket], now: float) -> None:
        for ticket in tickets:
            self._leave(ticket, now)
            ticket.state = REFUSED

    def _grant(self, ticket: Ticket, device: int, now: float) -> None:
        ticket.state = GRANTED
        ticket.device = device
        ticket.granted_at = now
        size, lane = ticket.bytes, self.lanes[ticket.lane]
        if ticket.flow is not None:
            lane.charge(ticket)  # first: it raises for a flow that is no key
        account = self.accounts[device]
        account.in_use += size
        account.running += 1
        lane.in_use += size
        self.running += 1
        self.grants += 1
        self.in_use = in_use = self.in_use + size
        if in_use > self.peak:
            self.peak = in_use

    def _put_back(self, ticket: Ticket, now: float) -> None:
        size, lane = ticket.bytes, self.lanes[ticket.lane]
        account = self.accounts[ticket.device]
        account.in_use -= size
        account.running -= 1
        lane.in_use -= size
        self.running -= 1
        self.in_use -= size
        if ticket.flow is not None:
            lane.settle(ticket, now - ticket.granted_at)
        self.drain.released(size, now, self.waiting)

    def _share_out(self) -> None:
        total = self.capacity
        largest = max(account.capacity for account in self.accounts)
        for state in self.lanes:
            state.guaranteed = int(state.lane.guaranteed * total)
            state.limit = int(state.lane.limit * total) if state.lane.limit < 1 else _NO_LIMIT
            state.largest = min(state.limit, largest)
        self._promised = sum(state.guaranteed for state in self.lanes)
        self._most = max(account.limit for account in self.accounts)

    # who is next

    def _dispatch(self, now: float) -> Sequence[Ticket]:
        granted: list[Ticket] = []
        while self.waiting and self.running < self.max_running:
            ticket = self._next(now)
            device = None if ticket is None else self._place(ticket.bytes)
            if ticket is None or device is None:
                break
            self._count_passed(ticket)
            self._grant(ticket, device, now)
            if ticket.flow is None:
                self.lanes[ticket.lane].charge_unnamed(ticket)
            self._leave(ticket, now)
            granted.append(ticket)
        return granted

    def _place(self, size: int) -> int | None:
        if len(self.accounts) == 1:
            return 0 if size <= self.accounts[0].free else None
        if self.placement is most_free:
            return self._emptiest(size)
        free = [a.limit - a.in_use if a.running < a.max_running else -1 for a in self.accounts]
        index = self.placement(size, free, self.grants)
        return index if index is not None and free[index] >= size else None

    def _emptiest(self, size: int) -> int | None:
        """``most_free``, in fewer steps: with several devices every request passes here."""
        most, index = size - 1, None
        for number, account in enumerate(self.accounts):
            free = account.limit - account.in_use
            if free > most and account.running < account.max_running:
                most, index = free, number
        return index

    def _next(self, now: float) -> Ticket | None:
        accounts = self.accounts
        room = accounts[0].free if len(accounts) == 1 else max(account.free for account in accounts)
        order = self._lanes_in_turn(now)
        first: Ticket | None = None
        claimed = False
        for lane in order:
            head = lane.head
            assert head is not None
            if head.bytes > self._most or lane.in_use + head.bytes > lane.limit:
                continue
            inside = self._is_guaranteed(lane, head)
            if head.bytes <= room and (first is None or inside):
                return head
            due = self._is_due(head, now)
            if due and head.bytes > self._most - (self._promised - lane.guaranteed):
                return None
            first = first or head
            claimed = claimed or due or inside
        return self._small_one(order, room, first, claimed, now)

    def _lanes_in_turn(self, now: float) -> list[LaneState]:
        if len(self.lanes) == 1:
            return self.lanes
        waiting = [lane for lane in self.lanes if lane.head is not None]
        waiting.sort(key=lambda lane: self._turn(lane, now))
        return waiting

    def _turn(self, lane: LaneState, now: float) -> tuple[bool, float, bool, int, float]:
        head = lane.head
        assert head is not None
        overdue = head.passed >= max(1, self.max_bypass) or now - head.head_since >= self.max_bypass_wait
        since = head.head_since if overdue else 0.0
        return (not overdue, since, not self._is_guaranteed(lane, head), -lane.lane.priority, head.arrived)

    def _is_guaranteed(self, lane: LaneState, head: Ticket) -> bool:
        return lane.in_use + head.bytes <= lane.guaranteed

    def _is_due(self, head: Ticket, now: float) -> bool:
        return head.passed >= self.max_bypass or now - head.head_since >= self.max_bypass_wait

    def _small_one(
        self, order: Sequence[LaneState], room: int, first: Ticket | None, claimed: bool, now: float
    ) -> Ticket | None:
        self._sizes.look()
        for lane in order:
            head = lane.head
            assert head is not None
            holds_nobody = head.bytes > self._most
            if not holds_nobody and self._is_due(head, now):
                continue
            gap = lane.guaranteed if claimed else lane.limit
            size = min(room, gap - lane.in_use)
            if first is not None or not holds_nobody:
                size = min(size, self._sizes.beside((first or head).bytes))
            ticket = lane.small(size)
            if ticket is not None:
                return ticket
        return None

    def _count_passed(self, ticket: Ticket) -> None:
        """Not counted: other lanes' starts while a head waits for its own lane's limit."""
        for index, lane in enumerate(self.lanes):
            head = lane.head
            if head is None or head is ticket or head.arrived > ticket.arrived or head.bytes > self._most:
                continue
            if index == ticket.lane or lane.in_use + head.bytes <= lane.limit:
                head.passed += 1
