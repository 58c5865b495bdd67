"""Who may start. Pure and synchronous: no clock, no I/O, no async, no logging.

Every method takes ``now``, changes the state, runs the one deciding function and returns
the tickets that were granted; the caller wakes them. So a planner can replay a trace
through this very code. Rendering, waiting and measuring must not be put here.

The rules of who is next are in ``order``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpu_admission.budget.account import Account
from gpu_admission.budget.backfill import Order, count_passed
from gpu_admission.budget.forecast import DrainRate, seconds_in_line, seconds_to_pass
from gpu_admission.budget.lanes import Lane, LaneState
from gpu_admission.budget.placement import Placement, most_free
from gpu_admission.budget.recentsizes import SmallSizes
from gpu_admission.budget.ticket import ENDED, GRANTED, REFUSED, WAITING, Ticket

_NOBODY: tuple[Ticket, ...] = ()
_NO_LIMIT = 1 << 63


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
        self.placement = placement
        self.closed = False
        """Nobody starts or waits any more."""
        self.running = 0
        self.waiting = 0
        self.in_use = 0
        self.peak = 0
        self.grants = 0
        self.drain = DrainRate()
        self.sizes = SmallSizes() if small is None else small
        self.order = Order(self.sizes, max_bypass=max_bypass, max_bypass_wait=max_bypass_wait)
        self._note = self.sizes.note
        self._share_out()

    # what is asked of it

    def request(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """Grant ``ticket``, let it wait, or refuse it: see its state.

        Refused are requests that can never fit, those that come when no more may wait, and
        everybody once the ledger is ``closed``.
        """
        if self.start(ticket, now):
            return (ticket,)
        ticket.arrived = now
        size, lane = ticket.bytes, self.lanes[ticket.lane]
        if size <= lane.largest:
            self._note(size)  # asking for what can never fit is free, and would make the rest look small
        if self.closed or size > lane.largest or self._line_is_full(lane, ticket):
            ticket.state = REFUSED
            return _NOBODY
        return self._join(ticket, lane, now)

    def start(self, ticket: Ticket, now: float) -> bool:
        """Grant ``ticket`` if it fits and nobody waits; whether it did. Otherwise nothing has changed."""
        size, lane = ticket.bytes, self.lanes[ticket.lane]
        if self.waiting or self.running >= self.max_running or lane.in_use + size > lane.limit:
            return False
        account = self.accounts[0]
        if len(self.accounts) > 1:
            device = self._place(size)
            if device is None:
                return False
        elif size <= account.limit - account.in_use and account.running < account.max_running:
            device = 0  # as ``_place`` finds it, without two calls: most requests pass here
        else:
            return False
        ticket.arrived = now
        self._note(size)
        self._grant(ticket, device, now)
        return True

    def force(self, ticket: Ticket, now: float, device: int | None = None) -> None:
        """Hold ``ticket`` whether it fits or not: for watching without deciding, or what runs already."""
        ticket.arrived = now
        device = self._place(ticket.bytes) if device is None else device
        self._grant(ticket, 0 if device is None else device, now)

    def release(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """End ``ticket``, wherever it is in its life; ending it again changes nothing."""
        if ticket.state is GRANTED:
            size, lane = ticket.bytes, self.lanes[ticket.lane]
            account = self.accounts[ticket.device]
            account.in_use -= size
            account.running -= 1
            lane.in_use -= size
            self.running -= 1
            self.in_use -= size
            if ticket.flow is not None:
                lane.settle(ticket, now - ticket.granted_at)
            if self.waiting or self.drain.last is not None:
                self.drain.released(size, now, self.waiting)
        elif ticket.state is WAITING:
            self._leave(ticket, now)
        else:
            return _NOBODY
        ticket.state = ENDED
        return self._dispatch(now) if self.waiting else _NOBODY

    def is_at_ease(self, ticket: Ticket) -> bool:
        """Whether nobody waits and a held ``ticket`` would be granted again if it were asked for now."""
        account, lane = self.accounts[ticket.device], self.lanes[ticket.lane]
        return (
            not self.waiting
            and self.running <= self.max_running
            and account.in_use <= account.limit
            and account.running <= account.max_running
            and lane.in_use <= lane.limit
        )

    def can_grow(self, ticket: Ticket, size: int) -> bool:
        """Whether a held ticket may be made that large now, ahead of those who wait."""
        more = size - ticket.bytes
        account, lane = self.accounts[ticket.device], self.lanes[ticket.lane]
        return account.in_use + more <= account.limit and lane.in_use + more <= lane.limit

    def change(self, ticket: Ticket, size: int, now: float) -> Sequence[Ticket]:
        """Make a held ticket ``size`` bytes large, whether that fits or not; or one that waits, where it
        keeps its place, and is made no larger than can ever start.
        """
        if ticket.state is WAITING:
            lane = self.lanes[ticket.lane]
            lane.resize(ticket, min(size, lane.largest))
            return self._dispatch(now)
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

    def reopen(self, max_running: int | None, now: float) -> Sequence[Ticket]:
        """Undo ``close``."""
        self.closed = False
        return self.run_at_most(max_running, now)

    def refuse_all(self, now: float) -> Sequence[Ticket]:
        """Send all who wait away; returns them."""
        refused = self._all_waiting()
        self._refuse(refused, now)
        return refused

    def refuse(self, tickets: Sequence[Ticket], now: float) -> Sequence[Ticket]:
        """Send those of ``tickets`` that wait away. Returns them, and those that were granted by it."""
        refused = [ticket for ticket in tickets if ticket.state is WAITING]
        self._refuse(refused, now)
        return [*refused, *self._dispatch(now)]

    def resume(self, tickets: Sequence[Ticket]) -> None:
        """``tickets`` hold their bytes already: count them, as when a ledger is made again."""
        for ticket in tickets:
            account = self.accounts[ticket.device]
            account.in_use += ticket.bytes
            account.running += 1
            self.lanes[ticket.lane].resume(ticket)
            self.running += 1
            self.in_use += ticket.bytes
        self._share_out()

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
        """The most bytes that one request could be granted now."""
        return max(0, max(account.free for account in self.accounts))

    def largest(self, lane: int = 0) -> int:
        """Bytes of the largest request that can ever start in ``lane``."""
        return self.lanes[lane].largest

    def shares(self, share: float) -> list[int]:
        """That ``share`` of what each device may hold now, in whole bytes."""
        return [int(share * account.limit) for account in self.accounts]

    def lane_called(self, name: str) -> int:
        """The index of the lane of this name; the first where there is none."""
        return next((at for at, state in enumerate(self.lanes) if state.lane.name == name), 0)

    def is_full(self, lane: int) -> bool:
        """Whether a newcomer to ``lane`` is refused, whatever size it asks for."""
        state = self.lanes[lane]
        return 0 < state.max_waiting <= state.waiting

    @property
    def usual(self) -> int:
        """The median of the sizes asked lately; 0 while nothing was."""
        return self.sizes.median

    @property
    def asked(self) -> Sequence[int]:
        """Sizes asked lately, oldest first."""
        return self.sizes.asked

    def forecast(self, size: int, now: float, *, lane: int = 0, flow: Any = None) -> float | None:
        """Seconds that ``size`` bytes would wait if they came now; ``None`` while nothing has drained."""
        state = self.lanes[lane]
        return self._forecast(state, size, state.ahead_of(flow), now)

    def forecast_of(self, ticket: Ticket, now: float) -> float | None:
        """The same for one that waits and was the last to join its lane."""
        state = self.lanes[ticket.lane]
        ahead = state.ahead_of(ticket.flow) - ticket.bytes
        return self._forecast(state, ticket.bytes, max(0, ahead), now)

    def _forecast(self, lane: LaneState, size: int, ahead: int, now: float) -> float | None:
        may_run = self.running < self.max_running
        room = self.available if may_run else 0
        if size <= room and not self.waiting:
            return 0.0
        head = lane.head
        if head is None or not ahead:
            return self.drain.seconds(size - room if size > room else size)
        if may_run and self.order.may_pass(size, head):
            return seconds_to_pass(
                size, room, head.bytes, self.drain, held_back=self.order.is_overdue(head, now)
            )
        return seconds_in_line(size, ahead, self.drain, lane.outflow)

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
            room = self.accounts[0].free if len(self.accounts) == 1 else max(a.free for a in self.accounts)
            ticket = self.order.next(self.lanes, room=room, most=self._most, promised=self._promised, now=now)
            device = None if ticket is None else self._place(ticket.bytes)
            if ticket is None or device is None:
                break
            count_passed(ticket, self.lanes, self._most)
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
