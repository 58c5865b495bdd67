"""A ledger under audit: every change is made to it and to a plain count beside it, and compared.

The rules of ``Ledger`` are said here a second time, slowly and from the whole state, so
that random programs can be judged by them. No test lives here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from gpu_admission.budget.lanes import LaneState
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import State, Ticket


class Audit:
    """Drives ``ledger`` and checks DESIGN §5 after each step; ``now`` moves a little at each, or by ``tick``.

    A clock that goes backwards may cost the order, and so the bounds on passing, but no byte.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.now = 1000.0
        self.clock_is_sound = True
        self.common = 0
        self.held: list[Ticket] = []
        self.waiting: list[Ticket] = []
        self.over: list[Ticket] = []
        self.passes: Counter[Ticket] = Counter()
        self.steps = 0

    # the steps

    def request(self, size: int, lane: int = 0, flow: object = None) -> Ticket:
        ticket = Ticket(size, lane, flow)
        before = self._heads()
        self.waiting.append(ticket)
        granted = self.ledger.request(ticket, self.now)
        if ticket.state is State.REFUSED:
            self._end(ticket)
        nobody_waits = self.ledger.lanes[lane].max_waiting == 0
        self._settle(granted, before, whole=nobody_waits or ticket.state is not State.REFUSED)
        return ticket

    def release(self, ticket: Ticket) -> None:
        """End it: give back what it holds, or leave the queue, or nothing at all."""
        before = self._heads()
        live = ticket.state in (State.GRANTED, State.WAITING)
        granted = self.ledger.release(ticket, self.now)
        if live:
            self._end(ticket)
        else:
            assert not granted
        self._settle(granted, before, whole=live)

    def change(self, ticket: Ticket, size: int) -> None:
        before = self._heads()
        if ticket.state is State.WAITING:
            largest = self.ledger.largest(ticket.lane)
            self._settle(self.ledger.change(ticket, size, self.now), before, whole=True)
            assert ticket.bytes == min(size, largest)
            return
        grows = size > ticket.bytes
        if grows and not self.ledger.can_grow(ticket, size):
            return
        self._settle(self.ledger.change(ticket, size, self.now), before, whole=True)
        account, lane = self.ledger.accounts[ticket.device], self.ledger.lanes[ticket.lane]
        assert not grows or (account.in_use <= account.limit and lane.in_use <= lane.limit)

    def allow(self, device: int, ceiling: int | None, most: int | None = None) -> None:
        before = self._heads()
        granted = self.ledger.allow(device, self.now, ceiling=ceiling, max_running=most)
        self._settle(granted, before, whole=True)

    def tick(self, seconds: float) -> None:
        """Let time pass, and have the ledger look again (as after any event)."""
        self.now += seconds
        self.clock_is_sound &= seconds >= 0
        most = self.ledger.accounts[0].max_running
        self.allow(0, self.ledger.accounts[0].ceiling, None if most == math.inf else int(most))

    def resize(self, capacities: Sequence[int]) -> None:
        before = self._heads()
        changed = self.ledger.resize(capacities, self.now)
        refused = [ticket for ticket in changed if ticket.state is State.REFUSED]
        for ticket in refused:
            assert ticket.bytes > self.ledger.largest(ticket.lane)
            self._end(ticket)
        self._settle([t for t in changed if t.state is not State.REFUSED], before, whole=True)
        assert all(t.bytes <= self.ledger.largest(t.lane) for t in self.waiting)

    def run_at_most(self, most: int | None) -> None:
        before = self._heads()
        self._settle(self.ledger.run_at_most(most, self.now), before, whole=True)

    def refuse_all(self) -> None:
        for ticket in self.ledger.refuse_all(self.now):
            assert ticket.state is State.REFUSED
            self._end(ticket)
        assert not self.waiting
        self._settle((), {}, whole=True)

    def close(self) -> None:
        """End all that lives, and find the ledger as it was made."""
        for ticket in [*self.waiting[::2], *self.held, *self.waiting[1::2]]:
            self.release(ticket)
        while self.held or self.waiting:
            self.release((self.held or self.waiting)[0])
        self._check_at_rest()

    # what must hold

    def _end(self, ticket: Ticket) -> None:
        (self.waiting if ticket in self.waiting else self.held).remove(ticket)
        assert ticket.state in (State.ENDED, State.REFUSED)
        self.over.append(ticket)
        self.passes.pop(ticket, None)

    def _settle(self, granted: Sequence[Ticket], before: dict[Ticket, bool], *, whole: bool) -> None:
        """Take in what the step granted. ``whole``: the step ended by looking at all who wait."""
        self.steps += 1
        for ticket in granted:
            assert ticket.state is State.GRANTED
            self.waiting.remove(ticket)
            self.held.append(ticket)
        self._check_sums()
        self._check_bounds(granted)
        assert not granted or self.ledger.running <= self.ledger.max_running
        if self.clock_is_sound:
            self._check_passing(granted, before)
        if whole:
            self._check_nobody_waits_in_vain()
        self.now += 0.001

    def _check_sums(self) -> None:
        ledger = self.ledger
        assert all(t.state is State.GRANTED for t in self.held)
        assert all(t.state is State.WAITING for t in self.waiting)
        assert ledger.in_use == sum(t.bytes for t in self.held) <= ledger.peak
        assert ledger.running == len(self.held)
        assert ledger.waiting == len(self.waiting)
        assert ledger.waiting_bytes == sum(t.bytes for t in self.waiting)
        for index, account in enumerate(ledger.accounts):
            on_it = [t for t in self.held if t.device == index]
            assert (account.in_use, account.running) == (sum(t.bytes for t in on_it), len(on_it))
        for index, lane in enumerate(ledger.lanes):
            self._check_lane(index, lane)

    def _check_lane(self, index: int, lane: LaneState) -> None:
        held = [t for t in self.held if t.lane == index]
        waiting = [t for t in self.waiting if t.lane == index]
        assert lane.in_use == sum(t.bytes for t in held)
        assert (lane.waiting, lane.waiting_bytes) == (len(waiting), sum(t.bytes for t in waiting))
        assert sorted(map(id, lane.tickets())) == sorted(map(id, waiting))
        assert (lane.head is None) == (not waiting)
        assert lane.head is None or lane.head in waiting
        by_flow = Counter(t.flow for t in waiting)
        assert all(lane.waiting_of(flow) == count for flow, count in by_flow.items())
        known = by_flow.keys() | {t.flow for t in held if t.flow is not None}
        assert lane._flows.keys() == known
        assert len(lane._order) <= 2 * len(known) + 65

    def _check_bounds(self, granted: Sequence[Ticket]) -> None:
        """Whatever has just been granted is inside every bound; older leases may be over a new one."""
        ledger = self.ledger
        for ticket in granted:
            account, lane = ledger.accounts[ticket.device], ledger.lanes[ticket.lane]
            assert account.in_use <= account.limit
            assert account.running <= account.max_running
            assert lane.in_use <= lane.limit

    def _check_passing(self, granted: Sequence[Ticket], before: dict[Ticket, bool]) -> None:
        """A head is passed ``max_bypass`` times at most, and by nobody once it is due.

        Apart from: heads that became due before it, one a lane; those inside their lane's
        guarantee, where it fits beside all guarantees; and while its own lane's limit, or
        a ceiling, is what keeps it waiting.
        """
        others = len(self.ledger.lanes) - 1
        for head, was_due in before.items():
            if head.state is not State.WAITING or head.bytes > self._most():
                continue
            passing = [t for t in granted if self._passes(t, head)]
            self.passes[head] += len(passing)
            assert self.passes[head] <= max(1, self.ledger.order.max_bypass) + others
            if was_due:
                assert all(0 < t.head_since <= head.head_since for t in passing)

    def _passes(self, ticket: Ticket, head: Ticket) -> bool:
        if ticket.arrived <= head.arrived:
            return False
        return ticket.lane == head.lane or (self._could_start(head) and not self._goes_beside(head, ticket))

    def _heads(self) -> dict[Ticket, bool]:
        """The heads now, and whether each is due."""
        self.common = self.ledger.sizes.common
        heads = [lane.head for lane in self.ledger.lanes]
        return {head: self._comes_first(head) for head in heads if head is not None}

    def _check_nobody_waits_in_vain(self) -> None:
        """By the rules, read one by one, none of those who wait could start now."""
        ledger = self.ledger
        if ledger.running >= ledger.max_running:
            return
        waiting = [
            lane.head for lane in ledger.lanes if lane.head is not None and self._could_start(lane.head)
        ]
        heads = sorted(waiting, key=self._turn)
        for head in heads:
            fits = head.bytes <= self._room()
            assert not fits or not self._may_start(head, heads[: heads.index(head)]), f"{head} waits in vain"
        for ticket in self.waiting:
            fits = ticket.bytes <= self._room()
            assert not fits or not self._may_start_in_the_gap(ticket, heads), f"small {ticket} waits in vain"

    def _may_start(self, head: Ticket, before: Sequence[Ticket]) -> bool:
        """``before``: heads that come first and don't fit."""
        if not before:
            return True
        return self._is_inside_guarantee(head) and not any(map(self._holds_back_everybody, before))

    def _may_start_in_the_gap(self, ticket: Ticket, heads: Sequence[Ticket]) -> bool:
        lane = self.ledger.lanes[ticket.lane]
        if any(map(self._holds_back_everybody, heads)) or lane.in_use + ticket.bytes > lane.limit:
            return False
        head = lane.head
        if head is None or (head.bytes <= self._most() and self._is_due(head)):
            return False
        ahead = lane._flows[ticket.flow].charged - lane._flows[head.flow].charged
        if len(lane._flows) > 8 or ahead > head.bytes * lane.hold:
            return False
        if ticket.bytes > self._small_beside(head, heads):
            return False
        claimed = any(self._is_inside_guarantee(head) or self._is_due(head) for head in heads)
        return not claimed or self._is_inside_guarantee(ticket)

    def _small_beside(self, own: Ticket, heads: Sequence[Ticket]) -> float:
        """Bytes of the largest that may pass the first head; any may pass one above every ceiling."""
        if not heads and own.bytes > self._most():
            return math.inf
        sizes = self.ledger.sizes
        first = heads[0] if heads else own
        return max(min(self.common, sizes.common), int(first.bytes * sizes._part))

    def _could_start(self, ticket: Ticket) -> bool:
        """Whether room is all that it waits for: neither its lane's limit nor a ceiling."""
        lane = self.ledger.lanes[ticket.lane]
        return lane.in_use + ticket.bytes <= lane.limit and ticket.bytes <= self._most()

    def _goes_beside(self, head: Ticket, other: Ticket) -> bool:
        lane = self.ledger.lanes[other.lane]
        return lane.in_use <= lane.guaranteed and self._fits_beside_guarantees(head)

    def _holds_back_everybody(self, head: Ticket) -> bool:
        return self._is_due(head) and not self._fits_beside_guarantees(head)

    def _fits_beside_guarantees(self, head: Ticket) -> bool:
        others = sum(lane.guaranteed for i, lane in enumerate(self.ledger.lanes) if i != head.lane)
        return head.bytes + others <= self._most()

    def _turn(self, head: Ticket) -> tuple[bool, float, bool, int, float]:
        first = self._comes_first(head)
        lane = self.ledger.lanes[head.lane]
        since = head.head_since if first else 0.0
        return (not first, since, not self._is_inside_guarantee(head), -lane.lane.priority, head.arrived)

    def _comes_first(self, head: Ticket) -> bool:
        return head.passed >= max(1, self.ledger.order.max_bypass) or self._is_old(head)

    def _is_due(self, head: Ticket) -> bool:
        return head.passed >= self.ledger.order.max_bypass or self._is_old(head)

    def _is_old(self, head: Ticket) -> bool:
        return self.now - head.head_since >= self.ledger.order.max_bypass_wait

    def _is_inside_guarantee(self, ticket: Ticket) -> bool:
        lane = self.ledger.lanes[ticket.lane]
        return lane.in_use + ticket.bytes <= lane.guaranteed

    def _room(self) -> int:
        free = [a.limit - a.in_use for a in self.ledger.accounts if a.running < a.max_running]
        return max(free, default=-1)

    def _most(self) -> int:
        return max(account.limit for account in self.ledger.accounts)

    def _check_at_rest(self) -> None:
        ledger = self.ledger
        assert (ledger.in_use, ledger.running, ledger.waiting, ledger.waiting_bytes) == (0, 0, 0, 0)
        assert all(account.in_use == account.running == 0 for account in ledger.accounts)
        for lane in ledger.lanes:
            assert (lane.in_use, lane.waiting, lane.waiting_bytes) == (0, 0, 0)
            assert lane.head is None
            assert not lane._flows
            assert not lane._order
        assert all(ticket.state in (State.ENDED, State.REFUSED) for ticket in self.over)
