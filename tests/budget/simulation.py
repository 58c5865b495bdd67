"""Load on a ledger in virtual time: requests that come, wait, hold their bytes for a while and end.

Measures what each lane and flow got; no test lives here.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import State, Ticket


@dataclass(order=True)
class Arrival:
    """A request of ``size`` bytes at ``at``, that will hold them for ``hold`` seconds."""

    at: float
    size: int = field(compare=False)
    hold: float = field(compare=False)
    lane: int = field(default=0, compare=False)
    flow: object = field(default=None, compare=False)


class Simulation:
    """Runs ``ledger`` under arrivals; ``watch`` is called with the time after each event."""

    def __init__(self, ledger: Ledger, watch: Callable[[float], None] = lambda now: None) -> None:
        self.ledger = ledger
        self.watch = watch
        self.refused = 0
        self.started: list[Ticket] = []
        self.used: dict[object, float] = defaultdict(float)
        """Byte-seconds, by flow where there is one and else by lane."""
        self._holds: dict[Ticket, float] = {}
        self._ends: list[tuple[float, int, Ticket]] = []
        self._numbers = itertools.count()

    def run(self, arrivals: Iterable[Arrival], until: float) -> None:
        for arrival in arrivals:
            if arrival.at > until:
                break
            self._end_those_before(arrival.at)
            self._arrive(arrival)
        self._end_those_before(until)

    def _arrive(self, arrival: Arrival) -> None:
        ticket = Ticket(arrival.size, arrival.lane, arrival.flow)
        self._holds[ticket] = arrival.hold
        self._start(self.ledger.request(ticket, arrival.at), arrival.at)
        self.refused += ticket.state is State.REFUSED
        self.watch(arrival.at)

    def _end_those_before(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            at, _, ticket = heapq.heappop(self._ends)
            key = ticket.lane if ticket.flow is None else ticket.flow
            self.used[key] += ticket.bytes * (at - ticket.granted_at)
            self._start(self.ledger.release(ticket, at), at)
            self.watch(at)

    def _start(self, granted: Sequence[Ticket], now: float) -> None:
        for ticket in granted:
            self.started.append(ticket)
            heapq.heappush(self._ends, (now + self._holds.pop(ticket), next(self._numbers), ticket))
