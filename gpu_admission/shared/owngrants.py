"""Grants that a process makes by itself, without asking the log first.

While the log is away, from this process's own share of each device; from bytes of a lease that has
just ended here, which stay here unless somebody waits for them; and any size, where nothing is
decided. Owns when each is allowed. All other grants come from the replica.
"""

from __future__ import annotations

from gpu_admission.budget.ticket import ENDED, GRANTED, Ticket
from gpu_admission.shared.membership import Membership
from gpu_admission.shared.operations import flow_key


class OwnGrants:
    """``fallback``: the share of a device that may be granted while the log is away."""

    def __init__(self, member: Membership, fallback: float) -> None:
        self._member = member
        self._fallback = fallback

    def while_away(self, ticket: Ticket) -> bool:
        """From this process's own share, to be declared later; whether there was room."""
        member, ledger = self._member, self._member.replica.ledger
        if ledger is None or not self._fallback:
            return False
        taken = sum(alone.bytes for alone in member.own.alone.values())
        if taken + ticket.bytes > self._fallback * ledger.accounts[0].limit:
            return False
        self._start(ticket)
        member.own.alone[ticket.number] = ticket
        return True

    def force(self, ticket: Ticket) -> None:
        """Grant it whether it fits or not."""
        ticket.number = self._member.own.next_number()
        if ticket.flow is not None:
            ticket.flow = flow_key(ticket.flow)
        self._start(ticket)
        self._member.adopt((ticket,))

    def _start(self, ticket: Ticket) -> None:
        ticket.state, ticket.device, ticket.started = GRANTED, 0, True
        ticket.arrived = ticket.granted_at = self._member.now()
        self._member.own.add(ticket)

    def of_this_moment(self, ticket: Ticket) -> bool:
        """The bytes of one that has just ended, as if it ran on; whether there was one like ``ticket``.

        To all other processes nothing has happened. Nobody known to wait is overtaken, and others only
        for the moment until they are known.
        """
        member, ended = self._member, self._member.untold.like(ticket)
        replica = member.replica
        mine = replica.members.living.get(member.outbox.member)
        if ended is None or ended.state is not GRANTED or mine is None or mine.lanes is not None:
            return False
        ledger = replica.ledger
        knows = member.is_fresh and member.has_just_read and not replica.settles
        if ledger is None or not knows or not ledger.is_at_ease(ended):
            return False
        member.untold.remove(ended)
        ticket.take_over(ended)
        ended.state = ENDED
        ticket.arrived = ticket.granted_at = member.now()
        ticket.started = True
        mine.tickets[ticket.number] = ticket
        member.own.add(ticket)
        return True
