"""What there is to see of the members: who holds what, on which host, for how long."""

from __future__ import annotations

import msgspec

from gpu_admission.budget.ticket import GRANTED, WAITING
from gpu_admission.shared.members import Member
from gpu_admission.shared.replica import Replica


class MemberView(msgspec.Struct, frozen=True):
    """One process of a shared budget; ages in seconds."""

    name: str
    pid: int
    host: str
    age: float
    """Since it joined."""
    silent: float
    """Since its last entry."""
    bytes: int
    running: int
    waiting: int
    resident: tuple[int, ...]
    """Bytes that it holds on each device besides its leases."""
    is_self: bool
    is_dead: bool
    """It was declared dead, and its bytes rest before others get them."""


def view_members(replica: Replica, own: str, now: float) -> tuple[MemberView, ...]:
    """All members, the living first, in the order in which they joined."""
    return tuple(_view(member, own, now) for member in replica.members)


def _view(member: Member, own: str, now: float) -> MemberView:
    held = [ticket for ticket in member.tickets.values() if ticket.state is GRANTED]
    return MemberView(
        member.name,
        member.pid,
        member.host,
        max(0.0, now - member.joined),
        max(0.0, now - member.last),
        sum(ticket.bytes for ticket in held),
        len(held),
        sum(ticket.state is WAITING for ticket in member.tickets.values()),
        member.resident,
        member.name == own,
        member.until is not None,
    )
