"""A ledger that was written down and made again goes on as if nothing had happened."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_admission.budget.dump import LedgerDump, dump, load
from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.placement import POLICIES
from gpu_admission.budget.ticket import State, Ticket

SETTINGS: dict[str, dict[str, Any]] = {
    "one lane": {"capacities": [100]},
    "lanes": {
        "capacities": [100],
        "lanes": (Lane("a", guaranteed=0.4), Lane("b", limit=0.7, priority=2), Lane("c", max_waiting=2)),
        "max_bypass": 3,
        "max_bypass_wait": 2.0,
    },
    "devices": {"capacities": [60, 90], "max_running": 9, "placement": POLICIES["round_robin"]},
}


class Twin:
    """One of two ledgers that get the same steps; tickets are known by their number."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.ledger = Ledger(**options)
        self.tickets: dict[int, Ticket] = {}

    def ask(self, number: int, size: int, lane: int, flow: bytes | None, now: float) -> list[int]:
        ticket = self.tickets[number] = Ticket(size, lane, flow)
        ticket.number = number
        return self._said(self.ledger.request(ticket, now))

    def end(self, number: int, now: float) -> list[int]:
        return self._said(self.ledger.release(self.tickets.pop(number), now))

    def change(self, number: int, size: int, now: float) -> list[int]:
        ticket = self.tickets[number]
        return self._said(self.ledger.change(ticket, size, now) if ticket.state is State.GRANTED else ())

    def allow(self, device: int, ceiling: int | None, most: int | None, now: float) -> list[int]:
        return self._said(self.ledger.allow(device, now, ceiling=ceiling, max_running=most))

    def write_down_and_make_again(self) -> None:
        live = [t for t in self.tickets.values() if t.state in (State.GRANTED, State.WAITING)]
        written = msgspec.msgpack.encode(dump(self.ledger, [t for t in live if t.state is State.GRANTED]))
        self.ledger = Ledger(**self.options)
        state = msgspec.msgpack.decode(written, type=LedgerDump)
        again = load(self.ledger, state, lambda said: Ticket(said.size))
        self.tickets.update({ticket.number: ticket for ticket in again})

    def figures(self) -> list[object]:
        ledger = self.ledger
        accounts = [(a.in_use, a.running, a.limit, a.free) for a in ledger.accounts]
        lanes = [(lane.in_use, lane.waiting, lane.waiting_bytes, lane.hold) for lane in ledger.lanes]
        forecasts = [ledger.forecast(20, 1e6, lane=i) for i in range(len(ledger.lanes))]
        totals = (ledger.in_use, ledger.running, ledger.waiting, ledger.peak, ledger.grants, ledger.asked)
        return [accounts, lanes, forecasts, totals]

    def _said(self, changed: Any) -> list[int]:
        return [ticket.number for ticket in changed]


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_ledger_that_was_written_down_grants_what_the_old_one_would_have(kind: str) -> None:
    @settings(max_examples=60, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.binary(min_size=600, max_size=600))
    def program(steps: bytes) -> None:
        plain, written = Twin(SETTINGS[kind]), Twin(SETTINGS[kind])
        values = iter(steps)
        for number, (what, who, size) in enumerate(zip(values, values, values, strict=True)):
            if number % 7 == 6:
                written.write_down_and_make_again()
            now = 100 + number / 4
            assert step(plain, number, what, who, size, now) == step(written, number, what, who, size, now)
            assert plain.figures() == written.figures()

    program()


class Quick(Twin):
    """One that asks first whether a ticket starts at once."""

    def ask(self, number: int, size: int, lane: int, flow: bytes | None, now: float) -> list[int]:
        ticket = self.tickets[number] = Ticket(size, lane, flow)
        ticket.number = number
        before = self.figures()
        if self.ledger.start(ticket, now):
            assert ticket.state is State.GRANTED
            return [number]
        assert ticket.state is State.NEW
        assert self.figures() == before
        return self._said(self.ledger.request(ticket, now))


@pytest.mark.parametrize("kind", SETTINGS)
def test_whether_a_ticket_starts_at_once_may_be_asked_before_it_is_requested(kind: str) -> None:
    @settings(max_examples=60, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.binary(min_size=600, max_size=600))
    def program(steps: bytes) -> None:
        plain, quick = Twin(SETTINGS[kind]), Quick(SETTINGS[kind])
        values = iter(steps)
        for number, (what, who, size) in enumerate(zip(values, values, values, strict=True)):
            now = 100 + number / 4
            assert step(plain, number, what, who, size, now) == step(quick, number, what, who, size, now)
            assert plain.figures() == quick.figures()

    program()


def step(twin: Twin, number: int, what: int, who: int, size: int, now: float) -> list[int]:
    known = sorted(twin.tickets)
    match what % 8:
        case 0 | 1 | 2 | 3:
            flow = bytes([who % 3]) if who % 4 else None
            return twin.ask(number, 1 + size % 60, who % len(twin.ledger.lanes), flow, now)
        case 4 | 5 if known:
            return twin.end(known[who % len(known)], now)
        case 6 if known:
            return twin.change(known[who % len(known)], size % 50, now)
        case _:
            most = None if who % 3 else size % 5
            ceiling = None if size % 2 else size
            return twin.allow(who % len(twin.ledger.accounts), ceiling, most, now)
