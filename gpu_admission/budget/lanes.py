"""Lanes: shares of the budget, and inside each the line of flows that wait.

Owns what a lane holds and the order of its waiters. When a head may start, and who may
pass it, is decided in the ledger.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpu_admission.budget.forecast import DrainRate, Rate
from gpu_admission.budget.queue import SizedQueue
from gpu_admission.budget.ticket import Ticket


class Lane(msgspec.Struct, frozen=True):
    """A named share of the budget, for one kind of request.

    ``guaranteed`` and ``limit`` are shares of the capacity (0..1): the lane always gets the
    first, and borrows what others leave idle up to the second; a higher ``priority``
    borrows first. ``timeout`` (seconds) and ``max_waiting`` replace the admission's own.
    """

    name: str
    guaranteed: float = 0.0
    limit: float = 1.0
    priority: int = 0
    timeout: float | None = None
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError("Lane.name must be a text that is not empty")
        for field in ("guaranteed", "limit"):
            _check_number(self.name, field, getattr(self, field))
            if not 0 <= getattr(self, field) <= 1:
                raise ValueError(f"lane {self.name!r}: {field} is a share between 0 and 1")
        if self.limit == 0 or self.guaranteed > self.limit:
            raise ValueError(f"lane {self.name!r}: limit must be above 0 and at least guaranteed")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise TypeError(f"lane {self.name!r}: priority must be an int")
        for field in ("timeout", "max_waiting"):
            value = getattr(self, field)
            if value is None:
                continue
            _check_number(self.name, field, value)
            if not value >= 0:
                raise ValueError(f"lane {self.name!r}: {field} must be 0 or more")
        if self.max_waiting is not None and not isinstance(self.max_waiting, int):
            raise TypeError(f"lane {self.name!r}: max_waiting must be an int")


def _check_number(lane: str, field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"lane {lane!r}: {field} must be a number, not {type(value).__name__}")


class FlowDump(msgspec.Struct, array_like=True, frozen=True):
    """One flow, written down; ``queue`` are places in a list of tickets."""

    key: bytes | None
    charged: float
    entry: int
    queue: list[int]


class LaneDump(msgspec.Struct, array_like=True, frozen=True):
    """One lane, written down, except for what its settings and its tickets already say."""

    clock: float
    pushed: int
    hold: float
    outflow: Rate
    head: int | None
    flows: list[FlowDump]


class Flow:
    """One tenant's waiters inside a lane, and the byte-seconds it has been charged."""

    __slots__ = ("charged", "entry", "queue", "running")

    def __init__(self, charged: float) -> None:
        self.charged = charged
        self.entry = 0
        """Number of its valid entry in the lane's order; entries with lower numbers are outdated."""
        self.running = 0
        self.queue = SizedQueue()


class LaneState:
    """What one lane holds and who waits in it, fair between flows in byte-seconds.

    Start-time fair queueing: the next flow is the one charged least; a grant is charged
    its bytes times the lane's usual hold in advance, and corrected when it ends. A flow
    that neither waits nor runs is forgotten; when it returns it starts at the lane's
    clock, so idle time earns no credit. The clock follows the flow whose turn it is, and
    goes on by each flow's share of what was used, so that ever new flows can't keep an
    old one waiting for ever.
    """

    __slots__ = (
        "_clock",
        "_flows",
        "_order",
        "_pushed",
        "guaranteed",
        "head",
        "hold",
        "in_use",
        "lane",
        "largest",
        "limit",
        "max_waiting",
        "outflow",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, lane: Lane, max_waiting: int) -> None:
        self.lane = lane
        self.max_waiting = max_waiting if lane.max_waiting is None else lane.max_waiting
        self.guaranteed = 0
        self.limit = 0
        self.largest = 0
        """Bytes of the largest request that can ever start here."""
        self.in_use = 0
        self.waiting = 0
        self.waiting_bytes = 0
        self.outflow = DrainRate()
        """How fast the line gets shorter, by starts and by those who give up."""
        self.hold = 1.0
        """Seconds that a lease of this lane usually lasts (a moving mean)."""
        self.head: Ticket | None = None
        """Whose turn it is in this lane. It stays until it starts or leaves."""
        self._flows: dict[Any, Flow] = {}
        self._order: list[tuple[float, int, Any]] = []
        self._clock = 0.0
        self._pushed = 0

    def waiting_of(self, flow: Any) -> int:
        known = self._flows.get(flow)
        return len(known.queue) if known else 0

    def ahead_of(self, flow: Any) -> int:
        """Roughly the bytes that wait here and start before a newcomer of ``flow``: flows take turns."""
        flows = len(self._flows)
        if flows <= 1 or not self.waiting:
            return self.waiting_bytes
        return int(self.waiting_bytes * min(1.0, (self.waiting_of(flow) + 1) * flows / self.waiting))

    def tickets(self) -> list[Ticket]:
        """All who wait, flow by flow."""
        return [ticket for flow in self._flows.values() for ticket in flow.queue]

    def join(self, ticket: Ticket, now: float) -> None:
        flow = self._flow(ticket.flow)
        flow.queue.append(ticket)
        self.waiting += 1
        self.waiting_bytes += ticket.bytes
        if len(flow.queue) == 1:
            self._put(ticket.flow, flow)
        if self.head is None:
            self._next_head(now)

    def leave(self, ticket: Ticket, now: float) -> None:
        flow = self._flows[ticket.flow]
        flow.queue.remove(ticket)
        self.waiting -= 1
        self.waiting_bytes -= ticket.bytes
        if now > ticket.arrived:
            self.outflow.released(ticket.bytes, now, self.waiting)
        self._forget_if_idle(ticket.flow, flow)
        if self.head is ticket:
            self.head = None
            self._next_head(now)

    def resize(self, ticket: Ticket, size: int) -> None:
        """Make ``ticket``, which waits here, ``size`` bytes large; it keeps its place."""
        self.waiting_bytes += size - ticket.bytes
        self._flows[ticket.flow].queue.resize(ticket, size)

    def charge(self, ticket: Ticket) -> None:
        """``ticket`` starts: charge its flow in advance for what it will usually use."""
        flow = self._flow(ticket.flow)
        flow.running += 1
        self._clock = max(self._clock, flow.charged)
        ticket.charged = ticket.bytes * self.hold
        self._charge(ticket.flow, flow, ticket.charged)

    def charge_unnamed(self, ticket: Ticket) -> None:
        """``ticket``, which has no flow, starts after waiting: beside named flows, all such are one flow."""
        if len(self._flows) > 1:
            self._charge(None, self._flows[None], ticket.bytes * self.hold)

    def settle(self, ticket: Ticket, held: float) -> None:
        """``ticket`` has ended after ``held`` seconds: correct what its flow was charged."""
        held = max(held, 0.0)
        self.hold += (held - self.hold) / 16
        used = ticket.bytes * held
        self._clock += used / len(self._flows)
        flow = self._flows[ticket.flow]
        flow.running -= 1
        self._charge(ticket.flow, flow, used - ticket.charged)
        self._forget_if_idle(ticket.flow, flow)

    def small(self, size: int) -> Ticket | None:
        """The first waiter of at most ``size`` bytes, looking into the next few flows in turn.

        Flows are left out that lead the head's flow by more than the head itself will be charged:
        passing the head must not win a flow more than its share.
        """
        if len(self._flows) == 1:
            (flow,) = self._flows.values()
            return flow.queue.first_at_most(size)
        looked: list[tuple[float, int, Any]] = []
        head, found = self.head, None
        assert head is not None
        most = self._flows[head.flow].charged + head.bytes * self.hold
        while len(looked) < 8 and found is None:
            entry = self._peek()
            if entry is None or entry[0] > most:
                break
            looked.append(heapq.heappop(self._order))
            found = self._flows[entry[2]].queue.first_at_most(size)
        for entry in looked:
            heapq.heappush(self._order, entry)
        return found

    def dump(self, place: Callable[[Ticket], int]) -> LaneDump:
        """All that ``load`` needs to go on from here; ``place`` numbers the tickets."""
        flows = [
            FlowDump(key, flow.charged, flow.entry, [place(ticket) for ticket in flow.queue])
            for key, flow in self._flows.items()
        ]
        head = None if self.head is None else place(self.head)
        return LaneDump(self._clock, self._pushed, self.hold, self.outflow.dump(), head, flows)

    def load(self, state: LaneDump, tickets: Sequence[Ticket]) -> None:
        """Restore what was dumped. It has no outdated entries of the order, which are never looked at."""
        self._clock, self._pushed, self.hold = state.clock, state.pushed, state.hold
        self.outflow.load(state.outflow)
        self.head = None if state.head is None else tickets[state.head]
        for dump in state.flows:
            flow = self._flows[dump.key] = Flow(dump.charged)
            flow.entry = dump.entry
            for place in dump.queue:
                flow.queue.append(tickets[place])
                self.waiting += 1
                self.waiting_bytes += tickets[place].bytes
            if dump.queue:
                self._order.append((flow.charged, flow.entry, dump.key))
        heapq.heapify(self._order)

    def resume(self, ticket: Ticket) -> None:
        """``ticket`` holds its bytes here already: count it, and charge its flow nothing again."""
        self.in_use += ticket.bytes
        if ticket.flow is not None:
            self._flows[ticket.flow].running += 1

    def _flow(self, key: Any) -> Flow:
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(self._clock)
        return flow

    def _forget_if_idle(self, key: Any, flow: Flow) -> None:
        if not flow.queue and not flow.running:
            del self._flows[key]

    def _charge(self, key: Any, flow: Flow, byte_seconds: float) -> None:
        flow.charged += byte_seconds
        if flow.queue:
            self._put(key, flow)

    def _put(self, key: Any, flow: Flow) -> None:
        flow.entry = self._pushed = self._pushed + 1
        heapq.heappush(self._order, (flow.charged, flow.entry, key))
        if len(self._order) > 2 * len(self._flows) + 64:
            self._order = [e for e in self._order if self._is_current(e)]
            heapq.heapify(self._order)

    def _is_current(self, entry: tuple[float, int, Any]) -> bool:
        flow = self._flows.get(entry[2])
        return flow is not None and len(flow.queue) > 0 and flow.entry == entry[1]

    def _peek(self) -> tuple[float, int, Any] | None:
        """The flow whose turn it is; drops entries that a later charge has made outdated."""
        while self._order:
            if self._is_current(self._order[0]):
                return self._order[0]
            heapq.heappop(self._order)
        return None

    def _next_head(self, now: float) -> None:
        entry = self._peek()
        if entry is None:
            return
        self.head = self._flows[entry[2]].queue.first
        self.head.head_since = now
