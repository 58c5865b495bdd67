"""A ledger written down, and made again from what was written: plain values, nothing to execute.

Owns the format. A ledger that was loaded grants exactly what the dumped one would have
granted; ``tests/budget/test_dump.py`` plays both on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from gpu_admission.budget.forecast import Rate
from gpu_admission.budget.lanes import LaneDump
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.recentsizes import Sizes
from gpu_admission.budget.ticket import GRANTED, WAITING, Ticket


class TicketDump(msgspec.Struct, array_like=True, frozen=True):
    """One ticket that holds bytes or waits; times in seconds of the ledger's clock."""

    owner: str
    number: int
    size: int
    lane: int
    flow: bytes | None
    is_granted: bool
    device: int
    arrived: float
    granted_at: float
    head_since: float
    passed: int
    charged: float


class AccountDump(msgspec.Struct, array_like=True, frozen=True):
    """What one device may hold."""

    capacity: int
    ceiling: int | None
    max_running: int | None


class LedgerDump(msgspec.Struct, array_like=True, frozen=True):
    """A whole ledger, without its settings."""

    accounts: list[AccountDump]
    lanes: list[LaneDump]
    sizes: Sizes
    drain: Rate
    closed: bool
    max_running: int | None
    peak: int
    grants: int
    tickets: list[TicketDump]


def dump(ledger: Ledger, held: list[Ticket]) -> LedgerDump:
    """``held``: every ticket that holds bytes; the ledger itself knows only those that wait."""
    tickets = [*held, *(ticket for lane in ledger.lanes for ticket in lane.tickets())]
    places = {id(ticket): place for place, ticket in enumerate(tickets)}
    return LedgerDump(
        [AccountDump(a.capacity, a.ceiling, _whole(a.max_running)) for a in ledger.accounts],
        [lane.dump(lambda ticket: places[id(ticket)]) for lane in ledger.lanes],
        ledger.sizes.dump(),
        ledger.drain.dump(),
        ledger.closed,
        _whole(ledger.max_running),
        ledger.peak,
        ledger.grants,
        [_dump_ticket(ticket) for ticket in tickets],
    )


def load(ledger: Ledger, state: LedgerDump, ticket_of: Callable[[TicketDump], Ticket]) -> list[Ticket]:
    """Put ``state`` into a new ``ledger`` of the same settings; returns its tickets.

    ``ticket_of`` gives the object for each: its owner may have one already.
    """
    tickets = [_load_ticket(dumped, ticket_of(dumped)) for dumped in state.tickets]
    for account, said in zip(ledger.accounts, state.accounts, strict=True):
        account.allow(said.capacity, said.ceiling)
        account.max_running = _most(said.max_running)
    for lane, dumped in zip(ledger.lanes, state.lanes, strict=True):
        lane.load(dumped, tickets)
    ledger.sizes.load(state.sizes)
    ledger.drain.load(state.drain)
    ledger.closed, ledger.max_running = state.closed, _most(state.max_running)
    ledger.resume([ticket for ticket in tickets if ticket.state is GRANTED])
    ledger.waiting = sum(lane.waiting for lane in ledger.lanes)
    ledger.peak, ledger.grants = state.peak, state.grants
    return tickets


def _whole(most: float) -> int | None:
    return None if math.isinf(most) else int(most)


def _most(whole: int | None) -> float:
    return math.inf if whole is None else whole


def _dump_ticket(ticket: Ticket) -> TicketDump:
    return TicketDump(
        ticket.owner,
        ticket.number,
        ticket.bytes,
        ticket.lane,
        ticket.flow,
        ticket.state is GRANTED,
        ticket.device,
        ticket.arrived,
        ticket.granted_at,
        ticket.head_since,
        ticket.passed,
        ticket.charged,
    )


def _load_ticket(dumped: TicketDump, ticket: Ticket) -> Ticket:
    ticket.owner, ticket.number = dumped.owner, dumped.number
    ticket.bytes, ticket.lane, ticket.flow = dumped.size, dumped.lane, dumped.flow
    ticket.state = GRANTED if dumped.is_granted else WAITING
    ticket.device, ticket.arrived = dumped.device, dumped.arrived
    ticket.granted_at, ticket.head_since = dumped.granted_at, dumped.head_since
    ticket.passed, ticket.charged = dumped.passed, dumped.charged
    return ticket
