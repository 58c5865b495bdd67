"""Grants that a process makes by itself, without asking the log first.

While the log is away, from this process's own share of each device; from bytes of a lease that has
just ended here, which stay here unless somebody waits for them; and any size, where nothing is
decided. Owns when each is allowed. All other grants come from the replica.
"""

from __future__ import annotations

import logging
from typing import Any

from gpu_admission.budget.ticket import GRANTED, Ticket
from gpu_admission.runtime.loop import call_within, loop_here, running_asyncio
from gpu_admission.shared.membership import Membership
from gpu_admission.shared.operations import flow_key
from gpu_admission.shared.terms import find_lane
from gpu_admission.shared.untold import MOMENT
from gpu_admission.sizes import format_bytes

logger = logging.getLogger("gpu_admission")


class OwnGrants:
    """``fallback``: the share of a device that may be granted while the log is away."""

    def __init__(self, member: Membership, fallback: float) -> None:
        self._member = member
        self._fallback = fallback
        self._is_told = False
        self._tells_in: Any = None
        """The loop that will call ``tell``."""

    def while_away(self, ticket: Ticket) -> bool:
        """From this process's own share, to be declared later; whether there was room."""
        member, ledger = self._member, self._member.replica.ledger
        if ledger is None or ledger.closed or not self._fallback:
            return False
        shares = ledger.shares(self._fallback)
        if ticket.bytes > max(shares):
            self._tell_too_small(ticket.bytes, max(shares))
        for alone in member.own.alone.values():
            shares[alone.device] -= alone.bytes
        device = ledger.placement(ticket.bytes, shares, ticket.number)
        if device is None:
            return False
        self._start(ticket, device)
        member.own.alone[ticket.number] = ticket
        return True

    def _tell_too_small(self, needed: int, largest: int) -> None:
        if not self._is_told:
            self._is_told = True
            logger.warning(
                "the shared budget %s is away, and a request of %s waits for it: shared_fallback=%g lets "
                "this process grant at most %s of a device by itself. Raise it to let such requests start",
                self._member.log.where,
                format_bytes(needed),
                self._fallback,
                format_bytes(largest),
            )

    def force(self, ticket: Ticket) -> None:
        """Grant it whether it fits or not."""
        ticket.number = self._member.own.next_number()
        if ticket.flow is not None:
            ticket.flow = flow_key(ticket.flow)
        self._start(ticket, 0)
        self._member.adopt((ticket,))

    def _start(self, ticket: Ticket, device: int) -> None:
        ticket.state, ticket.device, ticket.started = GRANTED, device, True
        ticket.arrived = ticket.granted_at = self._member.now()
        self._member.own.add(ticket)
        find_lane(ticket, self._member.terms, self._member.replica.ledger)

    # what has just ended

    def hand_on(self, ticket: Ticket) -> bool:
        """Grant and start ``ticket`` as ``of_this_moment``, in a turn of its own; whether it was."""
        member, turn = self._member, self._member.turn
        if not member.untold:
            return False
        with turn.lock:
            if turn.depth:
                return False
            turn.depth = 1  # what interrupts this comes after it, as in ``with turn``
            try:
                starts = self.of_this_moment(ticket)
            finally:
                turn.depth = 0
        if member.late:
            self._catch_up()
        return starts

    def end(self, ticket: Ticket) -> bool:
        """End ``ticket``, in a turn of its own, if nobody has to hear of it now; whether it did."""
        member, turn = self._member, self._member.turn
        with turn.lock:
            if turn.depth:
                return False
            turn.depth = 1
            try:
                ends = self.may_tell_later() and member.own.end(ticket)
                if ends:
                    member.untold.add(ticket)
            finally:
                turn.depth = 0
        if member.late:
            self._catch_up()
        return ends

    def _catch_up(self) -> None:
        with self._member.turn:
            """Its end does what came in the middle of another."""

    def may_tell_later(self) -> bool:
        """Whether the end of a ticket may be said with what this process says next, or in a moment."""
        member = self._member
        ledger = member.replica.ledger
        if ledger is None or ledger.waiting or not member.log.is_immediate:
            return False
        loop = running_asyncio() or loop_here()
        if loop is None:
            return False
        if self._tells_in is not loop:
            self._tells_in = loop
            call_within(loop, MOMENT, self.tell)
        return True

    def tell(self) -> None:
        """Say what has ended."""
        with self._member.turn:
            self._tells_in = None
            self._member.flush()

    def of_this_moment(self, ticket: Ticket) -> bool:
        """The bytes of one that has just ended, as if it ran on; whether there was one like ``ticket``.

        To all other processes nothing has happened. Nobody known to wait is overtaken, and others only
        for the moment until they are known.
        """
        member = self._member
        ended = member.untold.like(ticket)
        if ended is None or ended.state is not GRANTED:
            return False
        replica, now = member.replica, member.now_if_up_to_date()
        mine = replica.members.living.get(member.outbox.member)
        if mine is None or mine.lanes is not None or now is None:
            return False
        if replica.ledger is None or replica.settles or not replica.ledger.is_at_ease(ended):
            return False
        member.untold.remove(ended)
        ticket.go_on_as(ended, now)
        mine.tickets[ticket.number] = ticket
        member.own.add(ticket)
        return True
