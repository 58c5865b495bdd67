"""What is shown of the members: who holds what, on which host, for how long."""

from __future__ import annotations

from gpu_admission.budget.ticket import GRANTED, WAITING
from gpu_admission.shared.members import Member
from gpu_admission.shared.replica import Replica
from gpu_admission.types import MemberSnapshot


def view_members(replica: Replica, own: str, now: float) -> tuple[MemberSnapshot, ...]:
    """All members, the living first, in the order in which they joined."""
    return tuple(_view(member, own, now) for member in replica.members)


def _view(member: Member, own: str, now: float) -> MemberSnapshot:
    held = [ticket for ticket in member.tickets.values() if ticket.state is GRANTED]
    return MemberSnapshot(
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
